"""From samples to figures to a verdict: pass, miss, or a run that proves nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from loadtest.samples import Sample
from loadtest.sla import Sla

# A generator that is late measures itself: its own delays would count as the server's.
MAX_GENERATOR_LAG_S = 0.25


class Outcome(IntEnum):
    """Exit code of a run."""

    PASS = 0
    SLA_MISS = 1
    INVALID = 2


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured in the window. Times in milliseconds; percentiles over requests without error."""

    num_sent: int
    num_errors: int
    num_good: int
    window_s: float
    tokens_per_second: float
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    e2e_ms: dict[str, float]
    # 1/tpot of the median and of the slowest user in twenty
    user_tokens_per_second: dict[str, float]
    mean_committed: float | None
    generator_lag_p99_ms: float

    @property
    def error_rate(self) -> float:
        """Share of failed requests among those sent."""
        return self.num_errors / self.num_sent if self.num_sent else 0.0

    @property
    def attainment(self) -> float:
        """Share of good requests among those sent."""
        return self.num_good / self.num_sent if self.num_sent else 0.0

    @property
    def goodput(self) -> float:
        """Good requests per second."""
        return self.num_good / self.window_s if self.window_s else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome and, for all but a pass, its reasons."""

    outcome: Outcome
    reasons: tuple[str, ...] = ()


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value with at least `share` of all values at or below it; NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def measure(samples: Sequence[Sample], sla: Sla, *, window_s: float, lags_s: Sequence[float]) -> Figures:
    """Sum up the samples of the window."""
    fine = [sample for sample in samples if not sample.error]
    tpots_ms = [tpot_s * 1e3 for sample in fine if (tpot_s := sample.tpot_s) is not None]
    committed = [sample.mean_committed for sample in fine if sample.mean_committed is not None]
    return Figures(
        num_sent=len(samples),
        num_errors=len(samples) - len(fine),
        num_good=sum(_is_good(sample, sla) for sample in fine),
        window_s=window_s,
        tokens_per_second=sum(sample.num_tokens for sample in fine) / window_s if window_s else 0.0,
        ttft_ms=_percentiles([sample.ttft_s * 1e3 for sample in fine]),
        tpot_ms=_percentiles(tpots_ms),
        e2e_ms=_percentiles([sample.e2e_s * 1e3 for sample in fine]),
        user_tokens_per_second={
            "p50": 1e3 / percentile(tpots_ms, 0.5) if tpots_ms else math.nan,
            "p5": 1e3 / percentile(tpots_ms, 0.95) if tpots_ms else math.nan,
        },
        mean_committed=sum(committed) / len(committed) if committed else None,
        generator_lag_p99_ms=percentile(lags_s, 0.99) * 1e3 if lags_s else 0.0,
    )


def judge(figures: Figures, sla: Sla) -> Verdict:
    """Hold the figures against the SLA."""
    if figures.num_sent < sla.min_samples:
        reason = f"{figures.num_sent} requests after the warm-up, {sla.min_samples} are needed: run longer"
        return Verdict(Outcome.INVALID, (reason,))
    if figures.generator_lag_p99_ms > MAX_GENERATOR_LAG_S * 1e3:
        lag = f"the load generator itself was late by {figures.generator_lag_p99_ms:.0f} ms (p99)"
        return Verdict(Outcome.INVALID, (f"{lag}: use fewer users or another machine",))
    misses = tuple(_misses(figures, sla))
    return Verdict(Outcome.SLA_MISS if misses else Outcome.PASS, misses)


def _misses(figures: Figures, sla: Sla) -> list[str]:
    upper = [
        ("TTFT p95 ms", figures.ttft_ms["p95"], sla.ttft_p95_ms),
        ("TPOT p95 ms", figures.tpot_ms["p95"], sla.tpot_p95_ms),
        ("E2E p99 ms", figures.e2e_ms["p99"], sla.e2e_p99_ms),
        ("error rate", figures.error_rate, sla.error_rate),
    ]
    lower = [
        ("goodput req/s", figures.goodput, sla.min_goodput),
        ("attainment", figures.attainment, sla.min_attainment),
        ("tokens/s", figures.tokens_per_second, sla.min_tokens_per_second),
    ]
    # Written so that a missing figure (NaN) is a miss.
    misses = [
        f"{name} {got:.3g} > {most:g}" for name, got, most in upper if most is not None and not got <= most
    ]
    return misses + [
        f"{name} {got:.3g} < {least:g}"
        for name, got, least in lower
        if least is not None and not got >= least
    ]


def _is_good(sample: Sample, sla: Sla) -> bool:
    in_time = sla.ttft_p95_ms is None or sample.ttft_s * 1e3 <= sla.ttft_p95_ms
    tpot_s = sample.tpot_s
    return in_time and (sla.tpot_p95_ms is None or tpot_s is None or tpot_s * 1e3 <= sla.tpot_p95_ms)


def _percentiles(values_ms: Sequence[float]) -> dict[str, float]:
    return {f"p{round(share * 100)}": percentile(values_ms, share) for share in (0.5, 0.95, 0.99)}
