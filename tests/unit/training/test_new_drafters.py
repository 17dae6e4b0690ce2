"""Which drafters training begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dspark.errors import ModelMismatchError
from dspark.training.pipeline import new_drafter
from dspark.training.shapes import DrafterPlan
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
