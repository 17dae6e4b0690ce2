"""What a step costs by its number of tokens and by the contexts its attention reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dspark.decoding.types import StepCost
from dspark.errors import ConfigurationError
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.ranking import Floats

# Most of a measured step that may be taken for attention: noise must not leave a step that costs nothing.
_LARGEST_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step computes.

    Attributes:
        batch_tokens: its rows.
        num_keys: context tokens of its requests, each request's counted once: what a GPU waits for.
        num_scores: context tokens of its rows, each row's counted: what a CPU waits for.
    """

    batch_tokens: int
    num_keys: float = 0.0
    num_scores: float = 0.0

    @property
    def context_len(self) -> float:
        """Mean context of a row."""
        return self.num_scores / self.batch_tokens if self.batch_tokens else 0.0


@dataclass(frozen=True, slots=True)
class CapacitySurface:
    """Seconds of one step: `rows` by number of tokens, `key_s` for each key and `score_s` for each score.

    Both terms of attention are linear in the context, so between and beyond the measured contexts the cost
    of a size goes along a line that passes through what was measured at the shortest one.

    Attributes:
        rows: of steps without any context.
        key_s: seconds of one of `StepLoad.num_keys`.
        score_s: seconds of one of `StepLoad.num_scores`.
        measured: steps at the shortest measured context.
    """

    rows: CapacityCurve
    key_s: float
    score_s: float
    measured: CapacityCurve

    @classmethod
    def from_curve(cls, curve: CapacityCurve) -> CapacitySurface:
        """Costs that are the same in every context."""
        return cls(curve, 0.0, 0.0, curve)

    @classmethod
    def from_points(cls, step_cost: Sequence[StepCost]) -> CapacitySurface:
        """Fit measured steps; measured with one context only, they cost the same in all.

        Raises:
            ConfigurationError: no points, a number that is out of range, or a size that was measured at a
                longer context only.
        """
        if any(one.num_requests < 0 or one.context_len < 0 for one in step_cost):
            raise ConfigurationError(f"step_cost must hold no negative number, not {list(step_cost)}")
        shortest = min((one.context_len for one in step_cost), default=0)
        short = [one for one in step_cost if one.context_len == shortest]
        measured = CapacityCurve.from_points([(one.batch_tokens, one.seconds) for one in short])
        anchors = {size: _mean([one for one in short if one.batch_tokens == size]) for size in measured.sizes}
        key_s, score_s = _fit([one for one in step_cost if one.context_len > shortest], anchors)
        left = [
            (size, seconds - key_s * load.num_keys - score_s * load.num_scores)
            for size, (load, seconds) in anchors.items()
        ]
        return cls(CapacityCurve.from_points(left), key_s, score_s, measured)

    def check_rises(self) -> None:
        """Refuse costs that cannot tell a small step from a large one.

        Raises:
            ConfigurationError: as `CapacityCurve.check_rises` says.
        """
        self.measured.check_rises()

    def attention_s(self, load: StepLoad) -> float:
        """Seconds of the attention of a step."""
        return self.key_s * load.num_keys + self.score_s * load.num_scores

    def step_s(self, load: StepLoad) -> float:
        """Seconds of a step."""
        return self.rows.step_s(load.batch_tokens) + self.attention_s(load)

    def at(
        self, num_requests: int, context_len: float, *, scale: float = 1.0, draft_s: float = 0.0
    ) -> CapacityCurve:
        """The curve of rounds of so many requests that hold `context_len` tokens each.

        Args:
            num_requests: of the step.
            context_len: mean over these requests.
            scale: factor on the seconds of the step.
            draft_s: seconds before the step.
        """
        return self.rows.in_context(
            draft_s=draft_s,
            scale=scale,
            context_s=scale * self.key_s * num_requests * context_len,
            row_s=scale * self.score_s * context_len,
        )


def load_of(one: StepCost) -> StepLoad:
    """What a measured step computed."""
    num_keys, num_scores = one.num_requests * one.context_len, one.batch_tokens * one.context_len
    return StepLoad(one.batch_tokens, num_keys, num_scores)


def _mean(steps: Sequence[StepCost]) -> tuple[StepLoad, float]:
    """Of measurements of one size."""
    loads = [load_of(one) for one in steps]
    num_keys, num_scores, seconds = np.mean(
        [(load.num_keys, load.num_scores, one.seconds) for load, one in zip(loads, steps, strict=True)],
        axis=0,
    ).tolist()
    return StepLoad(steps[0].batch_tokens, num_keys, num_scores), seconds


def _fit(longer: Sequence[StepCost], anchors: Mapping[int, tuple[StepLoad, float]]) -> tuple[float, float]:
    """Seconds of a key and of a score: least squares of what longer contexts add, neither below 0."""
    if not longer:
        return 0.0, 0.0
    unknown = sorted({one.batch_tokens for one in longer} - anchors.keys())
    if unknown:
        raise ConfigurationError(
            f"step_cost has steps of {unknown} tokens at longer contexts only; "
            "measure them at the shortest one too"
        )
    rows = []
    for one in longer:
        load, (anchor, seconds) = load_of(one), anchors[one.batch_tokens]
        added = (
            load.num_keys - anchor.num_keys,
            load.num_scores - anchor.num_scores,
            one.seconds - seconds,
        )
        # Shares of the step count, so that a large one does not outweigh all others.
        rows.append(np.array(added) / seconds)
    matrix = np.array(rows)
    key_s, score_s = _non_negative(matrix[:, :2], matrix[:, 2])
    part = max(
        (key_s * load.num_keys + score_s * load.num_scores) / seconds for load, seconds in anchors.values()
    )
    keep = min(1.0, _LARGEST_SHARE / part) if part > 0.0 else 1.0
    return keep * key_s, keep * score_s


def _non_negative(added: Floats, seconds: Floats) -> tuple[float, float]:
    """Least squares of two unknowns that are at least 0: the best of both, either alone, and neither."""
    both = np.linalg.lstsq(added, seconds, rcond=None)[0]
    if (both >= 0.0).all():
        return float(both[0]), float(both[1])
    squares = np.maximum((added**2).sum(axis=0), np.finfo(np.float64).tiny)
    alone = np.diag(np.maximum(added.T @ seconds / squares, 0.0))
    errors = ((added @ alone.T - seconds[:, None]) ** 2).sum(axis=0)
    key_s, score_s = alone[int(np.argmin(errors))]
    return float(key_s), float(score_s)
