"""One round: draft a block, schedule its prefix, verify it, commit what was accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dspark.decoding.stopping import cut_at_stop
from dspark.decoding.types import (
    DraftBlock,
    DraftRequest,
    PrefillItem,
    RoundStats,
    StepResult,
    TokenDelta,
    VerifyOutcome,
    VerifyStatus,
)
from dspark.errors import ContextTooLongError
from dspark.rounds.clock import Clock
from dspark.rounds.config import LoopConfig
from dspark.rounds.draft_source import DraftSource
from dspark.rounds.planner import Planner
from dspark.rounds.request import LiveRequest, Phase
from dspark.rounds.roster import Roster
from dspark.rounds.stats import RequestRound, RoundCounters, RoundReport
from dspark.rounds.step_ahead import StepAhead, step_ahead, weights_of
from dspark.rounds.target_link import TargetLink
from dspark.rounds.tasks import Task, load_of_chunks, verify_task
from dspark.scheduling.prompts import PromptLeft, divide_prompt_tokens
from dspark.scheduling.ranking import Confidences
from dspark.scheduling.weights import standing

_NO_CONFIDENCES: Confidences = np.zeros(0, dtype=np.float32)


class Round:
    """Runs rounds over the open requests. Raises what the verifier raises; then nothing was committed."""

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
        self._link = link
        self._planner = planner
        self._config = config
        self._clock = clock
        self.counters = RoundCounters()
        # requests drafted for in rounds that did so for some only
        self._num_sampled = 0

    async def run(self) -> RoundReport:
        """Run one round over all open requests.

        Raises:
            DsparkError: the step failed; no request changed.
        """
        started_s = self._clock.now()
        decoding = [live for live in self._roster.open if live.phase is Phase.DECODING]
        prefill_budget = self._config.prefill_tokens if decoding else self._config.prefill_tokens_alone
        chunks = self.prefill_chunks(prefill_budget)
        asks = self.asks_of(decoding)
        step = step_ahead(
            decoding, asks, load_of_chunks(chunks), prefill_budget, weights_of(decoding, started_s)
        )
        blocks = await self._draft(decoding, asks, step)
        drafted_s = self._clock.now()
        tasks = [*self.schedule(decoding, blocks, step), *chunks]
        plan_s = self._clock.now() - drafted_s
        return await self.verify(tasks, step, draft_s=drafted_s - started_s, plan_s=plan_s)

    async def verify(
        self, tasks: Sequence[Task], step: StepAhead, *, draft_s: float, plan_s: float
    ) -> RoundReport:
        """Have the parts of a step verified, commit what it accepted, and learn from what it took.

        Raises:
            DsparkError: the step failed; no request changed.
        """
        started_s = self._clock.now()
        result = await self._link.step([task.item for task in tasks])
        step_s = self._clock.now() - started_s
        report = RoundReport(
            verified=self.apply(tasks, result),
            num_prefill_tokens=step.prompts.batch_tokens,
            load=step.load(result.batch_tokens),
            draft_s=draft_s,
            plan_s=plan_s,
            step_s=step_s,
            verify_s=result.verify_ns * 1e-9,
        )
        self.counters.num_rounds += 1
        self._planner.observe(report)
        return report

    def prefill_chunks(self, budget: int) -> list[Task]:
        """Spend the prompt tokens of this step."""
        prefilling = [live for live in self._roster.open if live.phase is Phase.PREFILLING]
        prefilling.sort(key=lambda live: live.turn)
        prompts = [
            PromptLeft(live.num_to_prefill, standing(live.request.service.tier)) for live in prefilling
        ]
        return [
            Task(live, PrefillItem(live.request_id, live.epoch, num_tokens))
            for live, num_tokens in zip(prefilling, divide_prompt_tokens(prompts, budget), strict=True)
            if num_tokens > 0
        ]

    def asks_of(self, decoding: Sequence[LiveRequest], num_cohorts: int = 1) -> dict[str, DraftRequest]:
        """What to ask of the drafter in this round, by request id."""
        info = self._drafts.info
        if info is None or not decoding:
            return {}
        asks = {}
        for live in self._turn_of(decoding, self._planner.num_to_draft(len(decoding), num_cohorts)):
            num_drafts = self._planner.draft_len(live.draft_length, info.gamma)
            ask = live.ask_for_block(num_drafts, info.gamma)
            if ask is not None:
                asks[live.request_id] = ask
        return asks

    def _turn_of(self, decoding: Sequence[LiveRequest], num_wanted: int) -> Sequence[LiveRequest]:
        """So many of the requests, others each time."""
        if num_wanted >= len(decoding):
            return decoding
        first, self._num_sampled = self._num_sampled, self._num_sampled + num_wanted
        return [decoding[place % len(decoding)] for place in range(first, first + num_wanted)]

    async def _draft(
        self, decoding: Sequence[LiveRequest], asks: dict[str, DraftRequest], step: StepAhead
    ) -> dict[str, DraftBlock]:
        """Blocks by request id; a request without one is decoded plainly in this round."""
        if not asks:
            return {}
        answer = await self._drafts.draft(list(asks.values()), self.meanwhile(step))
        return self.blocks_of(decoding, asks, answer)

    def meanwhile(self, step: StepAhead) -> Callable[[], None] | None:
        """What is to be done while the drafts of a step are made."""
        return partial(self._planner.prepare, step) if self._planner.prepares else None

    def blocks_of(
        self,
        decoding: Sequence[LiveRequest],
        asks: Mapping[str, DraftRequest],
        answer: Sequence[DraftBlock] | None,
    ) -> dict[str, DraftBlock]:
        """The blocks of an answer that continue what was committed; an empty one is an answer, too."""
        if answer is None:
            return {}
        by_id = {live.request_id: live for live in decoding if live.request_id in asks}
        blocks = {
            block.request_id: block
            for block in answer
            if block.request_id in by_id and by_id[block.request_id].can_use(block)
        }
        for request_id, live in by_id.items():
            live.num_rounds_without_block = 0 if request_id in blocks else live.num_rounds_without_block + 1
        return {request_id: block for request_id, block in blocks.items() if len(block.token_ids)}

    def schedule(
        self, decoding: Sequence[LiveRequest], blocks: Mapping[str, DraftBlock], step: StepAhead
    ) -> list[Task]:
        """What is verified of each request of a step."""
        confidences = []
        for live in decoding:
            block = blocks.get(live.request_id)
            # Never more than the output has room for beside the bonus token.
            confidences.append(block.confidence[: live.num_remaining - 1] if block else _NO_CONFIDENCES)
        copied = {request_id for request_id, block in blocks.items() if block.is_copied}
        num_copied = sum(
            len(one) for live, one in zip(decoding, confidences, strict=True) if live.request_id in copied
        )
        prefix_lens = self._planner.plan(replace(step, num_copied=num_copied), confidences)
        tasks = []
        for live, confidence, prefix_len in zip(decoding, confidences, prefix_lens, strict=True):
            block = blocks.get(live.request_id)
            tasks.append(verify_task(live, block, len(confidence), prefix_len))
            live.is_plain_once = False
        return tasks

    def apply(self, tasks: Sequence[Task], result: StepResult) -> list[RequestRound]:
        """Commit what a step accepted; requests that it could not serve start anew or make room."""
        was_alone = self._roster.num_open == 1
        verified, starved = [], []
        for task, outcome in zip(tasks, result.outcomes, strict=True):
            live = task.live
            if outcome.status is VerifyStatus.OUT_OF_PAGES:
                starved.append(task)
            elif outcome.status is VerifyStatus.PREFILLING and isinstance(task.item, PrefillItem):
                live.num_to_prefill -= task.item.num_tokens
                if live.num_to_prefill <= 0:
                    self._roster.requeue(live)
            elif outcome.status is VerifyStatus.COMMITTED and self._roster.is_current(live, outcome):
                verified.append(self._commit(task, outcome))
            else:
                # STALE, UNKNOWN, or made for another state: both sides start again from the tokens.
                self._roster.requeue(live)
        self._resync_drafts()
        if starved:
            self._relieve(starved, was_alone=was_alone)
        return [entry for entry in verified if entry is not None]

    def _commit(self, task: Task, outcome: VerifyOutcome) -> RequestRound | None:
        """Cut at the stop, commit, hand out; None where the item was a prompt chunk."""
        live, num_before = task.live, len(task.live.output)
        live.phase = Phase.DECODING
        token_ids, reason = cut_at_stop(outcome.token_ids, num_before, live.stop)
        num_accepted = min(outcome.num_accepted, len(token_ids))
        stats = RoundStats(task.num_drafted, task.num_scheduled, num_accepted)
        logprobs = outcome.logprobs[: len(token_ids)]
        self._roster.commit(
            live, TokenDelta(live.request_id, num_before, token_ids, stats, logprobs, finish_reason=reason)
        )
        self._count(task, num_accepted, len(token_ids), outcome.num_near_ties)
        live.num_verified = task.num_scheduled
        live.was_copied = task.is_copied
        if not task.is_copied:  # a copy costs nothing, however long
            live.draft_length.learn(task.num_drafted, task.num_scheduled, num_accepted)
        if isinstance(task.item, PrefillItem):
            return None
        return RequestRound(
            live.request_id,
            task.num_drafted,
            task.num_scheduled,
            num_accepted,
            len(token_ids),
            is_copied=task.is_copied,
        )

    def _count(self, task: Task, num_accepted: int, num_committed: int, num_near_ties: int) -> None:
        counters = self.counters
        counters.num_committed_tokens += num_committed
        counters.num_near_ties += num_near_ties
        if isinstance(task.item, PrefillItem):
            return
        counters.num_proposed_tokens += task.num_drafted
        counters.num_draft_tokens += task.num_scheduled
        if task.num_scheduled > 0:
            counters.num_drafts += 1
            counters.count_accepted(num_accepted)
        else:
            counters.num_plain_rounds += 1

    def _resync_drafts(self) -> None:
        """Have features computed anew where the drafter keeps lacking them (it restarted, or lost some)."""
        for live in self._roster.open:
            patience = live.rounds_before_resync
            # Not for an output that is about to end: the prefill would cost more than drafts could save.
            if live.num_rounds_without_block >= patience and live.num_remaining > patience:
                live.rounds_before_resync *= 2
                self._roster.requeue(live)

    def _relieve(self, starved: Sequence[Task], *, was_alone: bool) -> None:
        """Make room for requests that found no pages: another gives way, or the drafts do."""
        if self._roster.num_open > 1:
            self._roster.preempt()
            self.counters.num_preemptions += 1
            return
        task = starved[0]
        if not was_alone or not self._roster.is_open(task.live):
            return  # what left in this round has made room
        if task.num_scheduled > 0:
            task.live.is_plain_once = True
            return
        self._roster.fail(
            task.live,
            ContextTooLongError(
                f"the request holds {task.live.committed_len} tokens and the verifier has no pages for more; "
                "shorten prompt_token_ids or give the verifier a larger pool",
                field="prompt_token_ids",
            ),
        )
