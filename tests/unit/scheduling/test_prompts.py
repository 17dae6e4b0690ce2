"""How a step's prompt tokens are divided."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspark.scheduling.prompts import PromptLeft, divide_prompt_tokens

prompts = st.lists(st.builds(PromptLeft, st.integers(1, 600), st.integers(0, 2)), max_size=12)


def steps_until_computed(lengths, index, budget):
    """Steps until the prompt at this place of the order has been computed."""
    left, place, steps = [PromptLeft(length) for length in lengths], index, 0
    while True:
        shares = divide_prompt_tokens(left, budget)
        steps += 1
        if shares[place] == left[place].num_tokens:
            return steps
        place -= sum(shares[n] == left[n].num_tokens for n in range(place))
        rest = [one.num_tokens - share for one, share in zip(left, shares, strict=True)]
        left = [PromptLeft(tokens) for tokens in rest if tokens]


@given(prompts, st.integers(1, 512))
def test_the_budget_is_spent_as_far_as_there_are_prompts_and_never_exceeded(left, budget):
    shares = divide_prompt_tokens(left, budget)
    assert all(0 <= share <= one.num_tokens for share, one in zip(shares, left, strict=True))
    assert sum(shares) == min(budget, sum(one.num_tokens for one in left))


@given(prompts.filter(len), st.integers(1, 512))
def test_the_earliest_deadline_gets_three_quarters_whatever_waits_behind_it(left, budget):
    assert divide_prompt_tokens(left, budget)[0] >= min(left[0].num_tokens, budget - budget // 4)


def test_equal_prompts_are_computed_one_after_the_other():
    assert divide_prompt_tokens([PromptLeft(300), PromptLeft(300), PromptLeft(300)], 128) == [128, 0, 0]
    assert divide_prompt_tokens([PromptLeft(100), PromptLeft(100), PromptLeft(100)], 128) == [100, 28, 0]


def test_a_short_prompt_does_not_wait_for_a_long_one():
    assert steps_until_computed([100_000, 60], 1, 128) == 2
    assert steps_until_computed([100_000, 50_000, 60], 2, 128) == 2
    # and costs the long one no more than its own tokens
    assert steps_until_computed([12_800, 60], 0, 128) == 101


def test_a_lower_tier_takes_nothing_from_a_long_prompt_of_a_higher_one():
    assert divide_prompt_tokens([PromptLeft(900, 0), PromptLeft(10, 2)], 128) == [128, 0]
    assert divide_prompt_tokens([PromptLeft(900, 2), PromptLeft(10, 0)], 128) == [118, 10]


def test_no_prompts_take_nothing():
    assert divide_prompt_tokens([], 128) == []
