"""`config.json` of a drafter, with DeepSpec's keys (DeepSpec section 1.3) or those of `speculators`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dspark.errors import ModelMismatchError
from dspark.models.config import CHAINS, GEMMA4, GEMMA4_EAGLE3, QWEN3, QWEN3_EAGLE3, QWEN3_MTP, DrafterConfig
from dspark.models.deepseek_v4 import is_deepseek_v4, to_deepspec
from dspark.models.foreign import EAGLE3_ALIAS, refuse_foreign
from dspark.models.speculators_format import from_speculators

_FULL_ATTENTION = "full_attention"
# Keys with the meaning and the name of a field.
_SAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_target_layers",
    "rms_norm_eps",
    "max_position_embeddings",
)
# The same, of drafters of blocks alone.
_SAME_OF_BLOCKS = ("mask_token_id", "markov_rank")
Raw = dict[str, Any]


def read_config(directory: Path) -> DrafterConfig:
    """Read `config.json` of a drafter directory.

    Raises:
        ModelMismatchError: the directory holds no drafter that this code can run; says why.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise ModelMismatchError(f"{directory} holds no config.json: not a drafter directory")
    try:
        raw: Raw = json.loads(path.read_text())
        if "speculators_model_type" in raw:
            raw = from_speculators(raw)
        if is_deepseek_v4(raw):
            raw = to_deepspec(raw, directory)
        refuse_foreign(raw)
        named = raw["architectures"][0]
        architecture = QWEN3_EAGLE3 if named == EAGLE3_ALIAS else named
        own = _READERS[architecture](raw)
        heads = _chain(raw, architecture) if architecture in CHAINS else _heads(raw)
        return DrafterConfig(**_common(raw), **heads, **own, architecture=architecture)
    except KeyError as missing:
        raise ModelMismatchError(f"{path} lacks the key {missing}") from None
    except (ValueError, TypeError) as error:
        raise ModelMismatchError(f"{path} is not the config of a drafter: {error}") from None
    except ModelMismatchError as error:
        raise ModelMismatchError(f"{path}: {error}") from None


def write_config(config: DrafterConfig, directory: Path) -> None:
    """Write `config.json`."""
    (directory / "config.json").write_text(json.dumps(to_document(config), indent=2) + "\n")


def to_document(config: DrafterConfig) -> Raw:
    """What `config.json` holds; keys of heads the drafter does not have are left out, as DeepSpec does."""
    return {
        "architectures": [config.architecture],
        **{name: getattr(config, name) for name in _SAME},
        "target_layer_ids": list(config.target_layer_ids),
        "draft_vocab_size": config.draft_vocab_size,
        "layer_types": [_FULL_ATTENTION] * config.num_hidden_layers,
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        **(_gemma4_keys(config) if config.is_gemma else _qwen3_keys(config)),
        **(_chain_keys(config) if config.is_chain else _head_keys(config)),
    }


def _common(raw: Raw) -> Raw:
    for layer_type in raw.get("layer_types") or ():
        _check("layer_types", layer_type, [_FULL_ATTENTION])
    return {
        **{name: raw[name] for name in _SAME},
        "target_layer_ids": tuple(raw["target_layer_ids"]),
        "draft_vocab_size": raw.get("draft_vocab_size", 0),
        "attention_bias": raw.get("attention_bias", False),
    }


def _heads(raw: Raw) -> Raw:
    """Keys of heads that the drafter does not have may be absent."""
    has_confidence_head = raw.get("enable_confidence_head", False)
    return {
        **{name: raw[name] for name in _SAME_OF_BLOCKS},
        "gamma": raw["block_size"],
        "markov_head_type": str(raw.get("markov_head_type", "vanilla")).lower(),
        "has_confidence_head": has_confidence_head,
        "confidence_head_with_markov": has_confidence_head and raw["confidence_head_with_markov"],
    }


