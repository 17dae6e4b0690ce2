"""When a run says what: progress with rate and time left, figures for the log, held-out figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dspark.training.metrics import MetricsLog, peak_memory_mib, progress_sentence

_PROGRESS_S = 15.0
_HELD_OUT_S = 60.0
# Held-out figures may take this share of the time at most.
_HELD_OUT_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run is.

    Attributes:
        total_steps: None where the run has hours instead.
        share: of the budget that is spent, 0 to 1.
    """

    step: int
    total_steps: int | None
    blocks: int
    elapsed_s: float
    share: float


class Reporter:
    """Watches one run from its start in this process."""

    def __init__(
        self,
        standing: Callable[[], Standing],
        evaluate: Callable[[], dict[str, float]],
        metrics: MetricsLog,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._standing, self._evaluate, self._metrics, self._report = standing, evaluate, metrics, report
        self._clock = clock
        self._started = self._last_progress = self._last_held_out = clock()
        self._first = self._last = standing()
        self._evaluation_s = 0.0
        self._losses: list[float] = []

    def is_held_out_due(self) -> bool:
        """Whether to measure: once a minute, less often where that would take too much of the time."""
        since_s = self._clock() - self._last_held_out
        return since_s > max(_HELD_OUT_S, self._evaluation_s / _HELD_OUT_SHARE)

    def step_done(self, loss: float, *, is_measured: bool) -> None:
        """Take note of a step; measure, or else say how far the run is when it is time to."""
        self._losses.append(loss)
        if is_measured:
            self.held_out()
        elif self._clock() - self._last_progress > _PROGRESS_S:
            self._metrics.write(self._progress())

    def held_out(self) -> dict[str, float]:
        """Measure on held-out blocks, write one row, report it; returns the row."""
        row = self._progress() if self._losses else self._row()
        started = self._clock()
        row |= {**self._evaluate(), "peak_memory_mib": peak_memory_mib()}
        self._last_held_out = self._last_progress = self._clock()
        self._evaluation_s = self._last_held_out - started
        self._metrics.write(row)
        self._report(", ".join(f"{key} {value:.4g}" for key, value in row.items()))
        return row

    def _row(self) -> dict[str, float]:
        now = self._standing()
        return {"step": float(now.step), "blocks": float(now.blocks), "hours": now.elapsed_s / 3600}

    def _progress(self) -> dict[str, float]:
        """Figures since the last time, also as a sentence."""
        now, clock = self._standing(), self._clock()
        # of the time spent on steps: measuring and saving are not training
        spent_s = now.elapsed_s - self._last.elapsed_s
        rate = (now.blocks - self._last.blocks) / spent_s if spent_s > 0 else 0.0
        loss = float(np.mean(self._losses))
        covered = now.share - self._first.share
        left_s = (clock - self._started) * (1 - now.share) / covered if covered > 0 else 0.0
        self._report(
            progress_sentence(
                step=now.step,
                total_steps=now.total_steps,
                share=now.share,
                blocks_per_s=rate,
                loss=loss,
                left_s=left_s,
            )
        )
        self._losses, self._last, self._last_progress = [], now, clock
        return {**self._row(), "loss": loss, "blocks_per_s": rate}
