"""Directories of Eagle3 and MTP drafters: read whole, written as they were read, refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dspark.cli.main import main
from dspark.errors import ModelMismatchError
from dspark.models.checkpoint import load_drafter, save_drafter
from dspark.models.config import QWEN3_EAGLE3
from dspark.models.config_file import read_config
from tests.deepspec_files import (
    eagle3_config,
    mtp_config,
    random_tensors,
    shapes_of,
    write_drafter,
)
from tests.published_configurations import check_published_tensors, check_written_as_read

_SIZES = {"max_position_embeddings": 40960, "vocab_size": 151936}
# the sizes of DeepSpec section 0.3
QWEN3_4B: dict[str, Any] = eagle3_config(
    "qwen3",
    **_SIZES,
    head_dim=128,
    hidden_size=2560,
    intermediate_size=9728,
    num_attention_heads=32,
    num_key_value_heads=8,
    num_target_layers=36,
    target_layer_ids=[1, 9, 17, 25, 33],
    ttt_length=7,
)
QWEN3_14B: dict[str, Any] = eagle3_config(
    "qwen3",
    **_SIZES,
    head_dim=128,
    hidden_size=5120,
    intermediate_size=17408,
    num_attention_heads=40,
    num_key_value_heads=8,
    num_target_layers=40,
    target_layer_ids=[1, 10, 19, 28, 37],
    ttt_length=7,
)
GEMMA_12B: dict[str, Any] = eagle3_config(
    "gemma4",
    global_head_dim=512,
    head_dim=256,
    hidden_size=3840,
    intermediate_size=15360,
    num_attention_heads=16,
    num_key_value_heads=8,
    num_target_layers=48,
    target_layer_ids=[5, 17, 29, 41, 46],
    ttt_length=7,
    vocab_size=262144,
)


@pytest.mark.parametrize(
    ("config", "num_tensors", "num_parameters"),
    [(QWEN3_4B, 16, 927_344_896), (QWEN3_14B, 16, 2_053_918_976), (GEMMA_12B, 18, 2_362_269_185)],
    ids=["qwen3-4b", "qwen3-14b", "gemma4-12b"],
)
def test_published_sizes_ask_for_the_published_tensors(
    config: dict[str, Any], num_tensors: int, num_parameters: int, tmp_path: Path
) -> None:
    check_published_tensors(config, num_tensors, num_parameters, tmp_path)


@pytest.mark.parametrize("config", [QWEN3_4B, GEMMA_12B, mtp_config()], ids=["qwen3", "gemma4", "mtp"])
def test_a_configuration_is_written_as_it_was_read(config: dict[str, Any], tmp_path: Path) -> None:
    written = check_written_as_read(config, tmp_path)
    assert not {"mask_token_id", "markov_rank", "enable_confidence_head"} & set(written)


@pytest.mark.parametrize("kind", ["qwen3", "gemma4", "mtp"])
def test_a_loaded_drafter_is_saved_tensor_by_tensor(
    kind: str, targets: dict[str, Path], tmp_path: Path
) -> None:
    config = mtp_config() if kind == "mtp" else eagle3_config(kind)
    target = targets["gemma4" if kind == "gemma4" else "qwen3"]
    tensors = random_tensors(config, target)
    save_drafter(load_drafter(write_drafter(tmp_path / "a", config, tensors), target), tmp_path / "b")
    saved = load_file(tmp_path / "b/model.safetensors")
    assert saved.keys() == shapes_of(config).keys(), "the target's rows are left out"
    assert all(torch.equal(saved[name], tensors[name]) for name in saved)


def test_the_first_name_of_deepspecs_model_is_read(tmp_path: Path) -> None:
    old = eagle3_config("qwen3", architectures=["Eagle3DraftModel"])
    assert read_config(write_drafter(tmp_path, old, {})).architecture == QWEN3_EAGLE3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (eagle3_config("qwen3", ttt_length=0), "ttt_length must be at least 1"),
        (eagle3_config("qwen3", draft_num_hidden_layers=2), "draft_num_hidden_layers 2"),
        (eagle3_config("qwen3", num_hidden_layers=2), "num_hidden_layers 2 of a Qwen3Eagle3Model must be 1"),
        (eagle3_config("qwen3", target_layer_ids=[1, 3]), "cannot be tapped"),
        (eagle3_config("qwen3", target_layer_ids=[-1, 2]), "target_layer_ids holds -1"),
        (eagle3_config("gemma4", enable_moe_block=True), "enable_moe_block True"),
        (mtp_config(target_layer_ids=[2]), r"target_layer_ids \[2\] of a Qwen3MtpModel must be \[3\]"),
        (mtp_config(num_hidden_layers=2), "must be 1"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused_by_its_key(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelMismatchError, match=message):
        read_config(write_drafter(tmp_path, config, {}))


@pytest.mark.parametrize("lost", ["layers.0.hidden_norm", "fc", "layers.0.self_attn.q_norm"])
def test_missing_tensors_are_named(lost: str, targets: dict[str, Path], tmp_path: Path) -> None:
    config = eagle3_config("qwen3")
    tensors = random_tensors(config, targets["qwen3"])
    del tensors[f"{lost}.weight"]
    with pytest.raises(ModelMismatchError, match=f"lacks {lost}.weight; .* describes a Qwen3Eagle3Model"):
        load_drafter(write_drafter(tmp_path, config, tensors), targets["qwen3"])


def test_projections_of_an_ordinary_layer_are_refused_with_both_shapes(
    targets: dict[str, Path], tmp_path: Path
) -> None:
    config = eagle3_config("qwen3")
    narrow = {"layers.0.self_attn.q_proj.weight": torch.zeros(64, 64, dtype=torch.bfloat16)}
    path = write_drafter(tmp_path, config, random_tensors(config, targets["qwen3"]) | narrow)
    with pytest.raises(ModelMismatchError, match=r"has shape \(64, 64\), .* says \(64, 128\)"):
        load_drafter(path, targets["qwen3"])


def test_an_eagle3_for_gemma_is_refused_over_another_family(targets: dict[str, Path], tmp_path: Path) -> None:
    config = eagle3_config("gemma4")
    path = write_drafter(tmp_path, config, random_tensors(config, targets["gemma4"]))
    with pytest.raises(ModelMismatchError, match=r"Gemma4Eagle3Model drafts for Gemma 4, .* family 'qwen3'"):
        load_drafter(path, targets["qwen3"])


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (eagle3_config("qwen3"), "Eagle3 (Qwen3Eagle3Model), 1 layer, gamma 4, one draft per call"),
        (mtp_config(block_size=1), "MTP (Qwen3MtpModel), 1 layer, gamma 1, one draft per call"),
    ],
)
def test_the_doctor_explains_a_pair(
    config: dict[str, Any],
    sentence: str,
    targets: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_drafter(tmp_path, config, random_tensors(config, targets["qwen3"]))
    main(["doctor", "--target", str(targets["qwen3"]), "--drafter", str(tmp_path)])
    out = capsys.readouterr().out
    assert f"is          {sentence}" in out
    assert "pair        the drafter fits the target" in out
