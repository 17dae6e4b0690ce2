"""Policies of the round: what they need, when they draft."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark.errors import ConfigurationError
from dspark.rounds.adaptive import BarrierPlanner, EarlyStopPlanner
from dspark.rounds.planner import FixedPlanner, OffPlanner, ThresholdPlanner, planner_of
from dspark.scheduling.draft_length import DraftLength
from tests.fakes import FakeDrafter, FakeVerifier


def ids(confidences) -> list[str]:
    return [f"r{number}" for number in range(len(confidences))]


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
    assert fixed.plan(ids([[0.1] * 7, []]), [[0.1] * 7, []], 0) == [3, 0]
    with pytest.raises(ConfigurationError, match="choose one of early-stop, barrier, threshold, fixed, off"):
        planner_of("clever")


@pytest.mark.parametrize("step_cost", [(), ((1, 0.1),), ((1, 0.1), (8, 0.1))])
def test_the_adaptive_policy_refuses_a_verifier_whose_steps_say_nothing(step_cost):
    verifier, drafter = infos(step_cost=step_cost)
    with pytest.raises(ConfigurationError, match="step_cost"):
        EarlyStopPlanner().learn_costs(verifier, drafter)
    # The others do not care.
    OffPlanner().learn_costs(verifier, drafter)
    FixedPlanner(4).learn_costs(verifier, drafter)


def test_sure_drafts_are_verified_and_hopeless_ones_are_not():
    planner = adaptive()
    assert planner.plan(ids([[0.95] * 4, [0.01] * 4, []]), [[0.95] * 4, [0.01] * 4, []], 0) == [4, 0, 0]


def test_drafting_pauses_after_a_row_of_losses_and_longer_each_time():
    planner = adaptive()

    def rounds_until_the_next_draft() -> int:
        num_paused = 0
        while not planner.wants_drafts(1):
            num_paused += 1
        return num_paused

    pauses = []
    for _ in range(7):
        pauses.append(rounds_until_the_next_draft())
        planner.plan(ids([[0.01] * 4]), [[0.01] * 4], 0)
    assert pauses == [0, 0, 0, 0, 8, 16, 32]


def test_one_good_round_ends_the_suspicion():
    planner = adaptive()
    for _ in range(20):
        for _ in range(3):
            planner.plan(ids([[0.01] * 4]), [[0.01] * 4], 0)
        planner.plan(ids([[0.95] * 4]), [[0.95] * 4], 0)
        assert planner.wants_drafts(1)


def test_a_round_without_blocks_tells_nothing_about_drafting():
    planner = adaptive()
    for _ in range(20):
        assert planner.plan(ids([[], []]), [[], []], 5) == [0, 0]
    assert planner.wants_drafts(2)


def test_a_drafter_without_measured_cost_is_taken_to_be_free():
    verifier, drafter = infos()
    planner = EarlyStopPlanner()
    planner.learn_costs(verifier, replace(drafter, draft_cost=()))
    assert planner.plan(ids([[0.9] * 4]), [[0.9] * 4], 0) == [4]


def test_only_the_adaptive_policy_shortens_blocks():
    history = DraftLength()
    history.learn(4, 0, 0)
    assert adaptive().draft_len(history, 7) == 3
    assert FixedPlanner(4).draft_len(history, 7) == 7
    assert OffPlanner().draft_len(history, 7) == 0


def test_a_threshold_looks_at_every_block_by_itself():
    planner = planner_of("threshold", threshold=0.8)
    assert isinstance(planner, ThresholdPlanner)
    blocks = [[0.9, 0.9, 0.1], [0.7, 0.9], []]
    assert planner.plan(ids(blocks), blocks, 0) == [2, 0, 0]


def barrier(**changes) -> BarrierPlanner:
    planner = planner_of("barrier")
    assert isinstance(planner, BarrierPlanner)
    planner.learn_costs(*infos(**changes))
    return planner


# Steps of more than three tokens are dear.
STAIRS = ((1, 0.010), (3, 0.011), (4, 0.040), (16, 0.045))


def test_the_budget_of_a_round_does_not_depend_on_its_own_confidences_nor_on_those_just_before():
    histories = {}
    for last in ([0.99, 0.99], [0.01, 0.01]):
        planner = barrier(step_cost=STAIRS)
        for confidence in ([0.9, 0.9], [0.9, 0.9], last):
            length = planner.plan(["a"], [confidence], 0)
        histories[tuple(last)] = length, planner.plan(["a"], [[0.9, 0.9]], 0)
    assert histories[0.99, 0.99] == histories[0.01, 0.01] == ([2], [2])


def test_two_rounds_later_the_budget_follows_what_was_said():
    planner = barrier(step_cost=STAIRS)
    for confidence in ([0.9, 0.9], [0.01, 0.01], [0.9, 0.9]):
        planner.plan(["a"], [confidence], 0)
    assert planner.plan(["a"], [[0.9, 0.9]], 0) == [0]
    assert planner.plan(["a"], [[0.9, 0.9]], 0) == [2]


def test_requests_that_join_leave_or_lack_a_block_are_planned_for():
    planner = barrier()
    plans = [
        planner.plan(["a"], [[0.9] * 4], 0),
        planner.plan(["a", "b"], [[0.9] * 4, [0.9] * 4], 3),
        planner.plan(["b", "c", "d"], [[0.9] * 4, [], [0.9] * 2], 0),
        planner.plan(["c"], [[]], 0),
        planner.plan(["e"], [[0.9] * 4], 0),
    ]
    assert [len(plan) for plan in plans] == [1, 2, 3, 1, 1]
    assert plans[2][1] == plans[3][0] == 0
    assert sum(plans[4]) > 0
