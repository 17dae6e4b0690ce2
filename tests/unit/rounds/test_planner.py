"""Policies of the round: what they need, when they draft."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dspark.decoding.types import Acceptance, SamplingParams, StepCost
from dspark.errors import ConfigurationError, InvalidRequestError
from dspark.rounds.adaptive import BarrierPlanner, EarlyStopPlanner
from dspark.rounds.planner import FixedPlanner, OffPlanner, ThresholdPlanner, planner_of
from dspark.rounds.stats import RequestRound, RoundReport
from dspark.rounds.step_ahead import StepAhead
from dspark.scheduling.allocation import allocate_early_stop
from dspark.scheduling.draft_length import DraftLength
from dspark.scheduling.surface import StepLoad
from tests.fakes import FakeDrafter, FakeVerifier, step_costs


def plan(
    planner, blocks, num_prefill_tokens=0, *, request_ids=None, weights=None, prefill_share=0.0, context_len=0
):
    """A round as the loop makes it: prepare, then plan."""
    step = StepAhead(
        request_ids or [f"r{number}" for number in range(len(blocks))],
        [len(block) for block in blocks],
        StepLoad(num_prefill_tokens),
        prefill_share,
        None if weights is None else np.array(weights),
        num_held=context_len * len(blocks),
    )
    if planner.prepares and any(step.num_asked):
        planner.prepare(step)
    return planner.plan(step, [np.array(block, dtype=np.float32) for block in blocks])


def infos(**changes):
    verifier = FakeVerifier()
    return replace(verifier.info, **changes), FakeDrafter(verifier).info


def adaptive(**changes) -> EarlyStopPlanner:
    planner = EarlyStopPlanner()
    planner.learn_costs(*infos(**changes))
    return planner


def test_policies_are_found_by_name():
    assert isinstance(planner_of("early-stop"), EarlyStopPlanner)
    assert isinstance(planner_of("off"), OffPlanner)
    fixed = planner_of("fixed", fixed_len=3)
    assert isinstance(fixed, FixedPlanner)
    assert plan(fixed, [[0.1] * 7, []]) == [3, 0]
    with pytest.raises(
        ConfigurationError, match=r"choose one of auto, early-stop, .*, retrospective, .*, off"
    ):
        planner_of("clever")


@pytest.mark.parametrize("step_cost", [(), [(1, 0.1)], [(1, 0.1), (8, 0.1)]])
def test_the_adaptive_policy_refuses_a_verifier_whose_steps_say_nothing(step_cost):
    verifier, drafter = infos(step_cost=step_costs(*step_cost))
    with pytest.raises(ConfigurationError, match="step_cost"):
        EarlyStopPlanner().learn_costs(verifier, drafter)
    # The others do not care.
    OffPlanner().learn_costs(verifier, drafter)
    FixedPlanner(4).learn_costs(verifier, drafter)


def test_sure_drafts_are_verified_and_hopeless_ones_are_not():
    planner = adaptive()
    assert plan(planner, [[0.95] * 4, [0.01] * 4, []]) == [4, 0, 0]


def test_drafting_pauses_after_a_row_of_losses_and_longer_each_time():
    planner = adaptive()

    def rounds_until_the_next_draft() -> int:
        num_paused = 0
        while planner.num_to_draft(1) == 0:
            num_paused += 1
        return num_paused

    pauses = []
    for _ in range(7):
        pauses.append(rounds_until_the_next_draft())
        plan(planner, [[0.01] * 4])
    assert pauses == [0, 0, 0, 0, 8, 16, 32]


def test_a_probe_is_of_few_requests_and_grows_while_it_pays():
    planner = adaptive()
    good, bad = [0.95] * 4, [0.01] * 4

    def next_sample() -> int:
        while not (size := planner.num_to_draft(32)):
            pass
        return size

    def probe(block) -> int:
        size = next_sample()
        plan(planner, [*[block] * size, *[[]] * (32 - size)])
        return size

    assert [probe(bad) for _ in range(4)] == [32] * 4
    assert [probe(bad), probe(good), probe(good), probe(bad)] == [4, 4, 8, 16]
    assert [probe(good), probe(good), probe(good), probe(good), probe(good)] == [4, 8, 16, 32, 32]


def test_the_barrier_judges_a_probe_by_what_its_confidences_would_have_allowed():
    planner = barrier(step_cost=STAIRS)
    while planner.num_to_draft(1):
        plan(planner, [[0.01] * 2], request_ids=["a"])
    while not planner.num_to_draft(1):
        assert plan(planner, [[]], request_ids=["a"]) == [0]
    assert plan(planner, [[0.95] * 2], request_ids=["a"]) == [0], "the budget is from before the pause"
    assert planner.num_to_draft(1) == 1
    assert [plan(planner, [[0.95] * 2], request_ids=["a"]) for _ in range(2)] == [[0], [2]]


def test_one_good_round_ends_the_suspicion():
    planner = adaptive()
    for _ in range(20):
        for _ in range(3):
            plan(planner, [[0.01] * 4])
        plan(planner, [[0.95] * 4])
        assert planner.num_to_draft(1) == 1


def test_a_round_without_blocks_tells_nothing_about_drafting():
    planner = adaptive()
    for _ in range(20):
        assert plan(planner, [[], []], 5) == [0, 0]
    assert planner.num_to_draft(2) == 2


def test_a_drafter_without_measured_cost_is_taken_to_be_free():
    verifier, drafter = infos()
    planner = EarlyStopPlanner()
    planner.learn_costs(verifier, replace(drafter, draft_cost=()))
    assert plan(planner, [[0.9] * 4]) == [4]


def test_only_the_adaptive_policy_shortens_blocks():
    history = DraftLength()
    history.learn(4, 0, 0)
    assert adaptive().draft_len(history, 7) == 3
    assert FixedPlanner(4).draft_len(history, 7) == 7
    assert OffPlanner().draft_len(history, 7) == 0


def test_many_requests_are_planned_like_few():
    rng = np.random.default_rng(1)
    blocks = [rng.uniform(0.1, 1.0, 4).tolist() for _ in range(20)]
    together = plan(adaptive(), [*blocks, []], 3)
    few = allocate_early_stop(
        [np.array(block, dtype=np.float32).tolist() for block in [*blocks, []]],
        adaptive()._curve(80, StepAhead(["r"] * 21, [], StepLoad(3))),
    )
    assert together == few
    assert 0 < sum(together) < 80


def test_weights_move_the_budget_to_the_heavier_request():
    for planner in (adaptive(step_cost=STAIRS), barrier(step_cost=STAIRS)):
        blocks = [[0.7, 0.1], [0.7, 0.1]]
        assert plan(planner, blocks, weights=[1.0, 2.0]) == [0, 1]
        assert plan(planner, blocks, weights=[2.0, 1.0]) == [1, 0]


def report(batch_tokens, step_s, *, num_drafted=4, draft_s=0.002, is_copied=False):
    verified = [RequestRound("r0", num_drafted, num_drafted, 0, 1, is_copied=is_copied)]
    load = StepLoad(batch_tokens)
    return RoundReport(verified, 0, load, draft_s, plan_s=0.0, step_s=step_s, verify_s=step_s)


def test_plans_follow_what_rounds_cost_and_the_error_of_the_prediction_is_known():
    planner = adaptive(step_cost=step_costs((1, 0.010), (3, 0.011), (16, 0.012)))
    assert plan(planner, [[0.6] * 4]) == [4]
    for _ in range(2000):
        planner.observe(report(1, 0.010))
        planner.observe(report(5, 0.030))
    assert planner.cost_error < 0.1, "learnt by now"
    assert sum(plan(planner, [[0.6] * 4])) < 4
    slow_drafts = adaptive(step_cost=STAIRS)
    for _ in range(200):
        slow_drafts.observe(report(3, 0.011, draft_s=0.2))
    assert slow_drafts._curve(4, StepAhead(["r0"], [4])).draft_s > 0.02
    assert OffPlanner().cost_error == 0.0


def test_copied_drafts_take_no_time_and_teach_nothing_about_that_of_a_model():
    assert [report(5, 0.011, is_copied=copied).num_slots for copied in (False, True)] == [4, 0]
    planner = adaptive(step_cost=STAIRS)
    step = StepAhead(["r0"], [4])
    before = planner._curve(4, step).draft_s
    for _ in range(200):
        planner.observe(report(5, 0.011, draft_s=1e-5, is_copied=True))
    assert planner._curve(4, step).draft_s == before > 0.0
    assert planner._curve(0, step).draft_s == 0.0


# 20 ms, 0.1 ms a row; a row reads 4 µs a context token
LONG_IS_DEAR = tuple(
    StepCost(rows, 0.020 + 1e-4 * rows + 4e-6 * rows * context, 1, context)
    for rows, context in [(1, 256), (8, 256), (64, 256), (8, 2048)]
)


@pytest.mark.parametrize("policy", ["early-stop", "barrier", "retrospective"])
def test_rows_of_long_contexts_are_dear_so_fewer_drafts_of_them_are_verified(policy):
    planner = planner_of(policy)
    planner.learn_costs(*infos(step_cost=LONG_IS_DEAR))
    blocks = [[0.8, 0.7, 0.6, 0.5]] * 4

    def settled(context_len):
        return [plan(planner, blocks, context_len=context_len) for _ in range(4)][-1]

    num_short, num_middle, num_long = (sum(settled(context)) for context in (100, 1000, 8000))
    assert num_short > num_middle > num_long
    assert sum(settled(100)) == num_short, "nothing of the long ones remains"


def test_the_error_of_a_prediction_counts_the_context_of_the_round():
    planner = adaptive(step_cost=LONG_IS_DEAR)
    for context in (256, 1000, 4000) * 50:
        step_s = 0.020 + 1e-4 * 8 + 4e-6 * 8 * context
        load = StepLoad(8, context, 8 * context)
        planner.observe(RoundReport([], 0, load, 0.0, plan_s=0.0, step_s=step_s, verify_s=step_s))
    assert planner.cost_error < 1e-6


def test_drafts_give_way_to_prompts_only_while_these_queue_up():
    linear = step_costs((1, 0.012), (257, 0.268))
    for planner in (adaptive(step_cost=linear), barrier(step_cost=linear)):
        blocks = [[0.7] * 4] * 4
        room = plan(planner, blocks, 64)
        assert sum(room) >= 8
        for _ in range(300):
            queue = plan(planner, blocks, 64, prefill_share=1.0)
        assert sum(queue) == 0, "a draft that may be rejected costs what a prompt token does"


def test_the_retrospective_policy_turns_away_requests_that_are_sampled_by_rejection():
    planner = planner_of("retrospective")
    for acceptance in (Acceptance.GREEDY, Acceptance.COUPLED):
        planner.check(SamplingParams(acceptance=acceptance))
    with pytest.raises(InvalidRequestError, match="send temperature 0, or a seed") as caught:
        planner.check(SamplingParams(acceptance=Acceptance.REJECTION))
    assert caught.value.field == "seed"


def test_a_threshold_looks_at_every_block_by_itself():
    planner = planner_of("threshold", threshold=0.8)
    assert isinstance(planner, ThresholdPlanner)
    blocks = [[0.9, 0.9, 0.1], [0.7, 0.9], []]
    assert plan(planner, blocks) == [2, 0, 0]


def barrier(**changes) -> BarrierPlanner:
    planner = planner_of("barrier")
    assert isinstance(planner, BarrierPlanner)
    planner.learn_costs(*infos(**changes))
    return planner


# Steps of more than three tokens are dear.
STAIRS = step_costs((1, 0.010), (3, 0.011), (4, 0.040), (16, 0.045))


def test_the_budget_of_a_round_does_not_depend_on_its_own_confidences_nor_on_those_just_before():
    histories = {}
    for last in ([0.99, 0.99], [0.01, 0.01]):
        planner = barrier(step_cost=STAIRS)
        for confidence in ([0.9, 0.9], [0.9, 0.9], last):
            length = plan(planner, [confidence], request_ids=["a"])
        histories[tuple(last)] = length, plan(planner, [[0.9, 0.9]], request_ids=["a"])
    assert histories[0.99, 0.99] == histories[0.01, 0.01] == ([2], [2])


def test_two_rounds_later_the_budget_follows_what_was_said():
    planner = barrier(step_cost=STAIRS)
    for confidence in ([0.9, 0.9], [0.01, 0.01], [0.9, 0.9]):
        plan(planner, [confidence], request_ids=["a"])
    assert plan(planner, [[0.9, 0.9]], request_ids=["a"]) == [0]
    assert plan(planner, [[0.9, 0.9]], request_ids=["a"]) == [2]


def test_requests_that_join_leave_or_lack_a_block_are_planned_for():
    planner = barrier()
    plans = [
        plan(planner, [[0.9] * 4], request_ids=["a"]),
        plan(planner, [[0.9] * 4, [0.9] * 4], 3, request_ids=["a", "b"]),
        plan(planner, [[0.9] * 4, [], [0.9] * 2], request_ids=["b", "c", "d"]),
        plan(planner, [[]], request_ids=["c"]),
        plan(planner, [[0.9] * 4], request_ids=["e"]),
    ]
    assert [len(plan) for plan in plans] == [1, 2, 3, 1, 1]
    assert plans[2][1] == plans[3][0] == 0
    assert sum(plans[4]) > 0


@pytest.mark.parametrize("policy", ["auto", "early-stop", "barrier", "retrospective"])
def test_a_request_that_weighs_more_gets_more_drafts_than_its_like(policy):
    planner = planner_of(policy)
    # three drafts are nearly free beside two requests, the fourth is not
    planner.learn_costs(*infos(step_cost=step_costs((1, 0.010), (5, 0.0101), (6, 0.040), (64, 0.4))))
    blocks = [[0.8, 0.8, 0.8, 0.8]] * 2
    for _ in range(3):
        plain = plan(planner, blocks)
    late = plan(planner, blocks, weights=[1.0, 4.0])
    assert plain == [2, 1]
    assert late[1] > late[0]
    assert sum(late) == sum(plain)