def _head_keys(config: DrafterConfig) -> Raw:
    keys: Raw = {
        **{name: getattr(config, name) for name in _SAME_OF_BLOCKS},
        "block_size": config.gamma,
        "enable_confidence_head": config.has_confidence_head,
    }
    if config.markov_rank:
        keys["markov_head_type"] = config.markov_head_type
    if config.has_confidence_head:
        keys["confidence_head_with_markov"] = config.confidence_head_with_markov
    return keys


def _chain(raw: Raw, architecture: str) -> Raw:
    """A drafter of one draft per call has neither masks nor heads; DeepSpec counts its training steps."""
    if architecture != QWEN3_MTP:
        _check("draft_num_hidden_layers", raw.get("draft_num_hidden_layers", 1), [1])
    return {
        "gamma": raw["block_size" if architecture == QWEN3_MTP else "ttt_length"],
        "mask_token_id": 0,
        "markov_rank": 0,
        "has_confidence_head": False,
        "confidence_head_with_markov": False,
    }


def _chain_keys(config: DrafterConfig) -> Raw:
    if config.reads_last_state:
        return {"block_size": config.gamma}
    return {"ttt_length": config.gamma, "draft_num_hidden_layers": config.num_hidden_layers}


def _qwen3(raw: Raw) -> Raw:
    rope = raw.get("rope_parameters") or {}
    _check("rope_type", rope.get("rope_type", "default"), ["default"])
    _check("hidden_act", raw.get("hidden_act", "silu"), ["silu"])
    return {
        "num_key_value_heads": raw["num_key_value_heads"],
        "head_dim": raw["head_dim"],
        "rope_theta": rope["rope_theta"] if "rope_theta" in rope else raw["rope_theta"],
    }


def _qwen3_keys(config: DrafterConfig) -> Raw:
    return {
        "model_type": "qwen3",
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
    }


def _gemma4(raw: Raw) -> Raw:
    """All draft layers have the geometry of a Gemma's global layers (DeepSpec section 2.7)."""
    rope = raw["rope_parameters"][_FULL_ATTENTION]
    _check("rope_parameters.full_attention.rope_type", rope["rope_type"], ["proportional"])
    _check("hidden_activation", raw["hidden_activation"], ["gelu_pytorch_tanh"])
    _check("enable_moe_block", raw.get("enable_moe_block", False), [False])
    _check("hidden_size_per_layer_input", raw.get("hidden_size_per_layer_input", 0), [0, None])
    _check("num_kv_shared_layers", raw.get("num_kv_shared_layers", 0), [0])
    is_shared = raw["attention_k_eq_v"]
    global_heads = raw.get("num_global_key_value_heads") if is_shared else None
    return {
        "num_key_value_heads": global_heads or raw["num_key_value_heads"],
        "head_dim": raw["global_head_dim"],
        "rope_theta": rope["rope_theta"],
        "partial_rotary_factor": rope.get("partial_rotary_factor", 1.0),
        "attention_k_eq_v": is_shared,
        "final_logit_softcapping": raw.get("final_logit_softcapping") or 0.0,
    }


def _gemma4_keys(config: DrafterConfig) -> Raw:
    rope = {
        "rope_type": "proportional",
        "rope_theta": config.rope_theta,
        "partial_rotary_factor": config.partial_rotary_factor,
    }
    return {
        "model_type": "gemma4_text",
        "num_key_value_heads": config.num_key_value_heads,
        "num_global_key_value_heads": config.num_key_value_heads if config.attention_k_eq_v else None,
        "head_dim": config.head_dim,
        "global_head_dim": config.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_parameters": {_FULL_ATTENTION: rope},
        "attention_k_eq_v": config.attention_k_eq_v,
        "final_logit_softcapping": config.final_logit_softcapping or None,
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
    }


_READERS: dict[str, Callable[[Raw], Raw]] = {
    QWEN3: _qwen3,
    GEMMA4: _gemma4,
    QWEN3_EAGLE3: _qwen3,
    GEMMA4_EAGLE3: _gemma4,
    QWEN3_MTP: _qwen3,
}


def _check(key: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise ModelMismatchError(f"{key} {value!r} is not supported, only {known[0]!r}")
