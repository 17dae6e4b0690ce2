"""One cohort of requests in flight or two: whether to draft one half while the other half is verified.

With one cohort a round lasts D + V, a draft and a step of all requests. With two the halves take turns: while
one is verified, the other is drafted, and every request has had a round after 2 max(D', V') of half as many
slots and tokens. While the target is bound by memory half a batch costs nearly as much as a whole one, so one
cohort is faster; where steps cost in proportion to their tokens, two hide the drafts behind the steps. On
hardware that drafter and verifier share little or nothing is hidden. That is measured, not assumed: both
numbers are judged by the tokens that their own rounds committed per second; the curves only tell which is
worth a visit and how a change of the load moves either.

Losslessness. The choice is made between rounds, from rounds that have ended, and takes no draft back: a
cohort that was drafted is verified before the number changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dspark.scheduling.capacity import CapacityCurve

# Rounds of a cohort over which figures are averaged.
_WINDOW = 64
# Likewise of rounds that drafted, where drafting pauses for most of them.
_DRAFTED_WINDOW = 16
# Rounds that every request is given with a number before it is judged.
_TRIAL = 16
# Rounds between two judgements.
_BETWEEN = 8
# Two cohorts are visited where the curves give them at least this share of the speed of one.
_WORTH_A_VISIT = 0.97
# Two cohorts are at home while they are faster than one by this factor: what is as fast is left simple.
_MARGIN = 1.01
# Rounds before the next visit; doubles while visits change nothing.
_FIRST_PAUSE, _LONGEST_PAUSE = 128, 4096
# A load that has grown or shrunk by this factor is a new one, for which nothing is known.
_NEW_LOAD = 1.5
# Figures are judged once their mean load is as near as this to the load of now.
_STEADY = 1.1


@dataclass(frozen=True, slots=True)
class RoundLoad:
    """What a round of all requests is made of.

    Attributes:
        num_slots: drafted.
        num_tokens: of the step, or of the two together.
    """

    num_slots: float
    num_tokens: float


def round_s(load: RoundLoad, num_cohorts: int, steps: CapacityCurve, drafts: CapacityCurve) -> float:
    """Seconds in which each request has one round, by the curves, on hardware apart for drafts and steps.

    Args:
        load: of all requests.
        num_cohorts: 1 or 2.
        steps: cost of a step by its tokens.
        drafts: cost of a draft by its slots.
    """
    num_slots, num_tokens = round(load.num_slots / num_cohorts), max(1, round(load.num_tokens / num_cohorts))
    draft_s = drafts.step_s(num_slots) if num_slots > 0 else 0.0
    step_s = steps.step_s(num_tokens)
    return draft_s + step_s if num_cohorts == 1 else 2.0 * max(draft_s, step_s)


@dataclass(frozen=True, slots=True)
class CohortRound:
    """What became of one round of one cohort.

    Attributes:
        num_requests: that were verified.
        num_slots: drafted for them.
        num_tokens: of the step, those of prompts included.
        num_prompt_tokens: of these.
        num_committed: tokens of requests that were verified.
        seconds: until the next round could begin.
    """

    num_requests: int
    num_slots: int
    num_tokens: int
    num_prompt_tokens: int
    num_committed: int
    seconds: float


class Experience:
    """What rounds with so many cohorts did lately, as if no prompts had been computed beside them.

    How many prompts there are is chance, and would say more about two numbers of cohorts than these do.
    """

    def __init__(self, num_cohorts: int) -> None:
        self._num_cohorts = num_cohorts
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.num_rounds = 0
        self._weight = self._requests = self._slots = self._tokens = self._committed = 0.0
        self._seconds = 0.0
        # of rounds that drafted, and what they would have lasted with the other number of cohorts
        self._drafted_committed = self._other_seconds = 0.0

    def observe(self, seen: CohortRound, steps: CapacityCurve, drafts: CapacityCurve) -> None:
        """Take in a round of one cohort."""
        count, num_own = self._num_cohorts, seen.num_tokens - seen.num_prompt_tokens
        own = RoundLoad(count * seen.num_slots, count * num_own)
        by_curves = round_s(own, count, steps, drafts)
        seconds = seen.seconds
        if seen.num_prompt_tokens > 0:
            with_prompts = RoundLoad(own.num_slots, count * seen.num_tokens)
            seconds *= by_curves / round_s(with_prompts, count, steps, drafts)
        keep = 1.0 - 1.0 / _WINDOW
        self.num_rounds += 1
        self._weight = keep * self._weight + 1.0
        self._requests = keep * self._requests + seen.num_requests
        self._slots = keep * self._slots + seen.num_slots
        self._tokens = keep * self._tokens + num_own
        self._committed = keep * self._committed + seen.num_committed
        self._seconds = keep * self._seconds + seconds
        if seen.num_slots > 0:
            other_seconds = seconds * round_s(own, 3 - count, steps, drafts) / by_curves
            keep = 1.0 - 1.0 / _DRAFTED_WINDOW
            self._drafted_committed = keep * self._drafted_committed + seen.num_committed
            self._other_seconds = keep * self._other_seconds + other_seconds

    @property
    def num_requests(self) -> float:
        """Mean over the rounds, of all cohorts together."""
        return self._num_cohorts * self._requests / self._weight

    def speed(self, num_requests: int, steps: CapacityCurve, drafts: CapacityCurve) -> float:
        """Committed tokens per second of so many requests."""
        mean = self.num_requests
        growth = round_s(self._load(mean), self._num_cohorts, steps, drafts) / round_s(
            self._load(num_requests), self._num_cohorts, steps, drafts
        )
        return self._committed / self._seconds * growth * num_requests / mean

    def gain_of_other(self) -> float:
        """How much faster the other number would have been, by the curves; 0 where nothing was drafted.

        Drafts that do not pay in front of a step may pay beside it: what the few rounds committed that
        drafted is set against all rounds.
        """
        if self._other_seconds == 0.0:
            return 0.0
        return self._drafted_committed / self._other_seconds / (self._committed / self._seconds)

    def _load(self, num_requests: float) -> RoundLoad:
        per_request = num_requests / self._requests
        return RoundLoad(per_request * self._slots, per_request * self._tokens)


class CohortChoice:
    """Chooses the number of cohorts round by round, and remembers how both numbers fared.

    One of them is at home. The other is visited for some rounds where the curves say that it may pay; then
    the faster one is at home. A visit that changes nothing makes the next one come later.
    """

    def __init__(self) -> None:
        self._curves: tuple[CapacityCurve, CapacityCurve] | None = None
        self._seen = {1: Experience(1), 2: Experience(2)}
        self._settle(1, 1, visit_in=0)

    def learn_costs(self, steps: CapacityCurve | None, drafts: CapacityCurve | None) -> None:
        """Begin anew with measured costs; while one of them is missing there is one cohort."""
        self._curves = None if steps is None or drafts is None else (steps, drafts)
        for seen in self._seen.values():
            seen.forget()
        self._settle(1, 1, visit_in=0)

    def observe(self, seen: CohortRound) -> None:
        """Take in a round of a cohort, made with as many cohorts as `next` said last."""
        if self._curves is not None and seen.num_requests > 0 and seen.seconds > 0.0:
            self._seen[self._current].observe(seen, *self._curves)
            self._num_here += 1
            self._visit_in -= 1

    def next(self, num_requests: int) -> int:
        """Cohorts of the next round, 1 or 2.

        Args:
            num_requests: that decode.
        """
        if num_requests < 2 or self._curves is None:
            self._move_to(1)
            self._home = 1
        elif self._num_here >= _TRIAL * self._current and self._num_here % _BETWEEN == 0:
            self._judge(num_requests)
        return self._current

    def _judge(self, num_requests: int) -> None:
        if self._current != self._home:
            better = 2 if self._gain_of_two(num_requests) >= _MARGIN else 1
            is_news = better != self._home
            pause = _FIRST_PAUSE if is_news else min(2 * self._pause, _LONGEST_PAUSE)
            self._settle(better, num_requests, visit_in=pause)
        elif not _is_near(self._seen[self._home].num_requests, num_requests, _STEADY):
            return
        elif self._visit_in <= 0 or not _is_near(self._settled_at, num_requests, _NEW_LOAD):
            self._consider_visit()
        elif self._home == 2 and self._gain_of_two(num_requests) < _MARGIN:
            self._settle(1, num_requests, visit_in=self._pause)

    def _consider_visit(self) -> None:
        """See how the other number fares now: what was known of it is old.

        One cohort is always worth it, as the curves do not tell how two get into each other's way.
        """
        self._seen[3 - self._home].forget()
        if self._home == 2 or self._seen[1].gain_of_other() >= _WORTH_A_VISIT:
            self._move_to(3 - self._home)

    def _gain_of_two(self, num_requests: int) -> float:
        assert self._curves is not None, "learn_costs comes first"
        one, two = (self._seen[count].speed(num_requests, *self._curves) for count in (1, 2))
        return two / one

    def _settle(self, num_cohorts: int, num_requests: int, *, visit_in: int) -> None:
        self._home, self._settled_at = num_cohorts, num_requests
        self._visit_in, self._pause = visit_in, max(visit_in, _FIRST_PAUSE)
        self._move_to(num_cohorts)

    def _move_to(self, num_cohorts: int) -> None:
        self._current, self._num_here = num_cohorts, 0


def _is_near(one: float, other: float, factor: float) -> bool:
    return 1.0 / factor < one / other < factor


class AlwaysTwo:
    """Two cohorts whenever there are requests for two."""

    def learn_costs(self, steps: CapacityCurve | None, drafts: CapacityCurve | None) -> None:
        """Needs none."""

    def observe(self, seen: CohortRound) -> None:
        """Learns nothing."""

    def next(self, num_requests: int) -> int:
        """Cohorts of the next round, 1 or 2, for so many requests that decode."""
        return 2 if num_requests > 1 else 1
