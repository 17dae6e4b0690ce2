"""One cohort or two: what the curves say, and that what is measured decides."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.cohorts import AlwaysTwo, CohortChoice, CohortRound, RoundLoad, round_s

DRAFTS = CapacityCurve.from_points([(1, 0.002), (512, 0.010)])
# 1024 rows cost hardly more than one.
MEMORY_BOUND = CapacityCurve.from_points([(1, 0.025), (1024, 0.030)])
# Every row costs as much as any other.
COMPUTE_BOUND = CapacityCurve.from_points([(1, 0.0001), (1000, 0.1)])
APART, TOGETHER = (lambda draft_s, step_s: max(draft_s, step_s)), (lambda draft_s, step_s: draft_s + step_s)


def serve(choice: CohortChoice, steps: CapacityCurve, beside, num_rounds=3000, num_requests=32) -> list[int]:
    """Rounds of 7 slots and 3 drafts verified a request; `beside` says what a draft and a step cost."""
    choice.learn_costs(steps, DRAFTS)
    return [one_round(choice, steps, beside, num_requests) for _ in range(num_rounds)]


def one_round(choice: CohortChoice, steps: CapacityCurve, beside, num_requests: int, *, num_prompt=0) -> int:
    count = choice.next(num_requests)
    own = num_requests // count
    draft_s, step_s = DRAFTS.step_s(7 * own), steps.step_s(4 * own + num_prompt)
    seconds = draft_s + step_s if count == 1 else beside(draft_s, step_s)
    choice.observe(CohortRound(own, 7 * own, 4 * own + num_prompt, num_prompt, 3 * own, seconds))
    return count


def test_by_the_curves_half_a_batch_pays_only_where_steps_cost_what_their_tokens_do():
    load = RoundLoad(num_slots=224, num_tokens=128)
    assert round_s(load, 2, MEMORY_BOUND, DRAFTS) > round_s(load, 1, MEMORY_BOUND, DRAFTS)
    assert round_s(load, 2, COMPUTE_BOUND, DRAFTS) < round_s(load, 1, COMPUTE_BOUND, DRAFTS)
    assert round_s(load, 1, COMPUTE_BOUND, DRAFTS) == pytest.approx(
        DRAFTS.step_s(224) + COMPUTE_BOUND.step_s(128)
    )
    assert round_s(load, 2, COMPUTE_BOUND, DRAFTS) == pytest.approx(2.0 * COMPUTE_BOUND.step_s(64))


def test_a_drafter_that_is_slower_than_the_target_is_what_two_cohorts_wait_for():
    slow = CapacityCurve.from_points([(1, 0.5), (512, 1.0)])
    assert round_s(RoundLoad(100, 50), 2, COMPUTE_BOUND, slow) == pytest.approx(2.0 * slow.step_s(50))
    assert round_s(RoundLoad(0, 50), 1, COMPUTE_BOUND, slow) == pytest.approx(COMPUTE_BOUND.step_s(50))


def test_a_target_bound_by_memory_keeps_one_cohort_and_never_tries_two():
    assert set(serve(CohortChoice(), MEMORY_BOUND, APART)) == {1}


def test_a_target_bound_by_compute_with_a_drafter_apart_gets_two_cohorts():
    counts = serve(CohortChoice(), COMPUTE_BOUND, APART)
    assert counts[:16] == [1] * 16, "first something is known of one"
    assert counts.count(2) > 0.9 * len(counts)


def test_hardware_that_both_share_is_found_out_and_tried_less_and_less():
    counts = serve(CohortChoice(), COMPUTE_BOUND, TOGETHER, 8000)
    starts = [place for place in range(1, len(counts)) if (counts[place - 1], counts[place]) == (1, 2)]
    assert 1 <= len(starts) <= 6
    assert counts.count(2) < 0.05 * len(counts)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert gaps == sorted(gaps), "each visit comes later than the one before"


def test_two_cohorts_end_once_they_get_into_each_others_way():
    choice = CohortChoice()
    assert serve(choice, COMPUTE_BOUND, APART, 400)[-1] == 2
    counts = [one_round(choice, COMPUTE_BOUND, TOGETHER, 32) for _ in range(600)]
    assert set(counts[-100:]) == {1}


def test_prompts_beside_the_rounds_do_not_move_the_choice():
    choice = CohortChoice()
    choice.learn_costs(MEMORY_BOUND, DRAFTS)
    for place in range(600):
        num_prompt = 256 if place % 5 == 0 else 0
        assert one_round(choice, MEMORY_BOUND, APART, 32, num_prompt=num_prompt) == 1


def test_a_load_that_has_grown_is_judged_anew():
    stairs = CapacityCurve.from_points([(1, 0.02), (64, 0.0201), (1024, 0.6)])
    choice = CohortChoice()
    assert set(serve(choice, stairs, APART, 300, num_requests=8)) == {1}
    counts = [one_round(choice, stairs, APART, 200) for _ in range(600)]
    assert counts[-200:].count(2) > 150


def test_drafts_that_do_not_pay_in_front_of_a_step_are_tried_beside_it():
    dear = CapacityCurve.from_points([(1, 0.001), (1000, 0.2)])
    steps = CapacityCurve.from_points([(1, 0.010), (32, 0.0101), (1000, 0.11)])
    choice = CohortChoice()
    choice.learn_costs(steps, dear)

    def played(count: int, is_drafting: bool) -> CohortRound:
        own = 32 // count
        draft_s, step_s = dear.step_s(3 * own), steps.step_s((3 if is_drafting else 1) * own)
        if not is_drafting:
            return CohortRound(own, 0, own, 0, own, step_s)
        seconds = draft_s + step_s if count == 1 else APART(draft_s, step_s)
        return CohortRound(own, 3 * own, 3 * own, 0, 3 * own, seconds)

    counts = []
    for place in range(200):
        counts.append(choice.next(32))
        # with one cohort a guard lets one round in eight draft
        choice.observe(played(counts[-1], is_drafting=counts[-1] == 2 or place % 8 == 0))
    assert counts[-1] == 2


def test_without_drafts_there_is_nothing_to_hide():
    choice = CohortChoice()
    choice.learn_costs(COMPUTE_BOUND, DRAFTS)
    for _ in range(300):
        assert choice.next(32) == 1
        choice.observe(CohortRound(32, 0, 32, 0, 32, COMPUTE_BOUND.step_s(32)))


def test_one_request_or_costs_that_are_not_known_leave_one_cohort():
    choice = CohortChoice()
    serve(choice, COMPUTE_BOUND, APART, 200)
    assert choice.next(32) == 2
    assert choice.next(1) == 1
    choice.learn_costs(COMPUTE_BOUND, None)
    assert {one_round(choice, COMPUTE_BOUND, APART, 32) for _ in range(200)} == {1}
    assert [AlwaysTwo().next(count) for count in (0, 1, 2)] == [1, 1, 2]
