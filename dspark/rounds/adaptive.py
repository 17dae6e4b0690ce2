"""Policies that weigh what drafts may bring against what a step of their size costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence

from dspark.decoding.types import Acceptance, DrafterInfo, SamplingParams, VerifierInfo
from dspark.errors import InvalidRequestError
from dspark.rounds.draft_guard import DraftGuard, Plan
from dspark.rounds.stats import RoundReport
from dspark.rounds.step_ahead import StepAhead
from dspark.scheduling.allocation import allocate_early_stop, best_budget, early_stop_budget
from dspark.scheduling.barrier import ConfidenceHistory, Snapshot, verify_budget
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.cost_model import CostModel
from dspark.scheduling.draft_length import DraftLength
from dspark.scheduling.ranking import Confidences, RankedDrafts, rank_drafts
from dspark.scheduling.surface import CapacitySurface, StepLoad

# Weight of the newest step in the mean share of prompt tokens.
_PREFILL_RATE = 0.02
# Rounds of fewer drafts are searched one by one, which is faster there than anything over arrays.
_FEW_DRAFTS = 64


class AdaptivePlanner(ABC):
    """What these policies share: measured costs, draft lengths from past rounds, and the guard."""

    def __init__(self) -> None:
        self._steps: CostModel | None = None
        self._drafts: CostModel | None = None
        # how full of prompt tokens steps were lately
        self._prefill_share = 0.0
        # by number of cohorts in flight: drafts that are hidden behind steps pay sooner
        self._guards = {1: DraftGuard(), 2: DraftGuard()}

    def learn_costs(self, verifier: VerifierInfo, drafter: DrafterInfo | None) -> None:
        """Start from the measured costs.

        Raises:
            ConfigurationError: the verifier's steps were not measured, or do not rise.
        """
        surface = CapacitySurface.from_points(verifier.step_cost)
        surface.check_rises()
        self._steps = CostModel(surface)
        self._drafts = None
        if drafter is not None and drafter.draft_cost:
            curve = CapacityCurve.from_points(drafter.draft_cost)
            self._drafts = CostModel(CapacitySurface.from_curve(curve))

    def observe(self, report: RoundReport) -> None:
        """Correct the costs by what the round took."""
        assert self._steps is not None, "learn_costs comes first"
        self._steps.observe(report.load, report.step_s)
        if self._drafts is not None:
            self._drafts.observe(StepLoad(report.num_slots), report.draft_s)

    @property
    def cost_error(self) -> float:
        """How far the predicted cost of a step was from the real one lately, as a share."""
        return self._steps.error if self._steps is not None else 0.0

    def check(self, sampling: SamplingParams) -> None:
        """Take every request."""
        return

    def num_to_draft(self, num_requests: int, num_cohorts: int = 1) -> int:
        """All, as long as drafting has paid lately; asked once per round."""
        return self._guards[num_cohorts].num_to_draft(num_requests)

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """As many as earlier rounds of the request made use of, and a little more; all if drafts are free."""
        return gamma if self._drafts is None else history.next(gamma)

    @property
    def prepares(self) -> bool:
        """Nothing to prepare."""
        return False

    def prepare(self, step: StepAhead) -> None:
        """Nothing to prepare."""
        return

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """Prefix lengths, and what they tell the guard."""
        self._prefill_share += _PREFILL_RATE * (step.prefill_share - self._prefill_share)
        num_drafts = sum(map(len, confidences))
        if num_drafts == 0:
            return [0] * len(confidences)
        curve = self._curve(num_drafts - step.num_copied, step)
        plan = self._search(step, confidences, curve)
        judged, plain_s = self._judged(plan, step, confidences, curve), self._plain_s(step, curve)
        self._guards[step.num_cohorts].judge(judged, curve, plain_s)
        return plan.prefix_lens

    @abstractmethod
    def _search(self, step: StepAhead, confidences: Sequence[Confidences], curve: CapacityCurve) -> Plan:
        """How much of each block is verified."""

    def _judged(
        self, plan: Plan, step: StepAhead, confidences: Sequence[Confidences], curve: CapacityCurve
    ) -> Plan:
        """The plan by which later rounds decide whether to draft."""
        return plan

    def _curve(self, num_slots: int, step: StepAhead) -> CapacityCurve:
        """Costs of this round if its blocks have so many slots together."""
        draft_s = self._drafts.step_s(StepLoad(num_slots)) if self._drafts and num_slots > 0 else 0.0
        if step.num_cohorts == 1:
            return self._curve_of(step, draft_s=draft_s)
        return self._curve_of(step).beside_draft(draft_s)

    def _plain_s(self, step: StepAhead, curve: CapacityCurve) -> float:
        """Seconds of a plain step of these requests, which without drafts share it with the other cohort."""
        num_requests, count = len(step.request_ids), step.num_cohorts
        if count == 1:
            return curve.round_s(num_requests) - curve.draft_s
        return self._curve_of(step, num_cohorts=count).round_s(count * num_requests) / count

    def _curve_of(self, step: StepAhead, *, draft_s: float = 0.0, num_cohorts: int = 1) -> CapacityCurve:
        """Costs of so many such steps in one."""
        assert self._steps is not None, "learn_costs comes first"
        num_decoding, context_len, prompts = len(step.request_ids), step.context_len, step.prompts
        curve = self._steps.curve(num_cohorts * num_decoding, context_len, draft_s=draft_s)
        if prompts.batch_tokens == 0:
            return curve
        return curve.beside_prompt(
            num_cohorts * num_decoding,
            num_cohorts * prompts.batch_tokens,
            # The fuller steps are of prompts, the more of these wait for room.
            value=self._prefill_share**2,
            context_s=num_cohorts * self._steps.prompt_s(prompts, context_len),
        )


class EarlyStopPlanner(AdaptivePlanner):
    """Algorithm 1 with early stop; see `allocate_early_stop`."""

    def _search(self, step: StepAhead, confidences: Sequence[Confidences], curve: CapacityCurve) -> Plan:
        return early_stop_plan(step, confidences, curve)


class RetrospectivePlanner(AdaptivePlanner):
    """The best plan with all confidences in view: only for outputs that do not depend on the plan.

    Losslessness. Under greedy and coupled acceptance a committed token is the target's own choice, made of
    its logits and of noise that is keyed by seed and position: how much is verified decides when a token is
    found, never which. Under rejection sampling this search leaks (paper, Appendix A), so such requests are
    turned away.
    """

    def check(self, sampling: SamplingParams) -> None:
        """Turn away what it would not be lossless for.

        Raises:
            InvalidRequestError: the request is sampled by rejection.
        """
        if sampling.acceptance is Acceptance.REJECTION:
            raise InvalidRequestError(
                "this server runs the policy retrospective, which is lossless only for greedy and seeded "
                "requests; send temperature 0, or a seed",
                field="seed",
            )

    def _search(self, step: StepAhead, confidences: Sequence[Confidences], curve: CapacityCurve) -> Plan:
        ranked = rank_drafts(confidences, step.weights)
        return plan_of(ranked, best_budget(ranked, curve))


class BarrierPlanner(AdaptivePlanner):
    """A budget from confidences two rounds old, filled by survival; see `dspark.scheduling.barrier`.

    The budget is found while the drafter is at work: between its answer and the verification only the fill
    is left.
    """

    def __init__(self) -> None:
        super().__init__()
        # by cohort, each of which counts its own rounds
        self._history: defaultdict[int, ConfidenceHistory] = defaultdict(ConfidenceHistory)
        self._round_number: defaultdict[int, int] = defaultdict(int)
        self._budget: int | None = None

    @property
    def prepares(self) -> bool:
        """The budget of every round."""
        return True

    def prepare(self, step: StepAhead) -> None:
        """Fix the budget of the coming round, of which nothing is known yet."""
        blocks = {
            request_id: num_asked
            for request_id, num_asked in zip(step.request_ids, step.num_asked, strict=True)
            if num_asked
        }
        weights = dict.fromkeys(step.request_ids, 1.0)
        if step.weights is not None:
            weights = dict(zip(step.request_ids, step.weights.tolist(), strict=True))
        round_number = self._round_number[step.cohort] + 1
        self._budget = verify_budget(
            self._history[step.cohort].before(round_number),
            round_number,
            blocks,
            self._curve(sum(blocks.values()) - step.num_copied, step),
            weights=weights,
            other_weights=[weight for name, weight in weights.items() if name not in blocks],
        )

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """Fill the budget that was fixed before these confidences were known."""
        self._round_number[step.cohort] += 1
        prefix_lens = super().plan(step, confidences)
        if any(map(len, confidences)):
            snapshot = Snapshot(self._round_number[step.cohort], step.request_ids, confidences)
            self._history[step.cohort].record(snapshot)
        self._budget = None
        return prefix_lens

    def _search(self, step: StepAhead, confidences: Sequence[Confidences], curve: CapacityCurve) -> Plan:
        assert self._budget is not None, "prepare comes before the drafts"
        ranked = rank_drafts(confidences, step.weights)
        return plan_of(ranked, min(self._budget, len(ranked.gains)))

    def _judged(
        self, plan: Plan, step: StepAhead, confidences: Sequence[Confidences], curve: CapacityCurve
    ) -> Plan:
        """Of a probe, what would have been best: its budget came from before the pause."""
        if not self._guards[step.num_cohorts].is_probing:
            return plan
        ranked = rank_drafts(confidences, step.weights)
        return plan_of(ranked, best_budget(ranked, curve))


def plan_of(ranked: RankedDrafts, num_admitted: int) -> Plan:
    """The plan that admits so many drafts."""
    return Plan(
        prefix_lens=ranked.prefix_lens(num_admitted),
        num_admitted=num_admitted,
        expected=ranked.base + float(ranked.gains[:num_admitted].sum()),
        base=ranked.base,
        num_requests=ranked.num_requests,
    )


def early_stop_plan(step: StepAhead, confidences: Sequence[Confidences], curve: CapacityCurve) -> Plan:
    """The plan of Algorithm 1 with early stop."""
    if len(confidences) > _FEW_DRAFTS or sum(map(len, confidences)) > _FEW_DRAFTS:
        ranked = rank_drafts(confidences, step.weights)
        return plan_of(ranked, early_stop_budget(ranked, curve))
    blocks = [confidence.tolist() for confidence in confidences]
    weights = [1.0] * len(blocks) if step.weights is None else step.weights.tolist()
    prefix_lens = allocate_early_stop(blocks, curve, weights=weights)
    base = expected = sum(weights)
    for block, weight, prefix_len in zip(blocks, weights, prefix_lens, strict=True):
        alive = weight
        for value in block[:prefix_len]:
            alive *= value
            expected += alive
    return Plan(prefix_lens, sum(prefix_lens), expected, base, len(blocks))
