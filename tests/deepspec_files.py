"""Targets of `transformers` and random drafters for them, in directories with the keys DeepSpec writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dspark.models.target import quiet_transformers

GAMMA, TAPS, MASK, VOCAB = 4, [0, 2], 5, 40
# multiples of 32, which our kernels need
_HIDDEN, _INNER, _NUM_LAYERS, _HEADS = 64, 64, 4, 4
_STD = 0.25


def qwen3_target(directory: Path) -> PreTrainedModel:
    """Four Qwen3 layers of random weights, whose head is the embedding."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=_HIDDEN,
        intermediate_size=_INNER,
        num_hidden_layers=_NUM_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=2,
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        initializer_range=_STD,
        tie_word_embeddings=True,
    )
    return _saved(Qwen3ForCausalLM(config), directory)


def gemma4_target(directory: Path) -> PreTrainedModel:
    """Four Gemma 4 text layers, two of them global."""
    torch.manual_seed(0)
    config = Gemma4TextConfig(
        vocab_size=VOCAB,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=0,
        hidden_size=_HIDDEN,
        intermediate_size=_INNER,
        num_hidden_layers=_NUM_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=2,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=8,
        final_logit_softcapping=30.0,
        initializer_range=_STD,
    )
    return _saved(Gemma4ForCausalLM(config), directory)


def _saved(model: PreTrainedModel, directory: Path) -> PreTrainedModel:
    with quiet_transformers():
        model.to(torch.bfloat16).save_pretrained(directory)
        # read again: the cast above also rounded the frequencies of its rotary embedding
        return type(model).from_pretrained(directory, dtype=torch.float32).eval()


def heads_of(kind: str, *, with_markov: bool = True) -> dict[str, Any]:
    """Keys of `config.json` that say which heads a drafter has; kind "none" is DFlash."""
    if kind == "none":
        return {"markov_rank": 0, "enable_confidence_head": False}
    return {
        "markov_rank": 32,
        "markov_head_type": kind,
        "enable_confidence_head": True,
        "confidence_head_with_markov": with_markov,
    }


def qwen3_config(**changes: Any) -> dict[str, Any]:
    """As published drafters for Qwen3 have it, with small sizes."""
    return {
        **_common("Qwen3DSparkModel"),
        "head_dim": 16,
        "hidden_act": "silu",
        "max_window_layers": 4,
        "model_type": "qwen3",
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": None,
        "use_sliding_window": False,
        **changes,
    }


def gemma4_config(**changes: Any) -> dict[str, Any]:
    """As published drafters for Gemma 4 have it, with small sizes and a cap that is felt."""
    return {
        **_common("Gemma4DSparkModel"),
        "attention_k_eq_v": True,
        "enable_moe_block": False,
        "final_logit_softcapping": 2.5,
        "global_head_dim": 32,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 0,
        "model_type": "gemma4_text",
        "num_global_key_value_heads": 1,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 0,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 10000.0,
                "rope_type": "proportional",
            },
            "rope_theta": None,
            "rope_type": "default",
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 8,
        "use_bidirectional_attention": "vision",
        "use_double_wide_mlp": False,
        **changes,
    }


def eagle3_config(family: str, **changes: Any) -> dict[str, Any]:
    """An Eagle3 drafter of DeepSpec for one of these targets ("qwen3" or "gemma4")."""
    whole = gemma4_config() if family == "gemma4" else qwen3_config()
    lost = ("block_size", "mask_token_id", "num_anchors", *heads_of("vanilla"))
    return {
        **{key: value for key, value in whole.items() if key not in lost},
        "architectures": ["Gemma4Eagle3Model" if family == "gemma4" else "Qwen3Eagle3Model"],
        "draft_num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "num_hidden_layers": 1,
        "step_loss_decay": 0.8,
        "target_model_name_or_path": "a/target",
        "ttt_length": GAMMA,
        **changes,
    }


def mtp_config(**changes: Any) -> dict[str, Any]:
    """A next-token module of ours."""
    whole = eagle3_config("qwen3")
    lost = ("draft_num_hidden_layers", "step_loss_decay", "target_model_name_or_path", "ttt_length")
    return {
        **{key: value for key, value in whole.items() if key not in lost},
        "architectures": ["Qwen3MtpModel"],
        "block_size": GAMMA,
        "target_layer_ids": [_NUM_LAYERS - 1],
        **changes,
    }


