"""Drafters in DeepSeek-V4's naming: read as their twins in DeepSpec's, or refused for their layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dspark.cli.main import main
from dspark.errors import ModelMismatchError
from dspark.models.checkpoint import load_drafter
from dspark.models.config_file import read_config
from dspark.models.summary import summarise
from tests.deepspec_files import heads_of, qwen3_config, qwen3_target, random_tensors, write_drafter

HEADS = {
    "fc.weight": "mtp.0.main_proj.weight",
    "hidden_norm.weight": "mtp.0.main_norm.weight",
    "norm.weight": "mtp.1.norm.weight",
    "markov_head.markov_w1.weight": "mtp.1.markov_head.markov_w1.weight",
    "markov_head.markov_w2.weight": "mtp.1.markov_head.markov_w2.weight",
    "confidence_head.proj.weight": "mtp.1.confidence_head.proj.weight",
}
EXPERTS = {
    "mtp.0.ffn.experts.0.w1.weight": torch.zeros(2, 2),
    "mtp.0.ffn.gate.weight": torch.zeros(2, 2),
    "mtp.1.hc_head_fn": torch.zeros(2),
    "mtp.0.attn.wq_a.weight": torch.zeros(2, 2),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("target")
    qwen3_target(directory)
    return directory


def v4_config(config: dict[str, Any]) -> dict[str, Any]:
    """The same drafter by the keys of DeepSeek-V4."""
    renamed = {
        "dspark_block_size": config["block_size"],
        "dspark_noise_token_id": config["mask_token_id"],
        "dspark_target_layer_ids": config["target_layer_ids"],
        "dspark_markov_rank": config["markov_rank"],
        "n_mtp_layers": config["num_hidden_layers"],
        "num_hidden_layers": config["num_target_layers"],
        "architectures": ["DeepseekV4ForCausalLM"],
        "layer_types": ["sliding_attention"] * 4,
    }
    gone = ("block_size", "mask_token_id", "target_layer_ids", "num_target_layers", *heads_of("vanilla"))
    return {key: value for key, value in {**config, **renamed}.items() if key not in gone}


def v4_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {HEADS.get(name, name.replace("layers.", "mtp.")): tensor for name, tensor in tensors.items()}
    return {
        name: tensor for name, tensor in renamed.items() if name.startswith("mtp.") and "bias" not in name
    }


@pytest.fixture(scope="module")
def twins(target: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A drafter in DeepSpec's naming, and the same in DeepSeek-V4's, in two files."""
    config = qwen3_config()
    tensors = random_tensors(config, target)
    tensors["confidence_head.proj.bias"].zero_()
    folder = tmp_path_factory.mktemp("twins")
    ours = write_drafter(folder / "ours", config, tensors)
    theirs = folder / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text(json.dumps(v4_config(config)))
    renamed = v4_tensors(tensors)
    names = sorted(renamed)
    save_file({name: renamed[name] for name in names[::2]}, theirs / "model-00001-of-00002.safetensors")
    rest = {name: renamed[name] for name in names[1::2]}
    save_file({**rest, "layers.0.attn.wq.weight": torch.ones(3)}, theirs / "model-00002-of-00002.safetensors")
    return ours, theirs


def with_files(source: Path, folder: Path, extra: dict[str, Tensor], **changes: Any) -> Path:
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    if extra:
        save_file(extra, folder / "model-00003.safetensors")
    return folder


def test_dense_layers_in_this_naming_are_their_twin_bit_for_bit(twins, target) -> None:
    ours, theirs = (load_drafter(directory, target) for directory in twins)
    assert theirs.config == ours.config
    mine, its = ours.state_dict(), theirs.state_dict()
    assert mine.keys() == its.keys()
    assert all(torch.equal(mine[key], its[key]) for key in mine)
    anchors, rows = torch.tensor([3, 7]), torch.randn(2, 128, generator=torch.Generator().manual_seed(1))
    assert torch.equal(ours.block_embeddings(anchors), theirs.block_embeddings(anchors))
    rows = rows.bfloat16()
    assert torch.equal(ours.backbone.fuse(rows), theirs.backbone.fuse(rows))


def test_the_summary_says_whose_names_they_are(twins) -> None:
    assert "in DeepSeek-V4's naming (mtp.*)" in str(summarise(twins[1]))
    assert summarise(twins[1]).num_parameters == summarise(twins[0]).num_parameters


def test_experts_and_hyper_connections_are_refused_by_name(twins, target, tmp_path, capsys) -> None:
    directory = with_files(twins[1], tmp_path, EXPERTS)
    with pytest.raises(ModelMismatchError) as caught:
        load_drafter(directory, target)
    message = str(caught.value)
    assert (
        "2 mtp layers, gamma 4, Markov head of rank 32, confidence head without bias, taps 0,2 of 4"
        in message
    )
    assert "projection, norms and heads fit" in message
    assert "a mixture of experts (mtp.0.ffn.experts.0.w1.weight, mtp.0.ffn.gate.weight)" in message
    assert "hyper-connections (mtp.1.hc_head_fn)" in message
    assert "attention of another kind (mtp.0.attn.wq_a.weight)" in message
    assert main(["doctor", "--target", str(target), "--drafter", str(directory)]) == 1
    assert "! is          " in (out := capsys.readouterr().out)
    assert "a mixture of experts" in out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dspark_markov_rank": 16},
            r"markov_w1\.weight has shape \(40, 32\), .*\(40, 16\)",
        ),
        ({"dspark_target_layer_ids": [0]}, r"mtp\.0\.main_proj\.weight has shape \(64, 128\)"),
        ({"n_mtp_layers": 3}, r"mtp\.2\.norm\.weight is missing"),
        ({"num_hidden_layers": 2}, r"target_layer_ids \[0, 2\] must rise strictly within \[-1, 0\]"),
    ],
)
def test_tensors_that_do_not_fit_the_keys_are_named(twins, tmp_path, changes, message) -> None:
    with pytest.raises(ModelMismatchError, match=message):
        read_config(with_files(twins[1], tmp_path, {}, **changes))


def test_a_directory_without_the_tensors_says_which_are_missing(twins, tmp_path) -> None:
    (tmp_path / "config.json").write_bytes((twins[1] / "config.json").read_bytes())
    with pytest.raises(ModelMismatchError, match=r"mtp\.0\.main_proj\.weight is missing"):
        read_config(tmp_path)
