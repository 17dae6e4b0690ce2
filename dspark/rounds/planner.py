"""Decides for one round whether to draft and how much of each block to verify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dspark.decoding.types import DrafterInfo, VerifierInfo
from dspark.errors import ConfigurationError
from dspark.scheduling.allocation import allocate_early_stop, allocate_fixed, allocate_off
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.draft_length import DraftLength

# Rounds in a row whose plan would have been slower than not drafting at all, before drafting pauses.
_ROUNDS_BEFORE_PAUSE = 4
# Rounds of the first pause; doubles while drafting keeps losing.
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 64


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

    def plan(self, confidences: Sequence[Sequence[float]], num_prefill_tokens: int) -> list[int]:
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

    def plan(self, confidences: Sequence[Sequence[float]], num_prefill_tokens: int) -> list[int]:
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

    def plan(self, confidences: Sequence[Sequence[float]], num_prefill_tokens: int) -> list[int]:
        """The same for all."""
        return allocate_fixed([len(confidence) for confidence in confidences], self._prefix_len)


class EarlyStopPlanner:
    """Algorithm 1 with early stop, and a guard: where drafting keeps losing it pauses for some rounds.

    The guard looks at plans of earlier rounds only, so it is as causal as the allocation.
    """

    def __init__(self) -> None:
        self._steps: CapacityCurve | None = None
        self._drafts: CapacityCurve | None = None
        self._num_losses = 0
        self._pause_len = _FIRST_PAUSE
        self._num_paused = 0

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
        if self._num_paused > 0:
            self._num_paused -= 1
            return False
        return True

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """As many as earlier rounds of the request made use of, and a little more."""
        return history.next(gamma)

    def plan(self, confidences: Sequence[Sequence[float]], num_prefill_tokens: int) -> list[int]:
        """Allocate; see `allocate_early_stop`."""
        assert self._steps is not None, "learn_costs comes first"
        num_slots = sum(len(confidence) for confidence in confidences)
        if num_slots == 0:
            return allocate_off(len(confidences))
        draft_s = self._drafts.step_s(num_slots) if self._drafts else 0.0
        curve = self._steps.with_draft_cost(draft_s)
        prefix_lens = allocate_early_stop(confidences, curve, base_tokens=num_prefill_tokens)
        self._judge(confidences, prefix_lens, curve, num_prefill_tokens)
        return prefix_lens

    def _judge(
        self,
        confidences: Sequence[Sequence[float]],
        prefix_lens: Sequence[int],
        curve: CapacityCurve,
        num_prefill_tokens: int,
    ) -> None:
        """Compare the plan with a round that never drafted, and pause drafting after a row of losses."""
        plain_tokens = len(confidences) + num_prefill_tokens
        expected = float(len(confidences))
        for confidence, prefix_len in zip(confidences, prefix_lens, strict=True):
            alive = 1.0
            for value in confidence[:prefix_len]:
                alive *= value
                expected += alive
        drafted = expected * curve.steps_per_second(plain_tokens + sum(prefix_lens))
        plain = len(confidences) / curve.step_s(plain_tokens)
        if drafted >= plain:
            self._num_losses, self._pause_len = 0, _FIRST_PAUSE
            return
        self._num_losses += 1
        if self._num_losses >= _ROUNDS_BEFORE_PAUSE:
            # One more losing round after the pause is enough for the next, longer one.
            self._num_losses = _ROUNDS_BEFORE_PAUSE - 1
            self._num_paused = self._pause_len
            self._pause_len = min(2 * self._pause_len, _LONGEST_PAUSE)


def planner_of(policy: str, *, fixed_len: int = 7) -> Planner:
    """The planner by the name of its policy: "early-stop", "fixed" or "off".

    Raises:
        ConfigurationError: no such policy.
    """
    if policy == "early-stop":
        return EarlyStopPlanner()
    if policy == "fixed":
        return FixedPlanner(fixed_len)
    if policy == "off":
        return OffPlanner()
    raise ConfigurationError(f"policy is {policy!r}; choose early-stop, fixed or off")
