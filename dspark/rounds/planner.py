"""Decides for one round whether to draft and how much of each block to verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dspark.decoding.types import DrafterInfo, SamplingParams, VerifierInfo
from dspark.errors import ConfigurationError
from dspark.rounds.adaptive import BarrierPlanner, EarlyStopPlanner, RetrospectivePlanner
from dspark.rounds.auto import AutoPlanner
from dspark.rounds.stats import RoundReport
from dspark.rounds.step_ahead import StepAhead
from dspark.scheduling.allocation import allocate_fixed, allocate_off, threshold_lens
from dspark.scheduling.draft_length import DraftLength
from dspark.scheduling.ranking import Confidences


class Planner(Protocol):
    """A policy of the round."""

    def learn_costs(self, verifier: VerifierInfo, drafter: DrafterInfo | None) -> None:
        """Take over measured costs, at start and whenever a peer came back.

        Raises:
            ConfigurationError: the policy cannot work with them.
        """
        ...

    def observe(self, report: RoundReport) -> None:
        """Take in what a round took, after it has ended."""
        ...

    @property
    def cost_error(self) -> float:
        """How far the cost of steps was mispredicted lately, as a share; 0 where it is not predicted."""
        ...

    def check(self, sampling: SamplingParams) -> None:
        """Turn away a request that the policy would not be lossless for.

        Raises:
            InvalidRequestError: it is one, with the mend.
        """
        ...

    def num_to_draft(self, num_requests: int, num_cohorts: int = 1) -> int:
        """For how many of the requests to ask for a block now, with so many cohorts in flight.

        Asked once per round.
        """
        ...

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """Drafts to ask for in this round, at most gamma, from what earlier rounds of the request say."""
        ...

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """Prefix length of every request of the step; confidences are empty where it has no block."""
        ...

    @property
    def prepares(self) -> bool:
        """Whether `prepare` is to be called."""
        ...

    def prepare(self, step: StepAhead) -> None:
        """Do what can be done before the drafts of the step are there; called while they are made."""
        ...


class FreePlanner:
    """A policy that needs no costs and takes every request."""

    prepares = False

    def learn_costs(self, verifier: VerifierInfo, drafter: DrafterInfo | None) -> None:
        """Needs none."""

    def observe(self, report: RoundReport) -> None:
        """Learns nothing."""

    @property
    def cost_error(self) -> float:
        """Predicts nothing."""
        return 0.0

    def check(self, sampling: SamplingParams) -> None:
        """Takes every request."""

    def prepare(self, step: StepAhead) -> None:
        """Nothing to prepare."""


class OffPlanner(FreePlanner):
    """Plain decoding."""

    def num_to_draft(self, num_requests: int, num_cohorts: int = 1) -> int:
        """None."""
        return 0

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """None."""
        return 0

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """No drafts."""
        return allocate_off(len(confidences))


class FixedPlanner(FreePlanner):
    """The first `prefix_len` drafts of every block, whatever the load."""

    def __init__(self, prefix_len: int) -> None:
        self._prefix_len = prefix_len

    def num_to_draft(self, num_requests: int, num_cohorts: int = 1) -> int:
        """All, unless the prefix is empty."""
        return num_requests if self._prefix_len > 0 else 0

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """Whole blocks, cut by the plan: the drafter was trained with all slots present."""
        return gamma

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """The same for all."""
        return allocate_fixed([len(confidence) for confidence in confidences], self._prefix_len)


class ThresholdPlanner(FreePlanner):
    """Blocks up to their first confidence below a threshold: a diagnostic (paper Fig. 5)."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def num_to_draft(self, num_requests: int, num_cohorts: int = 1) -> int:
        """All."""
        return num_requests

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """Whole blocks."""
        return gamma

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """Every block by itself."""
        return threshold_lens(confidences, self._threshold)


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
        "auto": AutoPlanner,
        "early-stop": EarlyStopPlanner,
        "barrier": BarrierPlanner,
        "retrospective": RetrospectivePlanner,
        "threshold": lambda: ThresholdPlanner(threshold),
        "fixed": lambda: FixedPlanner(fixed_len),
        "off": OffPlanner,
    }
    if policy not in makers:
        raise ConfigurationError(f"policy is {policy!r}; choose one of {', '.join(makers)}")
    return makers[policy]()
