"""The heads of a drafter over the hidden states of a block: tokens one after the other, then confidences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.drafting import draft_tokens
from dspark.decoding.types import Acceptance, DraftBlock, DraftRequest, SamplingParams, SparseProbs
from dspark.engine.kernels.markov import NativeMarkovHead
from dspark.engine.linear import PackedLinear, WeightArena, make_linear, pack_linears
from dspark.models.calibration import Calibration
from dspark.models.drafter import DSparkDrafter


@dataclass(slots=True)
class _Drafts:
    """Drafts of R requests over S slots.

    Attributes:
        token_ids: [R, S] int64.
        embedded: [R, S, rank] embeddings of the tokens before them.
        probs: by slot and request, where the token was drawn from a distribution.
    """

    token_ids: Tensor
    embedded: Tensor
    probs: list[list[SparseProbs | None]]


class DraftHeads:
    """Output projection, Markov head and confidence head."""

    def __init__(self, drafter: DSparkDrafter, calibration: Calibration, arena: WeightArena | None) -> None:
        self._head = make_linear(drafter.lm_head, arena=arena)
        self._markov = drafter.markov_head
        self._bias = make_linear(drafter.markov_head.markov_w2.weight, arena=arena)
        self._confidence_head = drafter.confidence_head
        if self._confidence_head is not None:
            pack_linears(self._confidence_head, arena)
        self._calibration = calibration
        self._token_map = drafter.d2t if drafter.config.draft_vocab_size else None
        self._native = self._native_markov()

    def draft(self, requests: Sequence[DraftRequest], hidden: Tensor) -> list[DraftBlock]:
        """The blocks of the requests from hidden states [R, G, H]."""
        num_steps = max(one.max_drafts for one in requests)
        hidden = hidden[:, :num_steps]
        base_logits: Tensor = self._head(hidden.reshape(-1, hidden.shape[-1]))
        drafts = self._tokens(requests, base_logits.view(len(requests), num_steps, -1))
        calibrated = self._confidence([one.sampling for one in requests], hidden, drafts.embedded)
        token_ids = drafts.token_ids.to(torch.int32).numpy()
        return [
            _block(one, token_ids[row], calibrated[row], [of_step[row] for of_step in drafts.probs])
            for row, one in enumerate(requests)
        ]

    def _native_markov(self) -> NativeMarkovHead | None:
        embeddings = self._markov.markov_w1.weight.detach()
        if not isinstance(self._bias, PackedLinear) or embeddings.dtype != torch.bfloat16:
            return None
        return NativeMarkovHead(self._bias.kernels, embeddings, self._bias.packed, self._token_map)

    def _tokens(self, requests: Sequence[DraftRequest], base_logits: Tensor) -> _Drafts:
        """Draft greedily in one call, and by steps what is sampled."""
        if self._native is None:
            return self._by_steps(requests, base_logits)
        is_greedy = [one.sampling.acceptance is Acceptance.GREEDY for one in requests]
        if not any(is_greedy):
            return self._by_steps(requests, base_logits)
        anchors = torch.tensor([one.anchor_token for one in requests])
        if all(is_greedy):
            token_ids, embedded = self._native.draft(base_logits, anchors)
            return _Drafts(token_ids, embedded, [])
        mask = torch.tensor(is_greedy)
        greedy, sampled = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
        mine = self._native.draft(base_logits[greedy], anchors[greedy])
        other = self._by_steps([requests[row] for row in sampled], base_logits[sampled])
        return _merged(mine, greedy, other, sampled)

    def _by_steps(self, requests: Sequence[DraftRequest], base_logits: Tensor) -> _Drafts:
        """Eqs. 4-5: each slot's logits are biased by the token drafted before it."""
        samplings = [one.sampling for one in requests]
        bases = [one.base_committed_len for one in requests]
        previous = torch.tensor([one.anchor_token for one in requests])
        chosen, embeddings = [], []
        probs: list[list[SparseProbs | None]] = []
        for step in range(base_logits.shape[1]):
            embedded = self._markov.embed(previous)
            embeddings.append(embedded)
            logits = base_logits[:, step] + self._bias(embedded)
            positions = [base + step for base in bases]
            token_ids, step_probs = draft_tokens(logits, samplings, positions, self._token_map, bases=bases)
            probs.append(step_probs)
            previous = torch.from_numpy(token_ids).to(torch.int64)
            chosen.append(previous)
        return _Drafts(torch.stack(chosen, dim=1), torch.stack(embeddings, dim=1), probs)

    def _confidence(
        self,
        samplings: Sequence[SamplingParams],
        hidden: Tensor,  # [R, S, H]
        embedded: Tensor,  # [R, S, rank]
    ) -> np.ndarray:
        """Calibrated confidences [R, S] (eq. 7); ones without a confidence head."""
        if self._confidence_head is None:
            return np.ones(hidden.shape[:2], dtype=np.float32)
        logits = self._confidence_head(hidden, embedded).numpy()
        is_greedy = np.array([one.acceptance is Acceptance.GREEDY for one in samplings])
        return self._calibration.apply(logits, is_greedy)


def _merged(mine: tuple[Tensor, Tensor], rows: Tensor, other: _Drafts, other_rows: Tensor) -> _Drafts:
    """Greedy drafts and sampled ones, each back in its row."""
    order = torch.cat((rows, other_rows)).argsort()
    nothing: list[SparseProbs | None] = [None] * len(rows)
    return _Drafts(
        torch.cat((mine[0], other.token_ids))[order],
        torch.cat((mine[1], other.embedded))[order],
        [[[*nothing, *of_step][place] for place in order] for of_step in other.probs],
    )


def _block(
    request: DraftRequest, token_ids: np.ndarray, confidence: np.ndarray, probs: Sequence[SparseProbs | None]
) -> DraftBlock:
    """Cut one block to what its request asked for."""
    count = request.max_drafts
    return DraftBlock(
        request_id=request.request_id,
        epoch=request.epoch,
        base_committed_len=request.base_committed_len,
        token_ids=token_ids[:count].copy(),
        confidence=confidence[:count].astype(np.float32),
        probs=tuple(one for one in probs[:count] if one is not None),
    )
