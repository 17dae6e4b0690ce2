"""The policy that takes early stop or the barrier, by how each would have fared."""

from __future__ import annotations

import numpy as np

from dspark.rounds.auto import AutoPlanner
from dspark.rounds.step_ahead import StepAhead
from tests.fakes import step_costs
from tests.unit.rounds.test_planner import STAIRS, barrier, infos, plan

# The second stair is dear to enter and wide.
WIDE_STAIR = step_costs((1, 0.010), (2, 0.010), (3, 0.016), (16, 0.0161))


def auto(step_cost) -> AutoPlanner:
    planner = AutoPlanner()
    planner.learn_costs(*infos(step_cost=step_cost))
    return planner


def test_at_the_edge_of_a_stair_it_becomes_the_barrier():
    planner, block = auto(WIDE_STAIR), [0.7, 0.65, 0.7, 0.7]
    first = plan(planner, [block] * 2)
    assert sum(first) == 0, "the first draft of the stair does not pay for all of it"
    for _ in range(20):
        later = plan(planner, [block] * 2)
    assert not planner.stops_early
    assert later == [4, 4]


def test_where_survivals_change_from_round_to_round_it_stays_with_early_stop():
    planner = auto(STAIRS)
    for number in range(40):
        lengths = plan(planner, [[0.95] * 2 if number % 3 else [0.05] * 2], request_ids=["a"])
    assert planner.stops_early
    assert lengths == [1]
    assert plan(planner, [[0.95] * 2], request_ids=["a"]) == [2]


def test_the_choice_of_a_round_does_not_depend_on_its_own_confidences():
    for own in (0.99, 0.5, 0.01):
        planner = auto(WIDE_STAIR)
        for _ in range(20):
            plan(planner, [[0.7, 0.65, 0.7, 0.7]] * 2)
        step = StepAhead(["r0", "r1"], [4, 4])
        planner.prepare(step)
        before = planner.stops_early
        planner.plan(step, [np.full(4, own, dtype=np.float32)] * 2)
        assert planner.stops_early is before


def test_early_stop_prepares_for_one_round_in_eight_and_looks_back_on_it_in_the_next():
    planner = auto(STAIRS)
    prepares = []
    for number in range(64):
        prepares.append(planner.prepares)
        plan(planner, [[0.95] * 2 if number % 3 else [0.05] * 2], request_ids=["a"])
    assert planner.stops_early
    assert all(prepares[:33])
    assert [number for number in range(34, 64) if prepares[number]] == [40, 41, 48, 49, 56, 57]


def test_its_budget_as_a_barrier_is_that_of_the_barrier():
    rng = np.random.default_rng(3)
    planner, other = auto(WIDE_STAIR), barrier(step_cost=WIDE_STAIR)
    num_as_barrier = 0
    for _ in range(60):
        blocks = [rng.uniform(0.5, 0.9, 4).tolist() for _ in range(2)]
        ours, theirs = plan(planner, blocks), plan(other, blocks)
        if not planner.stops_early:
            num_as_barrier += 1
            assert ours == theirs
    assert num_as_barrier > 30
