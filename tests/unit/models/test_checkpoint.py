"""Drafter directories: what is written can be read, and what does not fit is refused with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark.errors import ModelMismatchError
from dspark.models.calibration import Calibration
from dspark.models.checkpoint import build_drafter, load_drafter, save_drafter
from dspark.models.config import DrafterConfig
from dspark.models.drafter import DSparkDrafter
from dspark.scheduling.calibration import SequentialScaling

CONFIG = DrafterConfig(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=32,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    num_hidden_layers=1,
    num_target_layers=5,
    target_layer_ids=(1, 3),
    mask_token_id=4,
    gamma=3,
    markov_rank=8,
    draft_vocab_size=24,
    max_position_embeddings=128,
)


def write_target(directory: Path, *, vocab_size: int = 40, hidden_size: int = 16, layers: int = 5) -> Path:
    directory.mkdir()
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "model.embed_tokens.weight": torch.randn(vocab_size, hidden_size, generator=generator),
        "model.norm.weight": torch.ones(hidden_size),
    }
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, directory / "model.safetensors")
    config = {"model_type": "llama", "vocab_size": vocab_size, "hidden_size": hidden_size}
    (directory / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    return directory


def make_drafter(config: DrafterConfig = CONFIG) -> DSparkDrafter:
    generator = torch.Generator().manual_seed(0)
    target = {"embed": torch.randn(40, 16, generator=generator), "norm": torch.ones(16)}
    d2t = torch.arange(3, 27) if config.draft_vocab_size else None
    drafter = build_drafter(config, {**target, "head": target["embed"]}, d2t)
    drafter.initialise(generator, target["norm"])
    return drafter


def test_a_saved_drafter_loads_with_the_same_weights_and_the_targets_embedding(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    drafter = make_drafter()
    save_drafter(drafter, tmp_path / "drafter")
    loaded = load_drafter(tmp_path / "drafter", target)
    assert loaded.config == CONFIG
    assert torch.equal(loaded.d2t, drafter.d2t)
    for key, value in drafter.state_dict().items():
        if key != "d2t":
            assert torch.equal(loaded.state_dict()[key], value.bfloat16()), key
    embed = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(loaded.embed_tokens, embed)
    assert torch.equal(loaded.lm_head, embed[drafter.d2t])


def test_keys_on_disk_are_deepspecs(tmp_path: Path) -> None:
    save_drafter(make_drafter(), tmp_path)
    keys = set(load_file(tmp_path / "model.safetensors"))
    assert {
        "fc.weight",
        "hidden_norm.weight",
        "norm.weight",
        "layers.0.self_attn.q_norm.weight",
        "layers.0.mlp.gate_proj.weight",
        "markov_head.markov_w1.weight",
        "markov_head.markov_w2.weight",
        "confidence_head.proj.bias",
        "d2t",
    } <= keys
    # 5 + 11 per layer + 4 of the heads (DeepSpec section 1.4), less embedding and head, plus the map
    assert len(keys) == 5 + 11 + 4 - 2 + 1


def with_copies(directory: Path, target: Path, *, noise: float) -> None:
    """Put copies of the target's rows into a drafter's file, the head's disturbed."""
    path = directory / "model.safetensors"
    embed = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    copies = {"embed_tokens.weight": embed, "lm_head.weight": embed + noise}
    save_file({**load_file(path), **copies}, path)


def test_stored_copies_of_the_targets_rows_are_skipped(tmp_path: Path, caplog) -> None:
    target = write_target(tmp_path / "target")
    save_drafter(make_drafter(replace(CONFIG, draft_vocab_size=0)), tmp_path / "drafter")
    with_copies(tmp_path / "drafter", target, noise=0.0)
    loaded = load_drafter(tmp_path / "drafter", target)
    assert not loaded.own_rows
    assert not caplog.records
    assert loaded.lm_head.data_ptr() == loaded.embed_tokens.data_ptr(), "a tied head is held once"
    save_drafter(loaded, tmp_path / "again")
    assert not {"embed_tokens.weight", "lm_head.weight"} & set(
        load_file(tmp_path / "again/model.safetensors")
    )


