"""The configuration of a drafter, as DeepSpec writes it in `config.json`, plus the draft vocabulary."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspark.errors import ModelMismatchError

ARCHITECTURE = "Qwen3DSparkModel"


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """Shape of a DSpark drafter (DeepSpec checkpoint keys; `gamma` is DeepSpec's `block_size`).

    `draft_vocab_size` is ours: 0 means the full vocabulary, otherwise the checkpoint holds a map `d2t` from
    draft ids to target ids and the Markov output has that many rows.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    gamma: int = 7
    markov_rank: int = 256
    draft_vocab_size: int = 0
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 40960
    has_confidence_head: bool = True

    def __post_init__(self) -> None:
        """Refuse shapes that cannot be a drafter."""
        ids = self.target_layer_ids
        if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= self.num_target_layers - 1:
            raise ModelMismatchError(
                f"target_layer_ids {list(ids)} must rise strictly within [0, {self.num_target_layers - 2}] "
                f"(the last of the {self.num_target_layers} target layers cannot be tapped)"
            )
        if self.gamma < 1:
            raise ModelMismatchError(f"block_size must be at least 1, not {self.gamma}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelMismatchError("num_attention_heads must be a multiple of num_key_value_heads")
        if not 0 <= self.draft_vocab_size <= self.vocab_size:
            raise ModelMismatchError("draft_vocab_size must lie between 0 (all) and vocab_size")

    @property
    def num_draft_tokens(self) -> int:
        """Rows of the drafter's output: the draft vocabulary, or all of the target's."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def feature_size(self) -> int:
        """Width of one row of target features, L*H."""
        return len(self.target_layer_ids) * self.hidden_size


def read_config(directory: Path) -> DrafterConfig:
    """Read `config.json` of a drafter directory.

    Raises:
        ModelMismatchError: the directory holds no DSpark drafter that this code can run; says why.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise ModelMismatchError(f"{directory} holds no config.json: not a drafter directory")
    raw: dict[str, Any] = json.loads(path.read_text())
    architectures = raw.get("architectures") or []
    if ARCHITECTURE not in architectures:
        raise ModelMismatchError(
            f"{directory}: architecture {architectures} is not {ARCHITECTURE}; pass a DSpark drafter"
        )
    rope = raw.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise ModelMismatchError(
            f"{directory}: rope_type {rope['rope_type']!r} is not supported, only 'default'"
        )
    try:
        return DrafterConfig(
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_attention_heads=raw["num_attention_heads"],
            num_key_value_heads=raw["num_key_value_heads"],
            head_dim=raw["head_dim"],
            num_hidden_layers=raw["num_hidden_layers"],
            num_target_layers=raw["num_target_layers"],
            target_layer_ids=tuple(raw["target_layer_ids"]),
            mask_token_id=raw["mask_token_id"],
            gamma=raw["block_size"],
            markov_rank=raw["markov_rank"],
            draft_vocab_size=raw.get("draft_vocab_size", 0),
            rms_norm_eps=raw["rms_norm_eps"],
            rope_theta=rope.get("rope_theta", raw.get("rope_theta", 1e6)),
            max_position_embeddings=raw["max_position_embeddings"],
            has_confidence_head=raw.get("enable_confidence_head", False),
        )
    except KeyError as missing:
        raise ModelMismatchError(f"{path} lacks the key {missing}") from None


def write_config(config: DrafterConfig, directory: Path) -> None:
    """Write `config.json` with DeepSpec's keys."""
    raw = asdict(config)
    gamma, confidence = raw.pop("gamma"), raw.pop("has_confidence_head")
    theta = raw.pop("rope_theta")
    document = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        **raw,
        "target_layer_ids": list(config.target_layer_ids),
        "block_size": gamma,
        "enable_confidence_head": confidence,
        "confidence_head_with_markov": confidence,
        "markov_head_type": "vanilla",
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "layer_types": ["full_attention"] * config.num_hidden_layers,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(document, indent=2) + "\n")
