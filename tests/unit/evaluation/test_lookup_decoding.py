"""Prompt lookup alone and beside a model, on real engines under every policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark.engine.assisted import AssistedDraftEngine
from dspark.engine.lookup import LookupDraftEngine
from dspark.evaluation.generation import EnginePlan, Engines, load_engines
from dspark.evaluation.lossless.tiny import write_tiny_pair
from dspark.evaluation.tasks import TaskPrompt
from dspark.evaluation.threads import one_thread
from dspark.models.method import PROMPT_LOOKUP
from tests.plain_text import drafted_by_policy

PROMPTS = [TaskPrompt("t", n, "", tuple((n + k) % 5 for k in range(8 + n))) for n in range(2)]


@pytest.fixture(scope="module", params=["alone", "beside a model"])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    target, drafter = write_tiny_pair(tmp_path_factory.mktemp("tiny"), seed=1)
    is_alone = request.param == "alone"
    with one_thread():
        yield load_engines(
            EnginePlan(
                target, PROMPT_LOOKUP if is_alone else drafter, dtype="float64", with_lookup=not is_alone
            )
        )


@pytest.mark.parametrize("is_coupled", [False, True], ids=["greedy", "coupled"])
async def test_every_policy_makes_the_text_of_plain_decoding(engines: Engines, is_coupled: bool) -> None:
    drafted = await drafted_by_policy(engines, PROMPTS, 20, is_coupled=is_coupled)
    assert drafted["fixed"] > 0


def test_the_engine_is_the_one_that_was_named(tmp_path: Path) -> None:
    target, drafter = write_tiny_pair(tmp_path, seed=1)
    with one_thread():
        alone = load_engines(EnginePlan(target, PROMPT_LOOKUP, dtype="float64")).drafter
        beside = load_engines(EnginePlan(target, drafter, dtype="float64", with_lookup=True)).drafter
    assert isinstance(alone, LookupDraftEngine)
    assert (alone.info.hidden_size, alone.info.vocab_size, alone.info.draft_cost) == (32, 5, ())
    assert isinstance(beside, AssistedDraftEngine)
    assert beside.info.draft_cost
