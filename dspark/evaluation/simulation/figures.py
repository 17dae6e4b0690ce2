"""What one policy reached under one load, from what a simulation kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dspark.evaluation.simulation.runner import Observed, Served
from dspark.rounds.stats import RequestRound

_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Figures of one run; seconds are virtual unless they say otherwise.

    Attributes:
        tokens_per_s: committed tokens of all requests.
        user_tokens_per_s: median over complete requests, from their first token to their last; 0 where none
            has two.
        ttft_ms: from submission to the first token, by percentile.
        inter_token_ms: the time between two deltas shared among the tokens of the later one, by percentile.
        mean_committed: tokens a request commits in a round that verifies it.
        mean_drafted: drafts asked for and delivered, per request and round.
        mean_verified: drafts verified, likewise.
        waste: share of the verified drafts that were rejected; 0 where none was verified.
        batch_tokens: mean over steps.
        num_requests: complete ones.
        items_per_real_s: verifications and prompt chunks per second of this machine.
    """

    tokens_per_s: float
    user_tokens_per_s: float
    ttft_ms: dict[str, float]
    inter_token_ms: dict[str, float]
    mean_committed: float
    mean_drafted: float
    mean_verified: float
    waste: float
    batch_tokens: float
    num_requests: int
    items_per_real_s: float

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def figures_of(observed: Observed) -> LoadFigures:
    """Sum up the time in which the load was steady, or all of it where requests came as the trace says."""
    span = _Span(observed.begin_s if observed.begin_s < observed.end_s else 0.0, observed.end_s)
    reports = [report for at_s, report in observed.rounds if span.holds(at_s)]
    parts = [part for report in reports for part in report.verified]
    complete = [one for one in observed.served if one.is_complete]
    return LoadFigures(
        tokens_per_s=_num_tokens(observed.served, span) / span.length_s,
        user_tokens_per_s=_median([_user_speed(one) for one in complete if len(one.deltas) > 1]),
        ttft_ms=_percentiles_ms(_first_waits(complete, span)),
        inter_token_ms=_percentiles_ms(_inter_token_waits(observed.served, span)),
        mean_committed=_mean([part.num_committed for part in parts]),
        mean_drafted=_mean([part.num_drafted for part in parts]),
        mean_verified=_mean([part.num_scheduled for part in parts]),
        waste=_waste(parts),
        batch_tokens=_mean([report.batch_tokens for report in reports]),
        num_requests=len(complete),
        items_per_real_s=observed.num_items / observed.real_s,
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """Virtual seconds (begin_s, end_s]."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    def holds(self, at_s: float) -> bool:
        return self.begin_s < at_s <= self.end_s


def _num_tokens(served: Sequence[Served], span: _Span) -> int:
    return sum(len(one.delta.token_ids) for each in served for one in each.deltas if span.holds(one.at_s))


def _user_speed(served: Served) -> float:
    """Tokens per second behind the first delta."""
    later = sum(len(one.delta.token_ids) for one in served.deltas[1:])
    return later / (served.deltas[-1].at_s - served.deltas[0].at_s)


def _first_waits(served: Sequence[Served], span: _Span) -> list[float]:
    """Of requests that joined a steady load; of all where none did."""
    waits = [(one.submitted_s, one.deltas[0].at_s - one.submitted_s) for one in served]
    return [wait_s for at_s, wait_s in waits if span.holds(at_s)] or [wait_s for _, wait_s in waits]


def _inter_token_waits(served: Sequence[Served], span: _Span) -> list[float]:
    waits: list[float] = []
    for each in served:
        for before, one in zip(each.deltas, each.deltas[1:], strict=False):
            count = len(one.delta.token_ids)
            if count and span.holds(one.at_s):
                waits.extend([(one.at_s - before.at_s) / count] * count)
    return waits


def _waste(parts: Sequence[RequestRound]) -> float:
    num_verified = sum(part.num_scheduled for part in parts)
    num_accepted = sum(part.num_accepted for part in parts)
    return 1.0 - num_accepted / num_verified if num_verified else 0.0


def _percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    values = 1e3 * np.percentile(seconds, _PERCENTILES) if seconds else [0.0] * len(_PERCENTILES)
    return {f"p{rank}": float(value) for rank, value in zip(_PERCENTILES, values, strict=True)}


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else 0.0


def _mean(values: Sequence[int]) -> float:
    return float(np.mean(values)) if values else 0.0
