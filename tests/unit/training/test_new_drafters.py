"""Which drafters training begins with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dspark.errors import ModelMismatchError
from dspark.models.checkpoint import (
    load_drafter,
    read_target_layer,
    read_target_tensors,
    save_drafter,
)
from dspark.training.new_drafter import new_drafter
from dspark.training.shapes import DrafterKind, DrafterPlan
from dspark.training.target_start import copy_layers
from tests.deepspec_files import (
    TAPS,
    VOCAB,
    gemma4_config,
    gemma4_target,
    qwen3_config,
    qwen3_target,
    random_tensors,
    write_drafter,
)


class OneText:
    """As much of a feature cache as the choice of a vocabulary reads."""

    vocab_size, target_layer_ids = VOCAB, tuple(TAPS)
    index = np.array([[0, 12, 4]])

    def tokens(self, places: np.ndarray) -> np.ndarray:
        return places % VOCAB


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("target") / "qwen3"
    return directory, qwen3_target(directory).config


@pytest.mark.parametrize(
    ("plan", "kind", "heads"),
    [
        (DrafterPlan(markov_rank=8), "DSpark", "MarkovHead"),
        (DrafterPlan(markov_rank=8, markov_head_type="gated"), "DSpark", "GatedMarkovHead"),
        (DrafterPlan(markov_rank=8, markov_head_type="rnn", confidence="hidden"), "DSpark", "RnnMarkovHead"),
        (DrafterPlan(markov_rank=8, confidence="none"), "DSpark", "MarkovHead"),
        (DrafterPlan(markov_rank=0, confidence="none"), "DFlash", "NoneType"),
    ],
)
def test_a_plan_says_which_heads_a_drafter_has(
    plan: DrafterPlan, kind: str, heads: str, qwen3: tuple[Path, Any]
) -> None:
    drafter, _ = new_drafter(plan, *qwen3, OneText(), seed=0, init=None)
    assert drafter.config.kind == kind
    assert type(drafter.markov_head).__name__ == heads
    assert (drafter.confidence_head is None) == (plan.confidence == "none")
    assert drafter.config.confidence_head_with_markov == (plan.confidence == "markov")
    biases = [one for name, one in drafter.named_parameters() if name.endswith(".bias")]
    assert not any(one.any() for one in biases)


def test_a_confidence_head_over_no_markov_head_is_refused_by_its_key(qwen3: tuple[Path, Any]) -> None:
    with pytest.raises(ModelMismatchError, match="confidence_head_with_markov needs a Markov head"):
        new_drafter(DrafterPlan(markov_rank=0), *qwen3, OneText(), seed=0, init=None)


def test_a_published_drafter_can_be_trained_on(qwen3: tuple[Path, Any], tmp_path: Path) -> None:
    config = qwen3_config(markov_head_type="vanilla")
    write_drafter(tmp_path, config, random_tensors(config, qwen3[0]))
    drafter, _ = new_drafter(DrafterPlan(), *qwen3, OneText(), seed=0, init=tmp_path)
    assert drafter.config.markov_rank == config["markov_rank"]


def test_a_published_drafter_can_be_trained_on_without_its_heads(
    qwen3: tuple[Path, Any], tmp_path: Path
) -> None:
    config = qwen3_config(markov_head_type="vanilla")
    write_drafter(tmp_path, config, random_tensors(config, qwen3[0]))
    whole, _ = new_drafter(DrafterPlan(), *qwen3, OneText(), seed=0, init=tmp_path)
    plan = DrafterPlan(markov_rank=0, confidence="none")
    bare, _ = new_drafter(plan, *qwen3, OneText(), seed=0, init=tmp_path)
    assert bare.config.kind == "DFlash"
    assert all(name.startswith("backbone.") for name, _ in bare.named_parameters())
    assert all(torch.equal(one, whole.get_parameter(name)) for name, one in bare.named_parameters())
    save_drafter(bare, tmp_path / "bare")
    again = load_drafter(tmp_path / "bare", qwen3[0])
    assert (again.config.kind, again.markov_head, again.confidence_head) == ("DFlash", None, None)


def test_a_drafter_with_rows_of_its_own_cannot(qwen3: tuple[Path, Any], tmp_path: Path) -> None:
    config = qwen3_config()
    tensors = random_tensors(config, qwen3[0])
    write_drafter(tmp_path, config, tensors | {"lm_head.weight": torch.zeros_like(tensors["lm_head.weight"])})
    with pytest.raises(ModelMismatchError, match="rows of its own for lm_head"):
        new_drafter(DrafterPlan(), *qwen3, OneText(), seed=0, init=tmp_path)


def test_a_drafter_for_gemma_cannot(tmp_path: Path) -> None:
    target = tmp_path / "target"
    config = gemma4_config()
    shape = gemma4_target(target).config
    write_drafter(tmp_path / "drafter", config, random_tensors(config, target))
    with pytest.raises(ModelMismatchError, match=r"only Qwen3DSparkModel, .* can be trained"):
        new_drafter(DrafterPlan(), target, shape, OneText(), seed=0, init=tmp_path / "drafter")


def test_layers_start_as_copies_of_the_last_ones_of_the_target(qwen3: tuple[Path, Any]) -> None:
    plan = DrafterPlan(markov_rank=8)
    drafter, _ = new_drafter(plan, *qwen3, OneText(), seed=0, init=None)
    num_layers = qwen3[1].num_hidden_layers
    for index, number in enumerate((num_layers - 2, num_layers - 1)):
        copied = read_target_layer(qwen3[0], number)
        own = drafter.backbone.layers[index].state_dict()
        assert own.keys() == copied.keys()
        for name, tensor in copied.items():
            assert torch.equal(own[name].float(), tensor.float()), (index, name)
    norm = drafter.get_parameter("backbone.hidden_norm.weight")
    assert torch.equal(norm, copied["input_layernorm.weight"].float())
    size = drafter.config.hidden_size
    fused = drafter.get_parameter("backbone.fc.weight")
    assert torch.allclose(fused[:, -size:], 0.5 * torch.eye(size), atol=0.1)
    assert fused[:, :size].abs().max() < 0.1
    noise, _ = new_drafter(replace(plan, copies_layers=False), *qwen3, OneText(), seed=0, init=None)
    assert not torch.equal(
        noise.get_parameter("backbone.layers.1.mlp.up_proj.weight"),
        drafter.get_parameter("backbone.layers.1.mlp.up_proj.weight"),
    )


def test_a_markov_head_starts_as_what_the_embedding_of_the_target_varies_by_most(
    qwen3: tuple[Path, Any],
) -> None:
    drafter, _ = new_drafter(DrafterPlan(markov_rank=8), *qwen3, OneText(), seed=0, init=None)
    rows = read_target_tensors(qwen3[0])["embed"].float()
    rows -= rows.mean(dim=0)
    directions = torch.linalg.svd(rows, full_matrices=False).Vh[:8]
    own = drafter.markov_head.markov_w1.weight
    for direction in directions:
        along = rows @ direction
        cosines = (own * along[:, None]).sum(0) / (own.norm(dim=0) * along.norm())
        assert cosines.abs().max() > 0.999
    assert torch.allclose(own.pow(2).mean(dim=0).sqrt(), torch.full((8,), 0.15), rtol=1e-3)
    assert not drafter.markov_head.markov_w2.weight.any()


def test_norms_of_heads_that_the_target_has_not_get_the_size_of_what_they_norm(
    qwen3: tuple[Path, Any],
) -> None:
    drafter, _ = new_drafter(DrafterPlan(markov_rank=8), *qwen3, OneText(), seed=0, init=None)
    layers = [read_target_layer(qwen3[0], 0) for _ in range(2)]
    for layer in layers:
        layer["self_attn.k_proj.weight"] *= 3
        for part in ("q", "k"):
            del layer[f"self_attn.{part}_norm.weight"]
    copy_layers(drafter, layers)
    attention = drafter.backbone.layers[1].self_attn
    normed = torch.randn(4096, drafter.config.hidden_size) * drafter.backbone.layers[1].input_layernorm.weight
    for part in ("q", "k"):
        found = normed @ layers[0][f"self_attn.{part}_proj.weight"].float().t()
        weight = attention.get_parameter(f"{part}_norm.weight")
        assert torch.allclose(weight, found.pow(2).mean().sqrt(), rtol=0.05), part


def test_an_attention_of_eagle3_starts_with_the_target_in_the_columns_of_its_state(
    qwen3: tuple[Path, Any],
) -> None:
    drafter, _ = new_drafter(DrafterPlan(kind=DrafterKind.EAGLE3), *qwen3, OneText(), seed=0, init=None)
    copied = read_target_layer(qwen3[0], qwen3[1].num_hidden_layers - 1)["self_attn.q_proj.weight"]
    own = drafter.get_parameter("backbone.layers.0.self_attn.q_proj.weight")
    width = copied.shape[1]
    assert torch.equal(own[:, width:], copied.float())
    assert 0 < own[:, :width].std().item() < 0.03


def test_what_has_other_shapes_stays_noise(qwen3: tuple[Path, Any]) -> None:
    drafter, _ = new_drafter(
        DrafterPlan(markov_rank=8, copies_layers=False), *qwen3, OneText(), seed=0, init=None
    )
    before = drafter.get_parameter("backbone.layers.0.mlp.up_proj.weight").clone()
    layers = [{"mlp.up_proj.weight": torch.ones(before.shape[0] + 1, before.shape[1])}, {}]
    assert copy_layers(drafter, layers) == 0
    assert torch.equal(drafter.get_parameter("backbone.layers.0.mlp.up_proj.weight"), before)
