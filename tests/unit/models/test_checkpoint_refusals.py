"""Drafter directories as DeepSpec publishes them: read whole, and refused with the key that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark.errors import ModelMismatchError
from dspark.models.checkpoint import load_drafter
from dspark.models.config import GEMMA4
from dspark.models.config_file import read_config
from tests.deepspec_files import (
    gemma4_config,
    heads_of,
    qwen3_config,
    random_tensors,
    write_drafter,
)
from tests.published_configurations import check_published_tensors, check_written_as_read

# config.json of deepseek-ai/dspark_qwen3_8b_block7, every key (DeepSpec section 1.3)
PUBLISHED_8B: dict[str, Any] = {
    "architectures": ["Qwen3DSparkModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "block_size": 7,
    "bos_token_id": 151643,
    "confidence_head_with_markov": True,
    "dtype": "bfloat16",
    "enable_confidence_head": True,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "layer_types": ["full_attention"] * 5,
    "markov_head_type": "vanilla",
    "markov_rank": 256,
    "mask_token_id": 151669,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_anchors": 512,
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 36,
    "pad_token_id": None,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "sliding_window": None,
    "target_layer_ids": [1, 9, 17, 25, 33],
    "tie_word_embeddings": False,
    "transformers_version": "5.10.2",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DFLASH: dict[str, Any] = {
    key: value
    for key, value in PUBLISHED_8B.items()
    if key not in ("markov_head_type", "confidence_head_with_markov")
} | {"markov_rank": 0, "enable_confidence_head": False}
# of deepseek-ai/dspark_gemma4_12b_block7
GEMMA_12B: dict[str, Any] = gemma4_config(
    block_size=7,
    final_logit_softcapping=30.0,
    global_head_dim=512,
    head_dim=256,
    hidden_size=3840,
    intermediate_size=15360,
    layer_types=["full_attention"] * 5,
    mask_token_id=4,
    markov_rank=256,
    num_attention_heads=16,
    num_global_key_value_heads=1,
    num_hidden_layers=5,
    num_key_value_heads=8,
    num_target_layers=48,
    target_layer_ids=[5, 17, 29, 41, 46],
    vocab_size=262144,
)


@pytest.mark.parametrize(
    ("config", "num_tensors", "num_parameters"),
    [(PUBLISHED_8B, 64, 2_371_081_729), (DFLASH, 60, 2_293_286_144), (GEMMA_12B, 74, 3_430_444_550)],
    ids=["dspark-8b", "dflash-8b", "gemma-12b"],
)
def test_published_configurations_ask_for_the_published_tensors(
    config: dict[str, Any], num_tensors: int, num_parameters: int, tmp_path: Path
) -> None:
    check_published_tensors(config, num_tensors, num_parameters, tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        PUBLISHED_8B,
        DFLASH,
        GEMMA_12B,
        qwen3_config(**heads_of("rnn", with_markov=False)),
        gemma4_config(attention_k_eq_v=False, num_global_key_value_heads=None),
    ],
)
def test_a_configuration_is_written_as_it_was_read(config: dict[str, Any], tmp_path: Path) -> None:
    written = check_written_as_read(config, tmp_path)
    assert ("markov_head_type" in written) == ("markov_head_type" in config)


def test_dflash_has_no_heads_and_its_name(tmp_path: Path) -> None:
    config = read_config(write_drafter(tmp_path, DFLASH, {}))
    assert (config.kind, config.markov_rank, config.has_confidence_head) == ("DFlash", 0, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_layer_ids": [1, 4]}, "cannot be tapped"),
        ({"target_layer_ids": [2, 1]}, "rise strictly"),
        ({"target_layer_ids": [-2, 2]}, r"target_layer_ids \[-2, 2\] .* -1 is the embedding"),
        ({"block_size": 0}, "block_size"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type 'yarn'"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types 'sliding_attention'"),
        ({"markov_head_type": "lstm"}, "markov_head_type 'lstm'"),
        ({"markov_rank": -1}, "markov_rank"),
        ({"markov_rank": 0}, "confidence_head_with_markov needs a Markov head"),
        ({"mask_token_id": 400}, "mask_token_id 400"),
        ({"block_size": "seven"}, "not the config of a drafter"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "LlamaForCausalLMEagle3"),
        ({"architectures": ["Qwen3Eagle3Model"]}, "lacks the key 'ttt_length'"),
        ({"dflash_config": {"mask_token_id": 5}}, "dflash_config says .* one token late"),
        ({"speculators_model_type": "dspark"}, "lacks the key 'transformer_layer_config'"),
        ({"sample_from_anchor": False}, "sample_from_anchor is false"),
        ({"dspark_block_size": 5}, "lacks the key 'n_mtp_layers'"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused_by_its_key(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelMismatchError, match=message):
        read_config(write_drafter(tmp_path, qwen3_config(**changes), {}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"enable_moe_block": True}, "enable_moe_block True"),
        ({"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input 256"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers 2"),
        ({"hidden_activation": "silu"}, "hidden_activation 'silu'"),
    ],
)
def test_a_gemma_that_cannot_run_is_refused_by_its_key(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelMismatchError, match=message):
        read_config(write_drafter(tmp_path, gemma4_config(**changes), {}))


@pytest.mark.parametrize(
    "key", ["mask_token_id", "target_layer_ids", "block_size", "markov_rank", "confidence_head_with_markov"]
)
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    config = qwen3_config()
    del config[key]
    with pytest.raises(ModelMismatchError, match=f"lacks the key '{key}'"):
        read_config(write_drafter(tmp_path, config, {}))


def test_a_directory_without_a_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelMismatchError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelMismatchError, match="not the config"):
        read_config(tmp_path)


def load_without(targets: dict[str, Path], path: Path, config: dict[str, Any], *lost: str) -> None:
    tensors = random_tensors(config, targets["qwen3"])
    kept = {key: value for key, value in tensors.items() if not key.startswith(lost)}
    load_drafter(write_drafter(path, config, kept), targets["qwen3"])


@pytest.mark.parametrize(
    ("kind", "lost", "message"),
    [
        ("vanilla", "fc.", r"lacks fc\.weight"),
        ("vanilla", "layers.1.mlp.up", r"lacks layers\.1\.mlp\.up_proj\.weight; .* of 2 layers"),
        ("vanilla", "markov_head.", "lacks markov_head.* markov_rank 32"),
        ("gated", "markov_head.gate", "lacks markov_head.gate_proj.bias, .* markov_head_type 'gated'"),
        ("rnn", "confidence_head.", "lacks confidence_head.* enable_confidence_head True"),
    ],
)
def test_missing_tensors_are_named_with_the_key_that_asks_for_them(
    kind: str, lost: str, message: str, targets: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelMismatchError, match=message):
        load_without(targets, tmp_path, qwen3_config(**heads_of(kind)), lost)


def test_tensors_that_nothing_would_use_are_refused(targets: dict[str, Path], tmp_path: Path) -> None:
    tensors = random_tensors(qwen3_config(), targets["qwen3"])
    path = write_drafter(tmp_path, qwen3_config(**heads_of("none")), tensors)
    with pytest.raises(ModelMismatchError, match=r"holds confidence_head.* nothing here would use"):
        load_drafter(path, targets["qwen3"])


def test_a_misshapen_tensor_is_refused_with_both_shapes(targets: dict[str, Path], tmp_path: Path) -> None:
    config = qwen3_config()
    path = write_drafter(tmp_path, config, random_tensors(config, targets["qwen3"]))
    file = path / "model.safetensors"
    # a confidence head without the Markov embedding, under a config that says it has it
    short = torch.zeros(1, 64, dtype=torch.bfloat16)
    save_file({**load_file(file), "confidence_head.proj.weight": short}, file)
    with pytest.raises(ModelMismatchError, match=r"proj\.weight has shape \(1, 64\), .* says \(1, 96\)"):
        load_drafter(path, targets["qwen3"])


def test_a_broken_file_is_refused(targets: dict[str, Path], tmp_path: Path) -> None:
    path = write_drafter(tmp_path, qwen3_config(), {})
    (path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelMismatchError, match=r"model\.safetensors cannot be read"):
        load_drafter(path, targets["qwen3"])


def test_a_drafter_for_gemma_is_refused_over_another_family(targets: dict[str, Path], tmp_path: Path) -> None:
    config = gemma4_config()
    path = write_drafter(tmp_path, config, random_tensors(config, targets["gemma4"]))
    assert load_drafter(path, targets["gemma4"]).config.architecture == GEMMA4
    with pytest.raises(ModelMismatchError, match=r"drafts for Gemma 4, .* family 'qwen3'"):
        load_drafter(path, targets["qwen3"])
