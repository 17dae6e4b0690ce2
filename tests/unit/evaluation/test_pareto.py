"""Loads of many streams over real engines of random weights, and what is made of their figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from xml.etree import ElementTree

import pytest

from dspark.cli.main import main
from dspark.cli.pareto_plot import panels_of
from dspark.errors import EngineError
from dspark.evaluation.chart import svg
from dspark.evaluation.lossless.tiny import load_tiny_engines
from dspark.evaluation.pareto import endless_requests, measure_load, point_of, ratio_of, ratios_of
from dspark.evaluation.tasks import TaskPrompt
from dspark.evaluation.threads import one_thread
from dspark.evaluation.turns import Slice, Turns
from dspark.rounds.stats import RequestRound, RoundReport
from dspark.scheduling.surface import StepLoad

PROMPTS = [
    TaskPrompt("t", number, "", tuple((number + k) % 5 for k in range(3 + number))) for number in range(4)
]


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    with one_thread():
        loaded = load_tiny_engines(tmp_path_factory.mktemp("tiny"), seed=1)
        yield loaded
        loaded.worker.shutdown()


def load_of(engines, policies=("off", "fixed"), seconds=0.9):
    return measure_load(
        engines, policies, PROMPTS, streams=3, max_new_tokens=12, eos_token_ids=(), seconds=seconds
    )


async def test_every_policy_keeps_its_streams_busy_in_turns(engines):
    num_free = engines.target.num_free_pages, engines.drafter.num_free_pages
    load = await load_of(engines)
    assert len(load["off"]) == len(load["fixed"]) >= 2
    for slices in load.values():
        assert all(one.seconds >= 0.4 for one in slices)
        assert max(len(report.verified) for one in slices for report in one.rounds) == 3
    points = {policy: point_of(slices, 3) for policy, slices in load.items()}
    assert points["off"].mean_committed == 1.0
    assert points["off"].mean_verified == 0.0
    assert points["fixed"].mean_verified > 2.0
    assert points["fixed"].batch_tokens > points["off"].batch_tokens
    assert points["off"].user_tokens_per_s == pytest.approx(points["off"].tokens_per_s / 3)
    assert (engines.target.num_free_pages, engines.drafter.num_free_pages) == num_free, "all was given back"


async def test_an_engine_that_fails_ends_the_measurement_with_its_error(engines, monkeypatch):
    def fail(_items):
        raise RuntimeError("no luck")

    monkeypatch.setattr(engines.target, "step", fail)
    with pytest.raises(EngineError, match="no luck"):
        await load_of(engines, seconds=60.0)


def test_the_first_outputs_of_streams_end_one_after_the_other():
    requests = list(islice(endless_requests(PROMPTS, 4, 12, (7,), label="x-"), 6))
    assert [one.stop.max_new_tokens for one in requests] == [3, 6, 9, 12, 12, 12]
    assert [one.prompt_token_ids for one in requests] == [PROMPTS[n % 4].token_ids for n in range(6)]
    assert len({one.request_id for one in requests}) == 6


def round_of(*committed):
    verified = [RequestRound(f"r{number}", 4, 2, 1, tokens) for number, tokens in enumerate(committed)]
    return RoundReport(
        verified, 0, StepLoad(3 * len(committed)), draft_s=0.0, plan_s=0.0, step_s=1.0, verify_s=1.0
    )


def turn(seconds, tokens, prompts=0):
    return Slice(seconds, [replace(round_of(tokens), num_prefill_tokens=prompts)])


def test_speeds_are_compared_over_all_turns_and_the_error_follows_from_leaving_one_out():
    ours = [turn(2.0, 20), turn(1.0, 10), turn(2.0, 30)]
    theirs = [turn(1.0, 5), turn(1.0, 5), turn(2.0, 10)]
    one = ratio_of(ours, theirs)
    assert one.value == pytest.approx((60 / 5.0) / (20 / 4.0))
    # without the first, the second, the third pair
    others = [(40 / 3) / 5, (50 / 4) / 5, (30 / 3) / 5]
    mean = sum(others) / 3
    assert one.error == pytest.approx((2 / 3 * sum((other - mean) ** 2 for other in others)) ** 0.5)
    steady = ratio_of([turn(1.0, 8)] * 5, [turn(1.0, 4)] * 5)
    assert (steady.value, steady.error) == (2.0, 0.0)


def test_who_had_more_prompts_in_its_turns_is_not_slower_for_that():
    def side(speed, prompts):
        # seconds of a turn: one for `speed` tokens, a hundredth for a prompt token
        return [turn(2.0 + count / 100, round(2.0 * speed), count) for count in prompts]

    one = ratio_of(side(60, [0, 90, 200, 10]), side(50, [0, 30, 40, 0]))
    # each token beside as many prompt tokens as both have had together
    share = 370 / (4 * 220)
    assert one.value == pytest.approx((1 / 50 + share / 100) / (1 / 60 + share / 100))
    assert one.error < 0.03, "only the share of prompts changes when a turn is left out"


def test_a_policy_is_held_against_plain_decoding_full_blocks_and_the_better_of_both():
    load = {"off": [turn(1.0, 60)] * 2, "fixed": [turn(1.0, 80)] * 2, "barrier": [turn(1.0, 84)] * 2}
    ratios = ratios_of(load, "barrier")
    assert {name: one.value for name, one in ratios.items()} == pytest.approx(
        {"plain": 1.4, "fixed": 1.05, "better": 1.05}
    )


async def test_turns_go_around_and_each_counts_its_own_time():
    now = 0.0
    turns = Turns(["a", "b"], slice_s=1.0, seconds=2.0, clock=lambda: now)
    ended = []
    for name, end in (("a", 0.6), ("a", 1.2), ("b", 2.5), ("a", 3.5), ("b", 3.9), ("b", 4.5)):
        await turns.take(name)
        now = end
        turns.end_round(name, round_of(1))
        ended.append(turns.done.is_set())
    assert [one.seconds for one in turns.slices["a"]] == pytest.approx([1.2, 1.0])
    assert [one.seconds for one in turns.slices["b"]] == pytest.approx([1.3, 1.0])
    assert [len(one.rounds) for one in turns.slices["b"]] == [1, 2]
    assert ended == [False] * 5 + [True]
    turns.finish()
    await turns.take("a")
    await turns.take("b")


def test_a_policy_that_is_a_baseline_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["bench", "pareto", "--policies", "off"])
    assert caught.value.code == 2
    assert "invalid choice: 'off'" in capsys.readouterr().err


def test_the_figure_shows_every_policy_at_every_load():
    points = {
        streams: {
            policy: point_of([turn(1.0, 60 + 10 * streams)] * 2, streams)
            for policy in ("off", "fixed", "auto")
        }
        for streams in (1, 4)
    }
    drawn = svg(panels_of(points))
    titles = [element.text for element in ElementTree.fromstring(drawn).iter() if element.text]
    for title in ("Throughput by load", "Throughput against speed per user", "off", "fixed", "auto"):
        assert any(title in text for text in titles), title
    by_user, by_load, verified = panels_of(points)
    assert [one.name for one in verified.series] == ["off", "fixed", "auto"]
    assert by_load.series[0].points == [(1, 70.0), (4, 100.0)]
    assert by_user.series[0].points == [(70.0, 70.0), (25.0, 100.0)]
