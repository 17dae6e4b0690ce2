"""Counters of the loop, in vLLM's schema where it has one, and the report of one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dspark.decoding.service import ServiceTier
from dspark.scheduling.surface import StepLoad


@dataclass(slots=True)
class RoundCounters:
    """Sums since start. `num_drafts` counts verified blocks, `num_draft_tokens` verified drafts."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    # by position in the block
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    # drafts proposed, scheduled or not
    num_proposed_tokens: int = 0
    num_committed_tokens: int = 0
    num_near_ties: int = 0
    num_rounds: int = 0
    # verifications of a request without drafts
    num_plain_rounds: int = 0
    num_preemptions: int = 0
    num_step_failures: int = 0
    # times a request was opened at the verifier after the first
    num_reopens: int = 0

    def count_accepted(self, num_accepted: int) -> None:
        """Count accepted drafts, also by position."""
        self.num_accepted_tokens += num_accepted
        missing = num_accepted - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos.extend([0] * missing)
        for position in range(num_accepted):
            self.num_accepted_tokens_per_pos[position] += 1


@dataclass(frozen=True, slots=True)
class ServiceStats:
    """How the requests that have not ended are served.

    Attributes:
        num_by_tier: requests of each tier that has any.
        num_late: requests behind what they were promised.
        most_late_s: seconds by which the last of them is.
    """

    num_by_tier: Mapping[ServiceTier, int]
    num_late: int
    most_late_s: float


@dataclass(frozen=True, slots=True)
class LoopStats:
    """How the loop fares now."""

    counters: RoundCounters
    num_running: int
    num_waiting: int
    num_free_pages: int
    num_pages: int
    service: ServiceStats
    # requests of other schedulers that this one went on with, since start
    num_resumed: int
    num_draft_failures: int
    # see `Planner.cost_error`
    cost_error: float
    # cohorts of requests in flight
    num_cohorts: int
    is_verifier_ready: bool
    is_drafter_ready: bool


@dataclass(frozen=True, slots=True)
class RequestRound:
    """What one round did for one request that was verified.

    Attributes:
        is_copied: whether its drafts were copied from earlier text, without a pass of a model.
    """

    request_id: str
    num_drafted: int
    num_scheduled: int
    num_accepted: int
    num_committed: int
    is_copied: bool = False


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round, for metrics and tracing."""

    verified: Sequence[RequestRound]
    # prompt tokens computed
    num_prefill_tokens: int
    # flattened tokens of the step, and the contexts they read
    load: StepLoad
    # of its draft, which with two cohorts in flight is made beside the step of the other one
    draft_s: float
    plan_s: float
    # as the loop waited for it, and as the engine measured it
    step_s: float
    verify_s: float

    @property
    def num_slots(self) -> int:
        """Slots that a model computed; copies took none."""
        return sum(one.num_drafted for one in self.verified if not one.is_copied)

    @property
    def batch_tokens(self) -> int:
        """Flattened tokens of the step."""
        return self.load.batch_tokens


class RoundObserver(Protocol):
    """Is told about every round. Must be quick and must not raise."""

    def on_round(self, report: RoundReport) -> None:
        """Take note of one round."""
        ...
