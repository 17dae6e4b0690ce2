"""Drafters without heads, DFlash and the chains, under every policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dspark.evaluation.generation import EnginePlan, Engines, load_engines
from dspark.evaluation.lossless.tiny import write_tiny_pair
from dspark.evaluation.tasks import TaskPrompt
from dspark.evaluation.threads import one_thread
from dspark.models.checkpoint import build_drafter, read_target_tensors, save_drafter
from dspark.models.config import QWEN3, QWEN3_EAGLE3, QWEN3_MTP
from dspark.models.config_file import read_config
from tests.plain_text import drafted_by_policy

PROMPTS = [TaskPrompt("t", n, "", tuple((n + k) % 5 for k in range(3 + n))) for n in range(2)]


@pytest.fixture(scope="module", params=[QWEN3, QWEN3_EAGLE3, QWEN3_MTP])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    target, drafter = write_tiny_pair(tmp_path_factory.mktemp("tiny"), seed=1)
    write_headless(drafter, target, request.param)
    with one_thread():
        yield load_engines(EnginePlan(target, drafter, dtype="float64"))


def write_headless(directory: Path, target: Path, architecture: str) -> None:
    config = read_config(directory)
    config = replace(
        config,
        architecture=architecture,
        target_layer_ids=(config.num_target_layers - 1,) if architecture == QWEN3_MTP else (0, 2),
        markov_rank=0,
        has_confidence_head=False,
        confidence_head_with_markov=False,
    )
    drafter = build_drafter(config, read_target_tensors(target), None)
    generator = torch.Generator().manual_seed(0)
    drafter.initialise(generator, torch.ones(config.hidden_size))
    for parameter in drafter.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.25, generator=generator)
    save_drafter(drafter, directory)


@pytest.mark.parametrize("is_coupled", [False, True], ids=["greedy", "coupled"])
async def test_every_policy_makes_the_text_of_plain_decoding(engines: Engines, is_coupled: bool) -> None:
    drafted = await drafted_by_policy(engines, PROMPTS, 10, is_coupled=is_coupled)
    assert drafted["fixed"] > 0
    assert drafted["threshold"] > 0
