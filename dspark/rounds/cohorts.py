"""Rounds of all requests, or of two halves in turns: as the setting says, or as measured to be faster."""

from __future__ import annotations

from dspark.decoding.types import DrafterInfo, VerifierInfo
from dspark.rounds.clock import Clock
from dspark.rounds.config import LoopConfig
from dspark.rounds.draft_source import DraftSource
from dspark.rounds.paired import PairedRounds
from dspark.rounds.planner import Planner
from dspark.rounds.policies import CohortSetting
from dspark.rounds.roster import Roster
from dspark.rounds.round import Round
from dspark.rounds.stats import RoundCounters, RoundReport
from dspark.rounds.target_link import TargetLink
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.cohorts import AlwaysTwo, CohortChoice, CohortRound
from dspark.scheduling.surface import CapacitySurface


class CohortRounds:
    """Runs round after round and lets the number of cohorts change between two of them."""

    def __init__(
        self,
        roster: Roster,
        drafts: DraftSource,
        link: TargetLink,
        *,
        planner: Planner,
        config: LoopConfig,
        clock: Clock,
    ) -> None:
        self._roster = roster
        self._drafts = drafts
        self._clock = clock
        self._whole = Round(roster, drafts, link, planner=planner, config=config, clock=clock)
        self._paired = PairedRounds(self._whole, roster, drafts, config=config, clock=clock)
        self._choice = _choice_of(config.cohorts)
        self.num_cohorts = 1

    @property
    def counters(self) -> RoundCounters:
        """Sums over all rounds."""
        return self._whole.counters

    def learn_costs(self, verifier: VerifierInfo, drafter: DrafterInfo | None) -> None:
        """Take over measured costs, at start and whenever a peer came back."""
        if self._choice is not None:
            self._choice.learn_costs(
                CapacitySurface.from_points(verifier.step_cost).measured if verifier.step_cost else None,
                CapacityCurve.from_points(drafter.draft_cost) if drafter and drafter.draft_cost else None,
            )

    async def run(self) -> RoundReport | None:
        """Run one round; None where a cohort was drafted and there was nothing to verify yet.

        Raises:
            DsparkError: the step failed; no request changed.
        """
        if self._choice is None:
            return await self._whole.run()
        started_s = self._clock.now()
        num_wanted = self._choice.next(self._roster.num_open if self._drafts.is_ready else 0)
        # A cohort that was drafted is verified before there is one again.
        is_last = num_wanted == 1 and self._paired.has_drafted
        if num_wanted == 2 or is_last:
            if self.num_cohorts == 1:
                self._paired.divide()
            self.num_cohorts = 2
            was_filled = self._paired.has_drafted
            report = await self._paired.run(is_last=is_last)
            is_typical = was_filled and not is_last
        else:
            self.num_cohorts = 1
            report = await self._whole.run()
            is_typical = True
        if report is not None and is_typical:
            self._choice.observe(_seen(report, self._clock.now() - started_s))
        return report


def _seen(report: RoundReport, seconds: float) -> CohortRound:
    num_requests = len(report.verified)
    return CohortRound(
        num_requests=num_requests,
        num_slots=report.num_slots,
        num_tokens=report.batch_tokens,
        num_prompt_tokens=report.num_prefill_tokens,
        num_committed=num_requests + sum(one.num_accepted for one in report.verified),
        seconds=seconds,
    )


def _choice_of(setting: CohortSetting) -> CohortChoice | AlwaysTwo | None:
    if setting == "1":
        return None
    return AlwaysTwo() if setting == "2" else CohortChoice()
