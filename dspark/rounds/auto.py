"""Early stop or barrier, whichever has planned better lately."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dspark.rounds.adaptive import BarrierPlanner, early_stop_plan, plan_of
from dspark.rounds.draft_guard import Plan
from dspark.rounds.step_ahead import StepAhead
from dspark.scheduling.allocation import early_stop_budget
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.ranking import Confidences, rank_drafts

# Weight of the newest comparison in the mean advantage.
_RATE = 0.1
# Rounds that are compared: the first ones, then one in so many, since a comparison costs as much as a plan.
_FIRST_ROUNDS, _ONE_IN = 32, 8


class AutoPlanner(BarrierPlanner):
    """Plans by early stop or by the barrier, as each would have fared in the rounds before.

    Early stop knows this round's confidences, which is worth most with few requests, whose survivals change
    from round to round; at the edge of a step of the curve it stops too soon. The barrier compares all
    budgets, by confidences that are two rounds old, which matters little with many requests. Now and then
    both are held against what the confidences of a round promised.

    Losslessness. Both plans are causal, and which of them is taken follows from earlier rounds alone.
    """

    def __init__(self) -> None:
        super().__init__()
        # mean log-ratio of the speeds that early stop and the barrier promised
        self._advantage = 0.0
        self._num_planned = 0
        self._last: tuple[Sequence[Confidences], StepAhead, CapacityCurve, int] | None = None

    @property
    def stops_early(self) -> bool:
        """Whether the next round is planned by early stop."""
        return self._advantage >= 0.0

    @property
    def prepares(self) -> bool:
        """Whether there is a round to look back on, or a budget is wanted: most early stops need neither."""
        return self._last is not None or self._wants_budget()

    def prepare(self, step: StepAhead) -> None:
        """Look back on the round before, then fix the budget of the coming one where it is wanted."""
        if self._last is not None:
            self._look_back(*self._last)
            self._last = None
        if self._wants_budget():
            super().prepare(step)

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """As the better of the two."""
        prefix_lens = super().plan(step, confidences)
        self._num_planned += 1
        return prefix_lens

    def _wants_budget(self) -> bool:
        return self._is_compared() or not self.stops_early

    def _is_compared(self) -> bool:
        return self._num_planned < _FIRST_ROUNDS or self._num_planned % _ONE_IN == 0

    def _look_back(
        self, confidences: Sequence[Confidences], step: StepAhead, curve: CapacityCurve, budget: int
    ) -> None:
        ranked = rank_drafts(confidences, step.weights)
        early = plan_of(ranked, early_stop_budget(ranked, curve))
        late = plan_of(ranked, min(budget, len(ranked.gains)))
        ratio = early.speed(curve) / late.speed(curve)
        self._advantage += _RATE * (math.log(ratio) - self._advantage)

    def _search(self, step: StepAhead, confidences: Sequence[Confidences], curve: CapacityCurve) -> Plan:
        if self._budget is not None and self._is_compared():
            self._last = (confidences, step, curve, self._budget)
        if self.stops_early:
            return early_stop_plan(step, confidences, curve)
        return super()._search(step, confidences, curve)
