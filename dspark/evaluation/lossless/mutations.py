"""Negative controls: what would not be lossless. The checks must catch each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from torch import Tensor

from dspark.decoding.acceptance import Judgement, Verdict, accept_batch
from dspark.decoding.adjustment import LogitAdjuster, Penalties
from dspark.decoding.types import DraftBlock, DrafterInfo, DraftRequest, SparseProbs
from dspark.evaluation.lossless.enumeration import AcceptRule
from dspark.evaluation.lossless.tables import Prefix, Tables
from dspark.rounds.interfaces import Drafter
from dspark.rounds.planner import FreePlanner
from dspark.rounds.step_ahead import StepAhead
from dspark.scheduling.draft_length import DraftLength
from dspark.scheduling.ranking import Confidences

WRONG_RESIDUAL = AcceptRule(residual=lambda target_probs, _draft_probs: target_probs)
TOO_LENIENT = AcceptRule(accept=lambda target_prob, draft_prob: min(1.0, 1.2 * target_prob / draft_prob))


class ForgetfulTables(Tables):
    """Penalises every row of a block as if it were the first."""

    @classmethod
    def of(cls, tables: Tables) -> ForgetfulTables:
        """The same models, forgetful."""
        return cls(**{each.name: getattr(tables, each.name) for each in fields(tables)})

    def adjuster(self, output: Prefix) -> LogitAdjuster | None:
        """See `Tables`."""
        assert self.sampling.adjustments is not None, self.sampling
        return _Forgetful(self.sampling.adjustments, (), output)


class _Forgetful(LogitAdjuster):
    def penalties(self, drafts: Sequence[int]) -> Penalties | None:
        first = super().penalties(())
        assert first is not None, "there are penalties to forget"
        repetition, subtracted = (
            np.repeat(each, len(drafts) + 1, axis=0) for each in (first.repetition, first.subtracted)
        )
        return replace(first, repetition=repetition, subtracted=subtracted)


def first_draft_stays(logits: Tensor, judgements: Sequence[Judgement]) -> list[Verdict]:
    """An acceptor that commits the first draft of a block whatever the target says."""
    return [
        Verdict(1, (int(one.draft_token_ids[0]),)) if len(one.draft_token_ids) else verdict
        for one, verdict in zip(judgements, accept_batch(logits, judgements), strict=True)
    ]


class PeekingPlanner(FreePlanner):
    """Verifies a block only where its second confidence, which knows the first draft, is high."""

    def num_to_draft(self, num_requests: int, num_cohorts: int = 1) -> int:
        """All."""
        return num_requests

    def draft_len(self, history: DraftLength, gamma: int) -> int:
        """Whole blocks."""
        return gamma

    def plan(self, step: StepAhead, confidences: Sequence[Confidences]) -> list[int]:
        """All or nothing."""
        return [
            len(confidence) if len(confidence) > 1 and confidence[1] > 0.5 else 0
            for confidence in confidences
        ]


@dataclass(frozen=True, slots=True)
class MisstatingDrafter:
    """Says that its drafts were drawn uniformly from what it could have drawn."""

    drafter: Drafter

    async def get_info(self) -> DrafterInfo:
        """See `Drafter`."""
        return await self.drafter.get_info()

    async def draft(self, requests: Sequence[DraftRequest]) -> Sequence[DraftBlock]:
        """See `Drafter`."""
        blocks = await self.drafter.draft(requests)
        return [replace(block, probs=tuple(map(_as_if_uniform, block.probs))) for block in blocks]

    async def close(self, request_ids: Sequence[str]) -> None:
        """See `Drafter`."""
        await self.drafter.close(request_ids)


def _as_if_uniform(probs: SparseProbs) -> SparseProbs:
    return SparseProbs(probs.token_ids, np.ones_like(probs.probs))
