"""Decides for one round whether to draft and how much of each block to verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dspark.decoding.types import DrafterInfo, VerifierInfo
from dspark.errors import ConfigurationError
from dspark.rounds.adaptive import BarrierPlanner, EarlyStopPlanner
from dspark.scheduling.allocation import allocate_fixed, allocate_off, allocate_threshold
from dspark.scheduling.draft_length import DraftLength


class Planner(Protocol):
    """A policy of the round."""

    def learn_costs(self, verifier: VerifierInfo, drafter: DrafterInfo | None) -> None:
        """Take over measured costs, at start and whenever a peer came back.

        Raises:
            ConfigurationError: the policy cannot work with them.
        """
        ...

    def wants_drafts(self, num_requests: int) -> bool:
        """Whether drafting for so many requests is worth its time in this round."""
        ...

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """Drafts to ask for in this round, at most gamma, from what earlier rounds of the request say."""
        ...

    def plan(
        self, request_ids: Sequence[str], confidences: Sequence[Sequence[float]], num_prefill_tokens: int
    ) -> list[int]:
        """Prefix length of every request of the step; confidences are empty where it has no block."""
        ...


class OffPlanner:
    """Plain decoding."""

    def learn_costs(self, verifier: VerifierInfo, drafter: DrafterInfo | None) -> None:
        """Needs none."""

    def wants_drafts(self, num_requests: int) -> bool:
        """Never."""
        return False

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """None."""
        return 0

    def plan(
        self, request_ids: Sequence[str], confidences: Sequence[Sequence[float]], num_prefill_tokens: int
    ) -> list[int]:
        """No drafts."""
        return allocate_off(len(confidences))


class FixedPlanner:
    """The first `prefix_len` drafts of every block, whatever the load."""

    def __init__(self, prefix_len: int) -> None:
        self._prefix_len = prefix_len

    def learn_costs(self, verifier: VerifierInfo, drafter: DrafterInfo | None) -> None:
        """Needs none."""

    def wants_drafts(self, num_requests: int) -> bool:
        """Always, unless the prefix is empty."""
        return self._prefix_len > 0

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """Whole blocks, cut by the plan: the drafter was trained with all slots present."""
        return gamma

    def plan(
        self, request_ids: Sequence[str], confidences: Sequence[Sequence[float]], num_prefill_tokens: int
    ) -> list[int]:
        """The same for all."""
        return allocate_fixed([len(confidence) for confidence in confidences], self._prefix_len)


class ThresholdPlanner:
    """Blocks up to their first confidence below a threshold: a diagnostic (paper Fig. 5)."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def learn_costs(self, verifier: VerifierInfo, drafter: DrafterInfo | None) -> None:
        """Needs none."""

    def wants_drafts(self, num_requests: int) -> bool:
        """Always."""
        return True

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """Whole blocks."""
        return gamma

    def plan(
        self, request_ids: Sequence[str], confidences: Sequence[Sequence[float]], num_prefill_tokens: int
    ) -> list[int]:
        """Every block by itself."""
        return allocate_threshold(confidences, self._threshold)


def planner_of(policy: str, *, fixed_len: int = 7, threshold: float = 0.5) -> Planner:
    """The planner by the name of its policy, one of `dspark.rounds.policies`.

    Args:
        policy: its name.
        fixed_len: drafts of every block under "fixed".
        threshold: least confidence of a draft under "threshold".

    Raises:
        ConfigurationError: no such policy.
    """
    makers: dict[str, Callable[[], Planner]] = {
        "early-stop": EarlyStopPlanner,
        "barrier": BarrierPlanner,
        "threshold": lambda: ThresholdPlanner(threshold),
        "fixed": lambda: FixedPlanner(fixed_len),
        "off": OffPlanner,
    }
    if policy not in makers:
        raise ConfigurationError(f"policy is {policy!r}; choose one of {', '.join(makers)}")
    return makers[policy]()
