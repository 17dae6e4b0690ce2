"""Loads of many streams over real engines of random weights, and what is made of their figures."""

from __future__ import annotations

import pytest

from dspark.cli.main import main
from dspark.evaluation.generation import LocalDecoder
from dspark.evaluation.lossless.tiny import load_tiny_engines
from dspark.evaluation.pareto import LoadPoint, point_of, prompts_of_load, ratios_of, run_pass, turns
from dspark.evaluation.tasks import TaskPrompt
from dspark.evaluation.threads import one_thread

PROMPTS = [
    TaskPrompt("t", number, "", tuple((number + k) % 5 for k in range(3 + number))) for number in range(4)
]


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    with one_thread():
        loaded = load_tiny_engines(tmp_path_factory.mktemp("tiny"), seed=1)
        yield loaded
        loaded.worker.shutdown()


async def test_streams_take_turns_until_all_prompts_are_decoded_and_policies_agree_on_the_text(engines):
    prompts = prompts_of_load(PROMPTS, 3, 5)
    assert [prompt.name for prompt in prompts] == [PROMPTS[n % 4].name for n in range(6)]
    texts, points = {}, {}
    for policy in ("off", "fixed"):
        async with LocalDecoder(engines, policy=policy) as decoder:
            one = await run_pass(decoder, prompts, 3, max_new_tokens=12, eos_token_ids=(), label=f"{policy}-")
            assert max(len(timed.report.verified) for timed in decoder.rounds) == 3
        texts[policy] = {output.request_id.partition("-")[2]: output.token_ids for output in one.outputs}
        points[policy] = point_of([one])
    assert len(texts["off"]) == 6
    assert texts["off"] == texts["fixed"]
    assert points["off"].mean_committed == 1.0
    assert points["off"].mean_verified == 0.0
    assert points["fixed"].mean_verified > 2.0
    assert points["fixed"].batch_tokens > points["off"].batch_tokens
    assert 0 < points["off"].user_tokens_per_s <= points["off"].tokens_per_s


def test_a_policy_is_held_against_plain_decoding_full_blocks_and_the_better_of_both():
    def point(tokens_per_s):
        return LoadPoint(tokens_per_s, tokens_per_s, 1.0, 1.0, 1.0)

    loads = {1: {"off": point(60.0), "fixed": point(80.0), "barrier": point(84.0)}}
    assert ratios_of(loads, "barrier") == pytest.approx(
        {
            "barrier_vs_plain, 1 streams": 1.4,
            "barrier_vs_fixed, 1 streams": 1.05,
            "barrier_vs_better, 1 streams": 1.05,
        }
    )


def test_every_policy_comes_first_in_turn():
    assert [next(turns(["a", "b", "c"], number)) for number in range(4)] == ["a", "b", "c", "a"]


def test_a_policy_that_is_a_baseline_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["bench", "pareto", "--policies", "off"])
    assert caught.value.code == 2
    assert "invalid choice: 'off'" in capsys.readouterr().err
