"""Drafter directories in the convention of `speculators`, which vLLM reads too.

It differs from DeepSpec's in how the same things are counted:
    aux_hidden_state_layer_ids  0 is the embedding and k the output of k layers: one more than a tap
    block_size                  slots; with sample_from_anchor each of them drafts, as here
    d2t                         what to add to a draft id, so draft ids rise with target ids
    t2d                         [V] bool: whether a target token can be drafted
The shape of the layers stands in transformer_layer_config, where defaults of Qwen3Config may be left out.
Read in speculators 0.9.0 (config classes and models of dflash and dspark).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspark.errors import ModelMismatchError
from dspark.models.config import GEMMA4, QWEN3, DrafterConfig

# Whose format this is.
VERSION = "0.9.0"
# Model types with their defaults of sample_from_anchor, markov_rank and enable_confidence_head.
_TYPES: Mapping[str, tuple[bool, int, bool]] = {"dspark": (True, 256, True), "dflash": (False, 0, False)}
_DEFAULT_BLOCK, _DEFAULT_VOCABULARY = 8, 32000
_TAP_OFFSET = 1
Raw = dict[str, Any]


def is_speculators(directory: Path) -> bool:
    """Whether the `config.json` of a readable drafter directory is of this format."""
    return "speculators_model_type" in json.loads((directory / "config.json").read_text())


def from_speculators(raw: Raw) -> Raw:
    """A parsed `config.json` of this format with DeepSpec's keys.

    Raises:
        ModelMismatchError: it is of a drafter that cannot be run here; says why.
        KeyError: a key that has no default is missing.
    """
    kind = raw["speculators_model_type"]
    if kind not in _TYPES:
        raise ModelMismatchError(
            f"speculators_model_type {kind!r} cannot be run here, only {' and '.join(_TYPES)}"
        )
    samples_from_anchor, rank, has_confidence_head = _TYPES[kind]
    layers = _layer_config(raw["transformer_layer_config"])
    if "num_target_layers" not in raw:
        raise ModelMismatchError(
            "num_target_layers is missing, which speculators does not write; add it beside block_size: "
            "the number of layers of the target"
        )
    if raw.get("target_hidden_size") not in (None, layers["hidden_size"]):
        raise ModelMismatchError(
            f"target_hidden_size {raw['target_hidden_size']} is not hidden_size {layers['hidden_size']}; "
            "here both are one"
        )
    vocabulary = raw.get("draft_vocab_size", _DEFAULT_VOCABULARY)
    return {
        **layers,
        "architectures": [QWEN3],
        "num_target_layers": raw["num_target_layers"],
        "block_size": raw.get("block_size", _DEFAULT_BLOCK),
        "draft_vocab_size": 0 if vocabulary == layers["vocab_size"] else vocabulary,
        "target_layer_ids": [one - _TAP_OFFSET for one in raw["aux_hidden_state_layer_ids"]],
        "mask_token_id": raw["mask_token_id"],
        "sample_from_anchor": raw.get("sample_from_anchor", samples_from_anchor),
        "markov_rank": raw.get("markov_rank", rank),
        "markov_head_type": raw.get("markov_head_type", "vanilla"),
        "enable_confidence_head": raw.get("enable_confidence_head", has_confidence_head),
        "confidence_head_with_markov": raw.get("confidence_head_with_markov", True),
    }


def _layer_config(written: Raw) -> Raw:
    """With the defaults that were left out."""
    # Imported late: it takes seconds, and no other format needs it.
    from transformers import Qwen3Config

    if written.get("model_type", "qwen3") != "qwen3":
        raise ModelMismatchError(
            f"transformer_layer_config has model_type {written['model_type']!r}, and only 'qwen3' can be run"
        )
    filled: Raw = Qwen3Config(
        **{key: value for key, value in written.items() if key != "model_type"}
    ).to_dict()
    return filled


def to_speculators(config: DrafterConfig, *, verifier: str, verifier_architectures: list[str]) -> Raw:
    """What `config.json` holds in this format.

    Args:
        config: of the drafter.
        verifier: name or path by which the target will be loaded.
        verifier_architectures: of the target's own `config.json`.

    Raises:
        ModelMismatchError: the format has no such drafters.
    """
    if config.architecture == GEMMA4:
        raise ModelMismatchError(
            f"a {GEMMA4} has no place in the format of speculators, whose DSpark layers are those of Qwen3; "
            "export it with --format deepspec"
        )
    proposal = {"proposal_type": "greedy", "speculative_tokens": config.gamma}
    return {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": "dspark",
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier, "architectures": verifier_architectures},
        },
        "transformer_layer_config": _transformer_layers(config),
        "draft_vocab_size": config.num_draft_tokens,
        "block_size": config.gamma,
        "sample_from_anchor": True,
        "aux_hidden_state_layer_ids": [one + _TAP_OFFSET for one in config.target_layer_ids],
        "num_target_layers": config.num_target_layers,
        "mask_token_id": config.mask_token_id,
        # No layer has a window, but vLLM asks this key whether blocks are causal.
        "sliding_window_non_causal": True,
        "markov_rank": config.markov_rank,
        "markov_head_type": config.markov_head_type,
        "enable_confidence_head": config.has_confidence_head,
        "confidence_head_with_markov": config.confidence_head_with_markov,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def _transformer_layers(config: DrafterConfig) -> Raw:
    same = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "attention_bias",
    )
    return {
        "model_type": "qwen3",
        **{name: getattr(config, name) for name in same},
        "hidden_act": "silu",
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "layer_types": ["full_attention"] * config.num_hidden_layers,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
    }


def map_from_offsets(tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """The tensors of a file with `d2t` as target ids and without `t2d`.

    Raises:
        ModelMismatchError: the two maps do not belong together.
    """
    own = {key: value for key, value in tensors.items() if key != "t2d"}
    if "d2t" not in own:
        return own
    d2t = own["d2t"].to(torch.int64)
    own["d2t"] = d2t + torch.arange(len(d2t))
    can_draft = tensors.get("t2d")
    if can_draft is not None and not torch.equal(torch.nonzero(can_draft).flatten(), own["d2t"]):
        raise ModelMismatchError(
            f"{where}: t2d and d2t name different tokens; d2t holds what is added to a draft id"
        )
    return own


def map_to_offsets(d2t: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """`d2t` and `t2d` of this format: of rising target ids [Vd], the offsets [Vd] int64 and [V] bool."""
    ids = d2t.to(torch.int64)
    assert bool((ids[1:] > ids[:-1]).all()), "the draft vocabulary rises"
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": t2d}