def test_a_stored_head_that_differs_from_the_targets_is_used_said_and_saved(tmp_path: Path, caplog) -> None:
    target = write_target(tmp_path / "target")
    save_drafter(make_drafter(replace(CONFIG, draft_vocab_size=0)), tmp_path / "drafter")
    with_copies(tmp_path / "drafter", target, noise=0.5)
    loaded = load_drafter(tmp_path / "drafter", target)
    assert loaded.own_rows == {"lm_head"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "lm_head.weight differs" in caplog.text
    embed = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(loaded.lm_head, embed + 0.5)
    assert torch.equal(loaded.embed_tokens, embed)
    save_drafter(loaded, tmp_path / "again")
    assert torch.equal(load_drafter(tmp_path / "again", target).lm_head, embed + 0.5)


@pytest.mark.parametrize("size", ["vocab_size", "hidden_size", "layers"])
def test_another_target_is_refused_with_what_differs(tmp_path: Path, size: str) -> None:
    save_drafter(make_drafter(), tmp_path / "drafter")
    other = write_target(tmp_path / "target", **{size: 48})
    key = {"layers": "num_target_layers 5"}.get(size, f"{size} {getattr(CONFIG, size, None)}")
    with pytest.raises(ModelMismatchError, match=f"{key} against 48; pass the pair"):
        load_drafter(tmp_path / "drafter", other)


def test_weights_that_are_not_those_of_the_targets_config_are_refused(tmp_path: Path) -> None:
    save_drafter(make_drafter(), tmp_path / "drafter")
    target = write_target(tmp_path / "target")
    other = write_target(tmp_path / "other", hidden_size=48)
    (target / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(ModelMismatchError, match="hidden size 16, this target's embedding has 40 rows of 48"):
        load_drafter(tmp_path / "drafter", target)


def test_a_directory_that_is_no_target_is_refused(tmp_path: Path) -> None:
    save_drafter(make_drafter(), tmp_path / "drafter")
    with pytest.raises(ModelMismatchError, match="not the config of a target"):
        load_drafter(tmp_path / "drafter", tmp_path)


def test_calibration_keeps_the_order_and_applies_the_set_of_the_request(tmp_path: Path) -> None:
    greedy, sampling = SequentialScaling((0.5, 1.0), (0.0, 0.3)), SequentialScaling((2.0, 1.0), (-0.4, 0.3))
    Calibration(greedy, sampling).write(tmp_path)
    calibration = Calibration.read(tmp_path, 2)
    logits = np.array([[1.0, -1.0], [1.0, -1.0]], dtype=np.float32)
    confidence = calibration.apply(logits, np.array([True, False]))
    assert confidence[0, 0] == pytest.approx(1 / (1 + np.exp(-2.0)))
    assert confidence[1, 0] == pytest.approx(1 / (1 + np.exp(0.4 - 0.5)))
    assert confidence[0, 1] == confidence[1, 1]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"greedy": [1, 1], "sampling": [1, 1]}',
        '{"greedy": {"temperatures": [1, 1]}, "sampling": {"temperatures": [1, 1]}}',
        '{"greedy": {"temperatures": [1, 0], "offsets": [0, 0]}}',
        '{"greedy": {"temperatures": [1, 1], "offsets": [0, NaN]}}',
        '{"greedy": {"temperatures": [1], "offsets": [0, 0]}}',
    ],
)
def test_a_broken_calibration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(ModelMismatchError, match="positive `temperatures`"):
        Calibration.read(tmp_path, 2)


def test_a_calibration_for_another_gamma_is_refused(tmp_path: Path) -> None:
    Calibration.identity(3).write(tmp_path)
    with pytest.raises(ModelMismatchError, match="dspark calibrate"):
        Calibration.read(tmp_path, 7)
    assert Calibration.read(tmp_path / "elsewhere", 7) == Calibration.identity(7)
