"""The heads of a drafter over the hidden states of its blocks: tokens one by one, then confidences.

Of what a request does to the target's logits, drafts follow temperature, the truncations and the logit bias.
Penalties and `min_tokens` depend on tokens and lengths that a drafter is not told. To leave them out is as
lossless and costs acceptance only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.drafting import draft_tokens
from dspark.decoding.types import Acceptance, DraftBlock, DraftRequest, SparseProbs
from dspark.engine.block_slots import BlockSlots
from dspark.engine.kernels.markov import NativeMarkovHead
from dspark.engine.linear import PackedLinear, WeightArena, make_linear
from dspark.engine.past_blocks import Logits
from dspark.models.calibration import Calibration
from dspark.models.drafter import DSparkDrafter


@dataclass(slots=True)
class _Drafts:
    """Drafts of T slots.

    Attributes:
        token_ids: [T] int64.
        confidence_logits: [T] float32; None without a confidence head.
        probs: by slot, what the token was drawn from, where it was.
    """

    token_ids: Tensor
    confidence_logits: Tensor | None
    probs: dict[int, SparseProbs] = field(default_factory=dict)


class DraftHeads:
    """Output projection, Markov head and confidence head."""

    def __init__(self, drafter: DSparkDrafter, calibration: Calibration, arena: WeightArena | None) -> None:
        self.calibration = calibration
        self._head = make_linear(drafter.lm_head, arena=arena)
        self._markov = drafter.markov_head
        self._bias = make_linear(drafter.markov_head.markov_w2.weight, arena=arena)
        self._confidence_head = drafter.confidence_head
        self._token_map = drafter.d2t if drafter.config.draft_vocab_size else None
        self._places = _places_of(self._token_map, drafter.config.vocab_size)
        self._native = self._native_markov()

    def draft(
        self,
        requests: Sequence[DraftRequest],
        slots: BlockSlots,
        hidden: Tensor,  # [T, H]
    ) -> tuple[list[DraftBlock], Logits | None]:
        """The blocks of the requests from the hidden states of their slots, and confidence logits [T]."""
        is_greedy = np.array([one.sampling.acceptance is Acceptance.GREEDY for one in requests])
        base_logits = self._head(hidden)
        self._add_biases(requests, slots, base_logits)
        drafts = self._tokens(requests, slots, is_greedy, hidden, base_logits)
        found = drafts.confidence_logits
        logits = None if found is None else found.numpy()
        confidence = self._confidence(slots, is_greedy, logits)
        token_ids = drafts.token_ids.to(torch.int32).numpy()
        blocks = [
            DraftBlock(
                request_id=one.request_id,
                epoch=one.epoch,
                base_committed_len=one.base_committed_len,
                token_ids=token_ids[slots.rows(number)].copy(),
                confidence=confidence[number, : slots.counts[number]],
                probs=_probs(drafts, slots.rows(number)),
            )
            for number, one in enumerate(requests)
        ]
        return blocks, logits

    def _add_biases(self, requests: Sequence[DraftRequest], slots: BlockSlots, base_logits: Tensor) -> None:
        """Add the logit biases of the requests that have any; tokens that cannot be drafted have no place."""
        for number, one in enumerate(requests):
            adjustments = one.sampling.adjustments
            if adjustments is None or not adjustments.logit_bias:
                continue
            token_ids, values = zip(*adjustments.logit_bias, strict=True)
            places = self._places[torch.tensor(token_ids)]
            biases = torch.tensor(values, dtype=base_logits.dtype)
            base_logits[slots.rows(number), places[places >= 0]] += biases[places >= 0]

    def _native_markov(self) -> NativeMarkovHead | None:
        embeddings = self._markov.markov_w1.weight.detach()
        if not isinstance(self._bias, PackedLinear) or embeddings.dtype != torch.bfloat16:
            return None
        confidence = None
        if self._confidence_head is not None:
            projection = self._confidence_head.proj
            confidence = projection.weight.detach()[0], float(projection.bias.detach())
        return NativeMarkovHead(
            self._bias.kernels, embeddings, self._bias.packed, self._token_map, confidence
        )

    def _tokens(
        self,
        requests: Sequence[DraftRequest],
        slots: BlockSlots,
        is_greedy: npt.NDArray[np.bool_],  # [R]
        hidden: Tensor,  # [T, H]
        base_logits: Tensor,  # [T, Vd]
    ) -> _Drafts:
        """Draft greedily in one call, and step by step what is sampled."""
        if self._native is None or not is_greedy.any():
            return self._by_steps(requests, slots, hidden, base_logits)
        anchors = torch.tensor([one.anchor_token for one in requests])
        if is_greedy.all():
            all_drafts = self._native.draft(hidden, base_logits, anchors, torch.from_numpy(slots.first))
            return _Drafts(all_drafts.token_ids, all_drafts.confidence_logits)
        greedy, sampled = np.flatnonzero(is_greedy), np.flatnonzero(~is_greedy)
        mine, my_rows = slots.of_requests(greedy)
        others, other_rows = slots.of_requests(sampled)
        drafts = self._native.draft(
            hidden[my_rows],
            base_logits[my_rows],
            anchors[torch.from_numpy(greedy)],
            torch.from_numpy(mine.first),
        )
        asked = [requests[int(row)] for row in sampled]
        drawn = self._by_steps(asked, others, hidden[other_rows], base_logits[other_rows])
        order = torch.cat((my_rows, other_rows)).argsort()
        confidences = None
        if drafts.confidence_logits is not None and drawn.confidence_logits is not None:
            confidences = torch.cat((drafts.confidence_logits, drawn.confidence_logits))[order]
        return _Drafts(
            torch.cat((drafts.token_ids, drawn.token_ids))[order],
            confidences,
            {int(other_rows[row]): probs for row, probs in drawn.probs.items()},
        )

    def _by_steps(
        self, requests: Sequence[DraftRequest], slots: BlockSlots, hidden: Tensor, base_logits: Tensor
    ) -> _Drafts:
        """Eqs. 4-5: each slot's logits are biased by the token drafted before it."""
        token_ids = torch.empty(len(base_logits), dtype=torch.int64)
        embedded = base_logits.new_empty((len(base_logits), self._markov.markov_w1.embedding_dim))
        found_probs: dict[int, SparseProbs] = {}
        for step in range(int(slots.counts.max())):
            members = np.flatnonzero(slots.counts > step)
            rows = torch.from_numpy(slots.first[members] + step)
            asked = [requests[int(member)] for member in members]
            previous = token_ids[rows - 1] if step else torch.tensor([one.anchor_token for one in asked])
            embedded[rows] = self._markov.embed(previous)
            chosen, probs = draft_tokens(
                base_logits[rows] + self._bias(embedded[rows]),
                [one.sampling for one in asked],
                [one.base_committed_len + step for one in asked],
                self._token_map,
                bases=[one.base_committed_len for one in asked],
            )
            token_ids[rows] = torch.from_numpy(chosen).to(torch.int64)
            found = zip(rows.tolist(), probs, strict=True)
            found_probs.update({row: support for row, support in found if support is not None})
        head = self._confidence_head
        return _Drafts(token_ids, None if head is None else head(hidden, embedded), found_probs)

    def _confidence(
        self, slots: BlockSlots, is_greedy: npt.NDArray[np.bool_], found: Logits | None
    ) -> npt.NDArray[np.float32]:
        """Calibrated confidences [R, the longest block] (eq. 7); ones without a confidence head."""
        logits = np.zeros((len(is_greedy), int(slots.counts.max())), dtype=np.float32)
        if found is None:
            return np.ones_like(logits)
        logits[slots.request, slots.offset] = found
        return self.calibration.apply(logits, is_greedy)


def _places_of(token_map: Tensor | None, vocab_size: int) -> Tensor:
    """Where each token of the target stands in the draft vocabulary, [V] int64; -1: nowhere."""
    if token_map is None:
        return torch.arange(vocab_size)
    places = torch.full((vocab_size,), -1, dtype=torch.int64)
    places[token_map] = torch.arange(len(token_map))
    return places


def _probs(drafts: _Drafts, rows: slice) -> tuple[SparseProbs, ...]:
    found = (drafts.probs.get(row) for row in range(rows.start, rows.stop))
    return tuple(one for one in found if one is not None)
