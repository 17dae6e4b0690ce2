"""Which drafter a run trains: its kind and its shape, from scratch or from a finished one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from dspark.errors import ModelMismatchError
from dspark.models.checkpoint import load_drafter
from dspark.models.config import QWEN3, QWEN3_EAGLE3, QWEN3_MTP
from dspark.models.drafter import Drafter, DSparkDrafter


class DrafterKind(StrEnum):
    """What can be trained."""

    # Blocks drafted in parallel; DFlash without its heads.
    DSPARK = "dspark"
    # One layer over embedding and state, one draft per call.
    EAGLE3 = "eagle3"
    # The same over the target's last hidden state, made for one draft.
    MTP = "mtp"

    @property
    def usual_gamma(self) -> int:
        """Drafts of a block unless told otherwise."""
        return 1 if self is DrafterKind.MTP else 7


_ARCHITECTURES = {
    DrafterKind.DSPARK: QWEN3,
    DrafterKind.EAGLE3: QWEN3_EAGLE3,
    DrafterKind.MTP: QWEN3_MTP,
}


@dataclass(frozen=True, slots=True)
class DrafterPlan:
    """Shape of the drafter to train.

    Attributes:
        num_layers: 1 for a kind that drafts one token per call, which has no heads either.
        markov_rank: 0 for no Markov head.
        markov_head_type: "vanilla", "gated" or "rnn".
        confidence: what its confidence head reads: "markov" (hidden state and token before), "hidden", or
            "none" for no confidence head.
        copies_layers: whether its layers start as copies of the target's last ones, not as noise.
    """

    num_layers: int = 2
    gamma: int = 7
    markov_rank: int = 64
    markov_head_type: str = "vanilla"
    confidence: str = "markov"
    draft_vocab_size: int = 8192
    mask_token_id: int = 4
    kind: DrafterKind = DrafterKind.DSPARK
    copies_layers: bool = True


def shape_of(plan: DrafterPlan, num_target_layers: int, cached_layers: tuple[int, ...]) -> dict[str, Any]:
    """Fields of `DrafterConfig` that the kind decides: layers, taps and heads."""
    fields: dict[str, Any] = {"architecture": _ARCHITECTURES[plan.kind], "mask_token_id": plan.mask_token_id}
    if plan.kind is DrafterKind.DSPARK:
        return {
            **fields,
            "num_hidden_layers": plan.num_layers,
            "target_layer_ids": cached_layers,
            "markov_rank": plan.markov_rank,
            "markov_head_type": plan.markov_head_type,
            "has_confidence_head": plan.confidence != "none",
            "confidence_head_with_markov": plan.confidence == "markov",
        }
    reads_last_state = plan.kind is DrafterKind.MTP
    return {
        **fields,
        "mask_token_id": 0,
        "num_hidden_layers": 1,
        "target_layer_ids": (num_target_layers - 1,) if reads_last_state else cached_layers,
        "markov_rank": 0,
        "has_confidence_head": False,
        "confidence_head_with_markov": False,
    }


def load_trainable(directory: Path, target: Path, plan: DrafterPlan) -> Drafter:
    """A finished drafter to go on from; a plan without a Markov head leaves its heads out.

    Raises:
        ModelMismatchError: it is of another kind, does not belong to the target, or has rows of its own.
    """
    drafter = load_drafter(directory, target)
    found = drafter.config.architecture
    if found not in _ARCHITECTURES.values():
        raise ModelMismatchError(
            f"{directory} is a {found}; only {', '.join(_ARCHITECTURES.values())} can be trained"
        )
    if found != _ARCHITECTURES[plan.kind]:
        own = next(one for one, architecture in _ARCHITECTURES.items() if architecture == found)
        raise ModelMismatchError(f"{directory} is a {found}; to go on from it pass --kind {own}")
    if drafter.own_rows:
        raise ModelMismatchError(
            f"{directory} holds rows of its own for {', '.join(sorted(drafter.own_rows))}; training compares "
            "drafts with the target by the target's rows, so start from a drafter that shares them"
        )
    if isinstance(drafter, DSparkDrafter) and plan.markov_rank == 0:
        _drop_heads(drafter)
    return drafter


def _drop_heads(drafter: DSparkDrafter) -> None:
    """Leave the backbone alone, which is a DFlash drafter."""
    drafter.markov_head = drafter.confidence_head = None
    drafter.config = replace(
        drafter.config, markov_rank=0, has_confidence_head=False, confidence_head_with_markov=False
    )
