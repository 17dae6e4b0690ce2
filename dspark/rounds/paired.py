"""Rounds with two cohorts of requests in flight: one is drafted while the other is verified."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dspark.decoding.types import DraftBlock, DraftRequest
from dspark.rounds.clock import Clock
from dspark.rounds.config import LoopConfig
from dspark.rounds.draft_source import DraftSource
from dspark.rounds.request import LiveRequest, Phase
from dspark.rounds.roster import Roster
from dspark.rounds.round import Round
from dspark.rounds.stats import RoundReport
from dspark.rounds.step_ahead import StepAhead, step_ahead, weights_of
from dspark.rounds.tasks import Task, load_of_chunks
from dspark.scheduling.surface import StepLoad

_NUM_COHORTS = 2
# Members move once the larger cohort has more of them by this share of all.
_UNEVEN = 0.25


@dataclass(frozen=True, slots=True)
class _Drafted:
    """A cohort between its draft and its step."""

    cohort: int
    members: Sequence[LiveRequest]
    asks: Mapping[str, DraftRequest]
    blocks: Mapping[str, DraftBlock]
    draft_s: float

    def still_there(self) -> list[LiveRequest]:
        """Members that have neither left since they were drafted, nor to be computed anew."""
        return [one for one in self.members if one.phase is Phase.DECODING and one.cohort == self.cohort]


class PairedRounds:
    """One call of `run` has a step of one cohort and a draft of the other in flight, and waits for both.

    Each request belongs to one cohort, prompts ride in whichever step is next. A request that ends, gives way
    or is opened anew between its draft and its step is no longer verified with it: a block counts only while
    its request decodes and stands where the block begins.
    """

    def __init__(
        self,
        parts: Round,
        roster: Roster,
        drafts: DraftSource,
        *,
        config: LoopConfig,
        clock: Clock,
    ) -> None:
        self._parts = parts
        self._roster = roster
        self._drafts = drafts
        self._config = config
        self._clock = clock
        self._drafted: _Drafted | None = None

    @property
    def has_drafted(self) -> bool:
        """Whether a cohort waits for its step."""
        return self._drafted is not None

    def divide(self) -> None:
        """Give every request to a cohort, in turns by arrival."""
        for place, live in enumerate(self._decoding()):
            live.cohort = place % _NUM_COHORTS

    async def run(self, *, is_last: bool) -> RoundReport | None:
        """Verify the cohort that was drafted, and meanwhile draft the other one, unless this is the last.

        Returns:
            What the step did; None where there was nothing to verify yet.

        Raises:
            DsparkError: the step failed; no request changed, and no cohort waits any longer.
        """
        drafted, self._drafted = self._drafted, None
        started_s = self._clock.now()
        tasks, ahead = self._schedule(drafted)
        plan_s = self._clock.now() - started_s
        draft = None
        if not is_last:
            cohort = 1 - drafted.cohort if drafted else 0
            draft = asyncio.create_task(self._draft(cohort, ahead.prompts.batch_tokens))
        try:
            report = None
            if tasks:
                draft_s = drafted.draft_s if drafted else 0.0
                report = await self._parts.verify(tasks, ahead, draft_s=draft_s, plan_s=plan_s)
            if draft is not None:
                self._drafted = await draft
        finally:
            if draft is not None:
                draft.cancel()
        return report

    def _schedule(self, drafted: _Drafted | None) -> tuple[list[Task], StepAhead]:
        """The parts of the next step, and what was known of it."""
        budget = self._prompt_budget()
        chunks = self._parts.prefill_chunks(budget)
        prompts = load_of_chunks(chunks)
        if drafted is None:
            return chunks, step_ahead([], {}, prompts, budget, None)
        members = drafted.still_there()
        blocks = {
            live.request_id: block
            for live in members
            if (block := drafted.blocks.get(live.request_id)) is not None and live.can_use(block)
        }
        step = step_ahead(
            members,
            drafted.asks,
            prompts,
            budget,
            weights_of(members, self._clock.now()),
            cohort=drafted.cohort,
            num_cohorts=_NUM_COHORTS,
        )
        return [*self._parts.schedule(members, blocks, step), *chunks], step

    async def _draft(self, cohort: int, num_under_way: int) -> _Drafted:
        """Draft a cohort.

        Args:
            cohort: whose members are not in the step.
            num_under_way: prompt tokens of the step, which the one after it need not compute.
        """
        started_s = self._clock.now()
        members = self._members(cohort)
        asks = self._parts.asks_of(members, _NUM_COHORTS)
        answer: Sequence[DraftBlock] | None = None
        if asks:
            budget = self._prompt_budget()
            step = step_ahead(
                members,
                asks,
                StepLoad(min(budget, max(0, self._num_prompt_tokens() - num_under_way))),
                budget,
                weights_of(members, started_s),
                cohort=cohort,
                num_cohorts=_NUM_COHORTS,
            )
            answer = await self._drafts.draft(list(asks.values()), self._parts.meanwhile(step))
        blocks = self._parts.blocks_of(members, asks, answer)
        return _Drafted(cohort, members, asks, blocks, self._clock.now() - started_s)

    def _num_prompt_tokens(self) -> int:
        """Of all prompts that are not computed yet."""
        return sum(live.num_to_prefill for live in self._roster.open if live.phase is Phase.PREFILLING)

    def _prompt_budget(self) -> int:
        """Prompt tokens of a step: two steps lie between two deltas of a stream."""
        if not self._decoding():
            return self._config.prefill_tokens_alone
        return max(1, self._config.prefill_tokens // _NUM_COHORTS)

    def _decoding(self) -> list[LiveRequest]:
        return [live for live in self._roster.open if live.phase is Phase.DECODING]

    def _members(self, cohort: int) -> list[LiveRequest]:
        """The cohort that is drafted next, after those that joined and, where it is too large, some others.

        Members of the other cohort are in a step now and stay where they are.
        """
        decoding = self._decoding()
        own = [live for live in decoding if live.cohort == cohort]
        joining = [live for live in decoding if live.cohort is None]
        num_others = len(decoding) - len(own) - len(joining)
        for live in joining:
            if len(own) <= num_others:
                live.cohort = cohort
                own.append(live)
            else:
                live.cohort = 1 - cohort
                num_others += 1
        surplus = len(own) - num_others
        if surplus > 1 and surplus > _UNEVEN * len(decoding):
            kept = len(own) - surplus // 2
            for live in own[kept:]:
                live.cohort = 1 - cohort
            own = own[:kept]
        return sorted(own, key=lambda live: live.arrival)
