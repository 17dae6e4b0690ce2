"""Passes of real engines with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dspark.decoding.types import FinishReason, RoundStats, TokenDelta
from dspark.evaluation.generation import EnginePlan, Engines, Generation, load_engines
from dspark.evaluation.lossless.tiny import TinyDrafter, write_tiny_drafter, write_tiny_target
from dspark.evaluation.offline.decode import DecodePlan, PassPlan, decode_pass, pool_tokens, rounds_of
from dspark.evaluation.offline.results import Pass, PassKind, Rounds
from dspark.evaluation.offline.run import pass_plans, run_passes
from dspark.evaluation.offline.sweep import walk
from dspark.evaluation.tasks import TaskPrompt
from dspark.evaluation.threads import one_thread
from dspark.scheduling.calibration import SequentialScaling
from tests.unit.evaluation.rounds_of_blocks import results

PROMPTS = [TaskPrompt("t", n, "", tuple((n + k) % 5 for k in range(3 + n))) for n in range(2)]
PLAN = DecodePlan(max_new_tokens=14, streams=2)


@pytest.fixture(scope="module", params=[(4, True), (3, False)], ids=["head", "no head"])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    gamma, has_head = request.param
    directory: Path = tmp_path_factory.mktemp("tiny")
    target = write_tiny_target(directory / "target", 1)
    kind = TinyDrafter(gamma=gamma, has_confidence_head=has_head, seed=1)
    drafter = write_tiny_drafter(directory / "drafter", target, kind)
    with one_thread():
        yield load_engines(EnginePlan(target, drafter, dtype="float64"))


async def decoded(engines: Engines, kind: PassKind, temperature: float, level: float | None = None) -> Pass:
    identity = SequentialScaling.identity(engines.drafter.info.gamma)
    return await decode_pass(engines, PROMPTS, PLAN, PassPlan(kind, temperature, level), identity)


def same_rounds(first: Rounds, second: Rounds) -> bool:
    names = ("prompt", "start", "scheduled", "accepted", "committed")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)


async def test_walking_over_blocks_at_every_position_is_decoding_with_the_threshold(engines: Engines) -> None:
    dense = (await decoded(engines, PassKind.DENSE, 0.0)).rounds
    lengths = set()
    confidence = 1 / (1 + np.exp(-dense.logits.astype(float)))
    for level in (0.0, *np.quantile(confidence, [0.2, 0.6]).round(3).tolist()):
        run = (await decoded(engines, PassKind.THRESHOLD, 0.0, level)).rounds
        assert same_rounds(walk(dense, level), run), level
        lengths.add(int(run.scheduled.sum()))
    assert len(lengths) == 3, "each threshold must have cut something"


async def test_rounds_of_whole_blocks_begin_within_the_limit_and_are_whole(engines: Engines) -> None:
    gamma = engines.drafter.info.gamma
    one = await decoded(engines, PassKind.FULL, 1.0)
    assert (one.rounds.scheduled == gamma).all()
    assert one.rounds.start.max() <= PLAN.max_new_tokens
    assert (one.rounds.committed == one.rounds.accepted + 1).all(), "nothing ends a text of this target"
    last = [one.rounds.where(one.rounds.prompt == place) for place in range(len(PROMPTS))]
    assert all(own.start[-1] + own.committed[-1] > PLAN.max_new_tokens for own in last)
    assert np.isfinite(one.rounds.logits).all()


async def test_all_passes_of_an_evaluation_are_told_and_made_in_order(engines: Engines) -> None:
    plans = pass_plans([0.0, 1.0], sweep="auto", thresholds=[0.5], only_blocks=False)
    told: list[str] = []
    empty = results([], gamma=engines.drafter.info.gamma)
    passes = await run_passes(engines, PROMPTS[:1], PLAN, plans, empty, told.append)
    assert [(one.kind.value, one.temperature) for one in passes] == [
        ("full", 0.0),
        ("served", 0.0),
        ("dense", 0.0),
        ("full", 1.0),
        ("served", 1.0),
        ("coupled", 1.0),
    ]
    assert told[2] == "pass 3 of 6: dense, T = 0, 1 prompts"
    assert passes[1].rounds.logits is None
    served = passes[1].rounds
    assert served.committed.sum() == PLAN.max_new_tokens - 1, "served outputs keep their limit"


def test_a_sweep_that_is_run_has_a_pass_per_threshold() -> None:
    plans = pass_plans([0.0, 1.0], sweep="run", thresholds=[0.1, 0.9], only_blocks=True)
    assert [(one.kind.value, one.temperature, one.threshold) for one in plans] == [
        ("full", 0.0, None),
        ("threshold", 0.0, 0.1),
        ("threshold", 0.0, 0.9),
        ("full", 1.0, None),
        ("threshold", 1.0, 0.1),
        ("threshold", 1.0, 0.9),
    ]
    assert len(pass_plans([0.0], sweep="off", thresholds=[0.1], only_blocks=True)) == 1


def test_the_round_that_begins_at_the_limit_counts_and_the_next_does_not() -> None:
    deltas = [TokenDelta("r", 0, (9,))]
    deltas += [TokenDelta("r", start, (1, 2, 3, 4), RoundStats(3, 3, 3)) for start in (1, 5, 9, 13)]
    deltas.append(TokenDelta("r", 17, (), finish_reason=FinishReason.LENGTH))
    output = Generation("r", tuple(deltas))
    identity = SequentialScaling.identity(3)
    assert rounds_of([output], 9, 3, None, identity).start.tolist() == [1, 5, 9]
    assert len(rounds_of([Generation("r", ())], 9, 3, None, identity)) == 0


def test_the_pool_holds_the_longest_prompts_that_are_decoded_side_by_side() -> None:
    prompts = [TaskPrompt("t", n, "", (1,) * length) for n, length in enumerate((10, 20, 500, 1))]
    assert pool_tokens(prompts, DecodePlan(100, streams=2)) == 501 + 2 * 164
