"""Policies that weigh what drafts may bring against what a step of their size costs."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.decoding.types import DrafterInfo, VerifierInfo
from dspark.rounds.draft_guard import DraftGuard
from dspark.scheduling.allocation import allocate_early_stop, allocate_off, allocate_top
from dspark.scheduling.barrier import ConfidenceHistory, Snapshot, verify_budget
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.draft_length import DraftLength


class AdaptivePlanner:
    """What both share: measured costs, draft lengths from past rounds, and the guard."""

    def __init__(self) -> None:
        self._steps: CapacityCurve | None = None
        self._drafts: CapacityCurve | None = None
        self._guard = DraftGuard()

    def learn_costs(self, verifier: VerifierInfo, drafter: DrafterInfo | None) -> None:
        """Make the curves.

        Raises:
            ConfigurationError: the verifier's steps were not measured, or do not rise.
        """
        steps = CapacityCurve.from_points(verifier.step_cost)
        steps.check_rises()
        self._steps = steps
        has_cost = drafter is not None and drafter.draft_cost
        self._drafts = CapacityCurve.from_points(drafter.draft_cost) if drafter and has_cost else None

    def wants_drafts(self, num_requests: int) -> bool:
        """Whether drafting has paid lately; asked once per round."""
        return self._guard.wants_drafts()

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """As many as earlier rounds of the request made use of, and a little more."""
        return history.next(gamma)

    def _curve(self, num_slots: int) -> CapacityCurve:
        """Costs of a round whose blocks have so many slots together."""
        assert self._steps is not None, "learn_costs comes first"
        return self._steps.with_draft_cost(self._drafts.step_s(num_slots) if self._drafts else 0.0)


class EarlyStopPlanner(AdaptivePlanner):
    """Algorithm 1 with early stop; see `allocate_early_stop`."""

    def plan(
        self, request_ids: Sequence[str], confidences: Sequence[Sequence[float]], num_prefill_tokens: int
    ) -> list[int]:
        """Admit drafts while that is faster."""
        num_slots = sum(map(len, confidences))
        if num_slots == 0:
            return allocate_off(len(confidences))
        curve = self._curve(num_slots)
        prefix_lens = allocate_early_stop(confidences, curve, base_tokens=num_prefill_tokens)
        self._guard.judge(confidences, prefix_lens, curve, num_prefill_tokens)
        return prefix_lens


class BarrierPlanner(AdaptivePlanner):
    """A budget from confidences two rounds old, filled by survival; see `dspark.scheduling.barrier`."""

    def __init__(self) -> None:
        super().__init__()
        self._history = ConfidenceHistory()
        self._round_number = 0

    def plan(
        self, request_ids: Sequence[str], confidences: Sequence[Sequence[float]], num_prefill_tokens: int
    ) -> list[int]:
        """Fill the budget that was fixed before these confidences were known."""
        self._round_number += 1
        drafted = [
            (request_id, confidence)
            for request_id, confidence in zip(request_ids, confidences, strict=True)
            if len(confidence)
        ]
        num_slots = sum(len(confidence) for _, confidence in drafted)
        if num_slots == 0:
            return allocate_off(len(confidences))
        curve = self._curve(num_slots)
        budget = verify_budget(
            self._history.before(self._round_number),
            self._round_number,
            [request_id for request_id, _ in drafted],
            curve,
            gamma=max(len(confidence) for _, confidence in drafted),
            base_tokens=num_prefill_tokens + len(confidences) - len(drafted),
        )
        self._history.record(Snapshot(self._round_number, dict(drafted)))
        prefix_lens = allocate_top(confidences, budget)
        self._guard.judge(confidences, prefix_lens, curve, num_prefill_tokens)
        return prefix_lens
