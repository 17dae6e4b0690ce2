"""Allocation: optimal where it can be, and unable to look ahead."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.scheduling.allocation import (
    allocate_early_stop,
    allocate_fixed,
    allocate_off,
    allocate_threshold,
    best_budget,
    early_stop_budget,
    threshold_lens,
)
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.ranking import MAX_WEIGHT, rank_drafts
from dspark.scheduling.survival import survival

# Few different values, so that ties are common; all of them are float32 numbers.
values = st.integers(1, 64).map(lambda number: number / 64)
confidences = st.lists(st.lists(values, min_size=0, max_size=4), min_size=1, max_size=4)


def rank(blocks, weights=None):
    arrays = [np.array(block, dtype=np.float32) for block in blocks]
    return rank_drafts(arrays, None if weights is None else np.array(weights))


def allocate_top(blocks, budget):
    return rank(blocks).prefix_lens(budget)


def speed(prefix_lens, blocks, curve):
    """The objective: expected committed tokens per second."""
    expected = sum(
        1.0 + survival(np.array(block))[:length].sum()
        for block, length in zip(blocks, prefix_lens, strict=True)
    )
    return expected * curve.steps_per_second(len(blocks) + sum(prefix_lens))


@given(
    blocks=confidences,
    fixed_s=st.floats(0.01, 1.0),
    token_s=st.floats(0.0001, 0.5),
    draft_s=st.floats(0.0, 0.5),
    num_prompt_tokens=st.integers(0, 20),
)
@settings(max_examples=150, deadline=None)
def test_it_equals_brute_force_where_the_objective_has_one_peak(
    blocks, fixed_s, token_s, draft_s, num_prompt_tokens
):
    # Affine cost under a concave sum of falling survivals: the ratio has a single peak.
    curve = CapacityCurve.from_points([(1, fixed_s + token_s), (64, fixed_s + 64 * token_s)], draft_s=draft_s)
    curve = curve.beside_prompt(len(blocks), num_prompt_tokens)
    found = allocate_early_stop(blocks, curve)
    best = max(speed(lens, blocks, curve) for lens in product(*(range(len(block) + 1) for block in blocks)))
    assert speed(found, blocks, curve) == pytest.approx(best, rel=1e-9)


class Recorder:
    """A block that notes how many of its confidences were looked at."""

    def __init__(self, values) -> None:
        self.values, self.num_pulled = values, 0

    def __iter__(self):
        for value in self.values:
            self.num_pulled += 1
            yield value


@given(blocks=confidences, token_s=st.floats(0.0, 0.2))
def test_a_confidence_is_looked_at_only_after_the_draft_before_it_was_admitted(blocks, token_s):
    curve = CapacityCurve.from_points([(1, 0.1), (2, 0.1 + token_s), (3, 0.1 + 3 * token_s)])
    recorders = [Recorder(block) for block in blocks]
    prefix_lens = allocate_early_stop(recorders, curve)
    for recorder, prefix_len in zip(recorders, prefix_lens, strict=True):
        assert recorder.num_pulled == min(prefix_len + 1, len(recorder.values))


@given(blocks=confidences, token_s=st.floats(0.0, 0.2), other=st.floats(0.0, 1.0))
def test_whether_a_draft_is_admitted_ignores_what_is_computed_from_it(blocks, token_s, other):
    curve = CapacityCurve.from_points([(1, 0.1), (2, 0.1 + token_s), (3, 0.1 + 3 * token_s)])
    prefix_lens = allocate_early_stop(blocks, curve)
    for request, prefix_len in enumerate(prefix_lens):
        changed = [list(block) for block in blocks]
        changed[request][prefix_len + 1 :] = [other] * len(changed[request][prefix_len + 1 :])
        assert allocate_early_stop(changed, curve) == prefix_lens


def test_it_stops_at_the_first_admission_that_does_not_pay_even_if_a_later_one_would():
    # A staircase: one draft is too dear, the second would be free.
    curve = CapacityCurve.from_points([(1, 1.0), (2, 2.0), (3, 2.0)])
    assert allocate_early_stop([[0.99, 0.99]], curve) == [0]


def test_an_admission_that_changes_nothing_is_not_made():
    curve = CapacityCurve.from_points([(1, 1.0), (2, 2.0)])
    assert allocate_early_stop([[1.0]], curve) == [0]  # (1 + 1) / 2 = 1 / 1


def test_ties_go_to_the_earlier_position_then_to_the_earlier_request():
    curve = CapacityCurve.from_points([(1, 1.0), (5, 1.0001), (6, 100.0)])
    assert allocate_early_stop([[0.8, 1.0], [0.8, 1.0], [0.8, 1.0]], curve) == [1, 1, 0]


def test_prompt_tokens_of_the_step_leave_less_room_for_drafts():
    curve = CapacityCurve.from_points([(1, 1.0), (16, 1.1), (17, 4.0)])
    block = [0.9] * 7
    alone, beside_a_prompt = (
        allocate_early_stop([block], curve),
        allocate_early_stop([block], curve.beside_prompt(1, 15)),
    )
    assert alone == [7]
    assert beside_a_prompt == [0]


def test_a_prompt_beside_the_streams_makes_drafts_no_cheaper():
    # Every token costs the same: a draft is worth what it is worth, however long the step is anyway.
    curve = CapacityCurve.from_points([(1, 0.011), (513, 0.523)])
    blocks = [[0.5] * 7] * 4
    alone, beside = (
        allocate_early_stop(blocks, curve),
        allocate_early_stop(blocks, curve.beside_prompt(4, 400)),
    )
    assert alone == beside
    assert 0 < sum(alone) < 28


def test_load_shortens_prefixes():
    curve = CapacityCurve.from_points([(1, 0.020), (32, 0.022), (64, 0.040), (512, 0.4)])
    block = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
    budgets = [sum(allocate_early_stop([block] * num, curve)) / num for num in (1, 8, 32, 128)]
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[0] == 7
    assert budgets[-1] < 1


def test_requests_without_a_block_and_no_requests_are_fine():
    curve = CapacityCurve.from_points([(1, 1.0), (9, 1.1)])
    assert allocate_early_stop([], curve) == []
    assert allocate_early_stop([[], [0.9], []], curve) == [0, 1, 0]


def test_fixed_and_off_ignore_the_load():
    assert allocate_fixed([7, 3, 0], 4) == [4, 3, 0]
    assert allocate_off(3) == [0, 0, 0]


@given(blocks=confidences, budget=st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_a_budget_goes_to_the_drafts_that_survive_best(blocks, budget):
    prefix_lens = allocate_top(blocks, budget)
    lengths = [len(block) for block in blocks]
    assert all(0 <= one <= length for one, length in zip(prefix_lens, lengths, strict=True))
    assert sum(prefix_lens) == min(budget, sum(lengths))
    alive = [survival(np.array(block)) for block in blocks]
    inside = [value for one, taken in zip(alive, prefix_lens, strict=True) for value in one[:taken]]
    outside = [value for one, taken in zip(alive, prefix_lens, strict=True) for value in one[taken:]]
    assert not inside or not outside or min(inside) >= max(outside) - 1e-11


def staircase(jumps, draft_s):
    sizes = np.cumsum(np.arange(1, len(jumps) + 1))
    return CapacityCurve.from_points(list(zip(sizes, 0.01 + np.cumsum(jumps), strict=True)), draft_s=draft_s)


@given(
    blocks=st.lists(st.lists(values, min_size=0, max_size=7), min_size=1, max_size=12),
    jumps=st.lists(st.floats(0.0, 0.004), min_size=12, max_size=12),
    draft_s=st.floats(0.0, 0.01),
    num_prompt_tokens=st.integers(0, 9),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_the_search_over_all_drafts_at_once_admits_what_the_lazy_search_admits(
    blocks, jumps, draft_s, num_prompt_tokens, data
):
    some_weights = st.lists(st.floats(0.1, MAX_WEIGHT), min_size=len(blocks), max_size=len(blocks))
    weights = data.draw(st.none() | some_weights)
    curve = staircase(jumps, draft_s).beside_prompt(len(blocks), num_prompt_tokens)
    ranked = rank(blocks, weights)
    lazily = allocate_early_stop(blocks, curve, weights=weights)
    assert ranked.prefix_lens(early_stop_budget(ranked, curve)) == lazily


@pytest.mark.parametrize("seed", range(5))
def test_both_searches_agree_on_hundreds_of_requests(seed):
    rng = np.random.default_rng(seed)
    blocks = [rng.uniform(0.2, 1.0, rng.integers(0, 8)).astype(np.float32).tolist() for _ in range(256)]
    weights = rng.uniform(0.2, 4.0, 256).tolist()
    curve = CapacityCurve.from_points([(1, 0.010), (256, 0.012), (512, 0.02), (4096, 0.2)], draft_s=0.002)
    ranked = rank(blocks, weights)
    lazily = allocate_early_stop(blocks, curve, weights=weights)
    assert ranked.prefix_lens(early_stop_budget(ranked, curve)) == lazily
    assert 0 < sum(lazily) < sum(map(len, blocks))


@given(blocks=confidences, least=st.floats(0.0, 1.0))
def test_thresholds_for_all_blocks_at_once_are_those_block_by_block(blocks, least):
    arrays = [np.array(block, dtype=np.float32) for block in blocks]
    assert threshold_lens(arrays, least) == allocate_threshold(blocks, least)


def test_a_heavier_request_is_served_first_and_its_tokens_count_for_more():
    curve = CapacityCurve.from_points([(1, 1.0), (3, 1.2), (4, 9.0)])
    blocks = [[0.9, 0.9], [0.8, 0.8]]
    assert allocate_early_stop(blocks, curve) == [1, 0]
    assert allocate_early_stop(blocks, curve, weights=[1.0, 4.0]) == [0, 1]
    assert rank(blocks, [1.0, 4.0]).prefix_lens(2) == [0, 2]


def test_the_retrospective_search_takes_the_stair_that_traps_an_early_stop():
    curve = CapacityCurve.from_points([(1, 1.0), (2, 2.0), (3, 2.0)])
    ranked = rank([[0.99, 0.99]])
    assert (early_stop_budget(ranked, curve), best_budget(ranked, curve)) == (0, 2)


def test_confidences_of_another_width_are_refused():
    with pytest.raises(AssertionError, match="float32"):
        rank_drafts([np.array([0.5, 0.5])])


def test_ties_for_a_budget_go_to_the_earlier_position_then_to_the_earlier_request():
    blocks = [[0.5, 1.0], [0.5, 1.0], [0.5]]
    assert [allocate_top(blocks, budget) for budget in range(6)] == [
        [0, 0, 0],
        [1, 0, 0],
        [1, 1, 0],
        [1, 1, 1],
        [2, 1, 1],
        [2, 2, 1],
    ]


@given(blocks=confidences, budget=st.integers(1, 12), data=st.data())
@settings(max_examples=200, deadline=None)
def test_whether_a_draft_fills_the_budget_does_not_depend_on_what_is_said_behind_it(blocks, budget, data):
    row = data.draw(st.integers(0, len(blocks) - 1))
    kept = data.draw(st.integers(0, len(blocks[row])))
    tail = data.draw(st.lists(st.floats(0.0, 1.0), max_size=4))
    changed = [*blocks]
    changed[row] = [*blocks[row][:kept], *tail]
    before, after = allocate_top(blocks, budget)[row], allocate_top(changed, budget)[row]
    assert min(before, kept) == min(after, kept)


def test_a_threshold_ends_each_block_at_its_first_doubtful_draft_and_looks_no_further():
    blocks = [Recorder([0.9, 0.5, 0.4, 0.9]), Recorder([0.1, 0.9]), Recorder([])]
    assert allocate_threshold(blocks, 0.5) == [2, 0, 0]
    assert [block.num_pulled for block in blocks] == [3, 1, 0]
