"""How the prompt tokens of one step are divided among prompts.

Running streams have a place in every step whatever prompts wait; the budget of prompt tokens bounds how much
longer prompts make a step. Among prompts the earliest deadline comes first, with one exception: a quarter of
the budget, rounded down, goes to the shortest of the prompts behind it that have fewer tokens left and no
lower tier. So

- the first prompt gets three quarters of the budget in every step, however many short ones come: it is
  computed within ceil(its tokens / that) steps;
- a short one does not wait for a long one before it: in every step in which it is the shortest, and of no
  lower tier than the first, it gets a quarter of the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Share of the budget that is kept for the shortest prompt.
_SHORT_SHARE = 4


@dataclass(frozen=True, slots=True)
class PromptLeft:
    """A prompt that is being computed.

    Attributes:
        num_tokens: yet to compute, above 0.
        standing: of its tier, 0 the first; see `dspark.scheduling.weights.standing`.
    """

    num_tokens: int
    standing: int = 0


def divide_prompt_tokens(prompts: Sequence[PromptLeft], budget: int) -> list[int]:
    """Tokens of each prompt in the next step.

    Args:
        prompts: in order of their deadlines.
        budget: prompt tokens of the step.

    Returns:
        [P], none above what its prompt has left; together the budget, or all that is left.
    """
    shares = [0] * len(prompts)
    if not prompts:
        return shares
    short = _shortest_behind_first(prompts)
    if short is not None:
        shares[short] = min(prompts[short].num_tokens, budget // _SHORT_SHARE)
        budget -= shares[short]
    for index, prompt in enumerate(prompts):
        more = min(prompt.num_tokens - shares[index], budget)
        shares[index] += more
        budget -= more
    return shares


def _shortest_behind_first(prompts: Sequence[PromptLeft]) -> int | None:
    """Index of the prompt that may go beside the first one; None where none is shorter."""
    first = prompts[0]
    shorter = [
        index
        for index, prompt in enumerate(prompts)
        if prompt.num_tokens < first.num_tokens and prompt.standing <= first.standing
    ]
    return min(shorter, key=lambda index: prompts[index].num_tokens, default=None)
