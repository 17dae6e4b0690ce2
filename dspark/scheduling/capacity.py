"""What a step of the target costs by its number of tokens, as measured on the real engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dspark.errors import ConfigurationError


@dataclass(slots=True)
class _Table:
    """Seconds by number of tokens, as far as anyone has asked; the same twice."""

    array: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    numbers: list[float] = field(default_factory=list)
    # 0, 1, 2, ...
    rows: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True)
class CapacityCurve:
    """Seconds of one round's fixed draft cost and of one step of `batch_tokens` tokens.

    Between points the cost is linear; below the first it is that of the first; beyond the last it
    goes on along the last two points. A staircase (captured graphs, tiles) is two points at each edge: the
    last size of a stair and the first of the next.

    What attention adds is linear in the rows for requests that are given: see
    `dspark.scheduling.surface.CapacitySurface`, which makes such curves.
    """

    # rising numbers of tokens
    sizes: tuple[int, ...]
    # seconds of one step, never falling
    seconds: tuple[float, ...]
    # seconds that every round spends before its step
    draft_s: float = 0.0
    # prompt tokens of the step, the tokens of output they are worth, and their seconds that nobody is charged
    num_prompt_tokens: int = 0
    prompt_gain: float = 0.0
    prompt_s: float = 0.0
    # factor on the seconds of the points; seconds of attention, of the step and of each row
    scale: float = 1.0
    context_s: float = 0.0
    row_s: float = 0.0
    # seconds that even the smallest step lasts, as a draft is made beside it
    least_step_s: float = 0.0
    _table: _Table = field(default_factory=_Table, repr=False, compare=False)

    @classmethod
    def from_points(cls, step_cost: Sequence[tuple[int, float]], *, draft_s: float = 0.0) -> CapacityCurve:
        """Make a curve of measured (batch_tokens, seconds), in any order.

        Noise is smoothed until the cost never falls as the batch grows (pool adjacent violators);
        several measurements of one size are averaged.

        Raises:
            ConfigurationError: no points, or a size or duration that is not positive.
        """
        if not step_cost:
            raise ConfigurationError("step_cost is empty; measure the verifier's steps first")
        if any(size <= 0 or not seconds > 0.0 for size, seconds in step_cost):
            raise ConfigurationError(f"step_cost must hold positive sizes and seconds, not {list(step_cost)}")
        sizes = sorted({size for size, _ in step_cost})
        means = [float(np.mean([seconds for other, seconds in step_cost if other == size])) for size in sizes]
        return cls(tuple(sizes), tuple(_never_falling(means)), draft_s)

    def in_context(self, *, draft_s: float, scale: float, context_s: float, row_s: float) -> CapacityCurve:
        """The same points in another round.

        Args:
            draft_s: seconds before the step.
            scale: factor on the seconds of the points.
            context_s: seconds of attention whatever the number of rows.
            row_s: further seconds of each row, >= 0.
        """
        # Every plan makes one, and `replace` takes three times as long.
        return CapacityCurve(
            self.sizes,
            self.seconds,
            draft_s,
            scale=scale,
            context_s=context_s,
            row_s=row_s,
            _table=self._table,
        )

    def beside_draft(self, draft_s: float) -> CapacityCurve:
        """The curve of a round whose step runs while another cohort is drafted: whichever lasts longer."""
        return replace(self, draft_s=0.0, least_step_s=draft_s)

    def beside_prompt(
        self, num_decoding: int, num_prompt_tokens: int, *, value: float = 0.0, context_s: float = 0.0
    ) -> CapacityCurve:
        """The curve of a round whose step computes prompt tokens too, for `num_decoding` requests.

        While there is room for all prompts (value 0) they are computed whatever is drafted: their seconds are
        not the drafts' to pay, but each draft costs what it adds to so large a step. While prompts queue up
        (value 1) a longer step makes all of them wait: a prompt token is then worth as much as one of output,
        and what is maximised is the tokens computed or committed per second. With the prompt's seconds in the
        denominator and no gain for it, any number of drafts would look cheap.

        Args:
            num_decoding: requests of the step that commit tokens.
            num_prompt_tokens: of the others.
            value: of a prompt token in tokens of output, 0 to 1.
            context_s: seconds of attention of the prompt tokens beyond `row_s` for each.
        """
        if num_prompt_tokens == 0:
            return self
        prompt_s = context_s + self.step_s(num_decoding + num_prompt_tokens) - self.step_s(num_decoding)
        return replace(
            self,
            context_s=self.context_s + context_s,
            num_prompt_tokens=num_prompt_tokens,
            prompt_gain=value * num_prompt_tokens,
            prompt_s=(1.0 - value) * prompt_s,
        )

    def check_rises(self) -> None:
        """Refuse a curve that cannot tell a small step from a large one.

        Raises:
            ConfigurationError: fewer than two sizes, or no rise from the first to the last.
        """
        if self.seconds[-1] <= self.seconds[0]:
            raise ConfigurationError(
                f"step_cost is flat over the sizes {list(self.sizes)}, so an adaptive policy would verify "
                "everything; measure more sizes or choose the policy fixed or off"
            )

    def step_s(self, batch_tokens: int) -> float:
        """Seconds of one step of the target."""
        if batch_tokens >= len(self._table.numbers):
            self._extend_table(batch_tokens)
        seconds = self.context_s + self.scale * self._table.numbers[batch_tokens] + self.row_s * batch_tokens
        return max(seconds, self.least_step_s)

    def steps_s(self, batch_tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
        """Seconds of one step for several sizes."""
        seconds = self.context_s + self.scale * self._points_s(batch_tokens) + self.row_s * batch_tokens
        longer: npt.NDArray[np.float64] = np.maximum(seconds, self.least_step_s)
        return longer

    def _points_s(self, batch_tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
        inside: npt.NDArray[np.float64] = np.interp(batch_tokens, self.sizes, self.seconds)
        if len(self.sizes) < 2:
            return inside
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        beyond: npt.NDArray[np.float64] = inside + slope * np.maximum(batch_tokens - self.sizes[-1], 0)
        return beyond

    def round_s(self, batch_tokens: int) -> float:
        """Seconds of a round of `batch_tokens` anchors and drafts: 1 / SPS(B) of Algorithm 1."""
        return self.draft_s - self.prompt_s + self.step_s(self.num_prompt_tokens + batch_tokens)

    def rounds_s(self, first: int, count: int) -> npt.NDArray[np.float64]:
        """`round_s` of `first`, `first + 1`, ... tokens, [count]."""
        first += self.num_prompt_tokens
        if first + count > len(self._table.array):
            self._extend_table(first + count)
        steps: npt.NDArray[np.float64] = self.scale * self._table.array[first : first + count]
        steps += self.context_s
        if self.row_s:
            steps += self.row_s * self._table.rows[first : first + count]
        if self.least_step_s:
            np.maximum(steps, self.least_step_s, out=steps)
        steps += self.draft_s - self.prompt_s
        return steps

    def steps_per_second(self, batch_tokens: int) -> float:
        """SPS(B) of Algorithm 1: rounds per second with `batch_tokens` anchors and drafts in each."""
        return 1.0 / self.round_s(batch_tokens)

    def _extend_table(self, batch_tokens: int) -> None:
        sizes = np.arange(2 * batch_tokens + 1)
        self._table.rows = sizes.astype(np.float64)
        self._table.array = self._points_s(sizes)
        self._table.numbers = self._table.array.tolist()


def _never_falling(values: Sequence[float]) -> list[float]:
    """Closest never-falling sequence in squares: neighbours that fall are replaced by their mean."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            other, weight = pools.pop()
            mean, count = (mean * count + other * weight) / (count + weight), count + weight
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]