def _common(architecture: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": GAMMA,
        "dtype": "bfloat16",
        "hidden_size": _HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": _INNER,
        "layer_types": ["full_attention"] * 2,
        "mask_token_id": MASK,
        "max_position_embeddings": 256,
        "num_anchors": 512,
        "num_attention_heads": _HEADS,
        "num_hidden_layers": 2,
        "num_target_layers": _NUM_LAYERS,
        "rms_norm_eps": 1e-6,
        "target_layer_ids": TAPS,
        "tie_word_embeddings": False,
        "transformers_version": "5.10.2",
        "use_cache": True,
        "vocab_size": VOCAB,
        **heads_of("vanilla"),
    }


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of a published file (DeepSpec sections 1.4 to 1.6) or of ours, without the copies."""
    d, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    name = config["architectures"][0]
    is_gemma, is_eagle3, is_mtp = name.startswith("Gemma4"), "Eagle3" in name, "Mtp" in name
    size = config["global_head_dim" if is_gemma else "head_dim"]
    is_shared = config.get("attention_k_eq_v", False)
    kv_heads = config["num_global_key_value_heads" if is_shared else "num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (d,)}
    if is_mtp:
        shapes |= {"enorm.weight": (d,), "hnorm.weight": (d,), "eh_proj.weight": (d, 2 * d)}
    else:
        shapes["fc.weight"] = (d, d * len(config["target_layer_ids"]))
        shapes["layers.0.hidden_norm.weight" if is_eagle3 else "hidden_norm.weight"] = (d,)
    read = 2 * d if is_eagle3 else d
    linear = {"q_proj": (heads * size, read), "k_proj": (kv_heads * size, read), "o_proj": (d, heads * size)}
    if not is_shared:
        linear["v_proj"] = linear["k_proj"]
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] * is_gemma
    for layer in range(config["num_hidden_layers"]):
        name = f"layers.{layer}."
        shapes |= {f"{name}{norm}.weight": (d,) for norm in norms}
        shapes |= {f"{name}self_attn.{part}.weight": shape for part, shape in linear.items()}
        shapes |= {f"{name}self_attn.{part}_norm.weight": (size,) for part in "qk"}
        shapes |= {f"{name}mlp.{part}_proj.weight": (inner, d) for part in ("gate", "up")}
        shapes[f"{name}mlp.down_proj.weight"] = (d, inner)
        if config["attention_bias"]:
            shapes |= {f"{name}self_attn.{part}.bias": shape[:1] for part, shape in linear.items()}
        if is_gemma:
            shapes[f"{name}layer_scalar"] = (1,)
    return shapes if is_eagle3 or is_mtp else shapes | _head_shapes(config)


def _head_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    d, vocab, rank = config["hidden_size"], config["vocab_size"], config["markov_rank"]
    shapes: dict[str, tuple[int, ...]] = {}
    if rank:
        shapes |= {f"markov_head.markov_w{n}.weight": (vocab, rank) for n in (1, 2)}
    extra = {"gated": ("gate_proj", rank, d + rank), "rnn": ("joint_proj", 3 * rank, 2 * rank + d)}
    if (kind := config.get("markov_head_type")) in extra:
        name, rows, width = extra[kind]
        shapes |= {f"markov_head.{name}.weight": (rows, width), f"markov_head.{name}.bias": (rows,)}
    if config["enable_confidence_head"]:
        width = d + rank * config["confidence_head_with_markov"]
        shapes |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    return shapes


def random_tensors(config: dict[str, Any], target: Path, seed: int = 0) -> dict[str, Tensor]:
    """Weights of a published file, copies of the target's rows included."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes_of(config).items():
        noise = torch.randn(shape, generator=generator)
        is_norm = "norm" in name or "layer_scalar" in name
        tensors[name] = (1 + 0.2 * noise if is_norm else _STD * noise).bfloat16()
    rows = load_file(target / "model.safetensors")
    embed = next(rows[name] for name in rows if name.endswith("embed_tokens.weight"))
    return {**tensors, "embed_tokens.weight": embed, "lm_head.weight": embed.clone()}


def write_drafter(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write a drafter directory."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
