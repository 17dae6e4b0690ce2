"""The heads of a drafter over the hidden states of its blocks: tokens one by one, and confidences in them.

Of what a request does to the target's logits, drafts follow temperature, the truncations and the logit bias.
Penalties and `min_tokens` depend on tokens and lengths that a drafter is not told. To leave them out is as
lossless and costs acceptance only.

The confidence in draft k knows the drafts before it and not draft k itself, which planning relies on. It is
the confidence head's, which reads the token before. Without such a head it is the probability of the best
token of the distribution that draft k is chosen from, before any calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dspark.decoding.drafting import FindBest, draft_tokens
from dspark.decoding.sampling import argmax_with_margin
from dspark.decoding.types import Acceptance, DraftBlock, DraftRequest, SparseProbs
from dspark.engine.block_slots import BlockSlots, Integers
from dspark.engine.kernels.markov import NativeMarkovHead
from dspark.engine.kernels.native import PackedWeight
from dspark.engine.linear import PackedLinear, WeightArena, make_linear, pack_linears
from dspark.engine.past_blocks import Logits
from dspark.models.calibration import Calibration
from dspark.models.drafter import Drafter
from dspark.models.heads import MarkovHead, peak_logits

# Offset of a step, places of its blocks among those before, tokens before its slots; returns hidden states.
Advance = Callable[[int, Integers, Tensor], Tensor]


@dataclass(slots=True)
class _Drafts:
    """Drafts of T slots.

    Attributes:
        token_ids: [T] int64.
        confidence_logits: [T] float32.
        probs: by slot, what the token was drawn from, where it was.
    """

    token_ids: Tensor
    confidence_logits: Tensor
    probs: dict[int, SparseProbs] = field(default_factory=dict)

    @classmethod
    def to_come(cls, num_slots: int) -> _Drafts:
        return cls(torch.empty(num_slots, dtype=torch.int64), torch.empty(num_slots))


class DraftHeads:
    """Output projection, sequential head and confidence head; packs the sequential head it is given."""

    def __init__(self, drafter: Drafter, calibration: Calibration, arena: WeightArena | None) -> None:
        self.calibration = calibration
        self._drafter = drafter
        self._head = make_linear(drafter.lm_head, arena=arena)
        self._markov = drafter.markov_head
        if self._markov is not None:
            pack_linears(self._markov, arena)
        self._confidence_head = drafter.confidence_head
        self._token_map = drafter.d2t if drafter.config.draft_vocab_size else None
        self._places = _places_of(self._token_map, drafter.config.vocab_size)
        self._native = _native_markov(drafter, self._token_map)
        self._find_best: FindBest = argmax_with_margin if arena is None else arena.kernels.best_two

    def draft(
        self,
        requests: Sequence[DraftRequest],
        slots: BlockSlots,
        hidden: Tensor,  # [T, H]
    ) -> tuple[list[DraftBlock], list[Logits]]:
        """The blocks of the requests from the hidden states of their slots, and their confidence logits."""
        base_logits = self._base_logits(requests, slots, np.arange(len(hidden)), hidden)
        drafts = self._tokens(requests, slots, _is_greedy(requests), hidden, base_logits)
        return self._finished(requests, slots, drafts)

    def draft_by_steps(
        self, requests: Sequence[DraftRequest], slots: BlockSlots, advance: Advance
    ) -> tuple[list[DraftBlock], list[Logits]]:
        """The same, where the hidden states of a slot come from the token drafted before it.

        Args:
            requests: whose blocks.
            slots: of the blocks.
            advance: called with each step's offset in the blocks, the places of its blocks among those of the
                step before (of the first: among the requests), and the tokens before its slots; returns
                the hidden states of its slots, [n, H].
        """
        drafts = _Drafts.to_come(len(slots.request))
        anchors = torch.tensor([one.anchor_token for one in requests])
        for step, (members, kept) in enumerate(slots.steps()):
            rows = torch.from_numpy(members)
            hidden = advance(step, kept, drafts.token_ids[rows - 1] if step else anchors)
            self._choose(
                requests, slots, members, self._base_logits(requests, slots, members, hidden), drafts
            )
        return self._finished(requests, slots, drafts)

    @property
    def native(self) -> tuple[PackedWeight, NativeMarkovHead] | None:
        """Output projection and sequential head where our kernels have both."""
        head = _packed(self._head)
        return None if head is None or self._native is None else (head.packed, self._native)

    def _base_logits(
        self, requests: Sequence[DraftRequest], slots: BlockSlots, members: Integers, hidden: Tensor
    ) -> Tensor:
        """Of the slots `members` from their hidden states, with the biases of their requests."""
        base_logits = self._drafter.cap(self._head(hidden))
        self._add_biases(requests, slots.request[members], base_logits)
        return base_logits

    def _finished(
        self, requests: Sequence[DraftRequest], slots: BlockSlots, drafts: _Drafts
    ) -> tuple[list[DraftBlock], list[Logits]]:
        logits = drafts.confidence_logits.numpy()
        confidence = self._confidence(slots, _is_greedy(requests), logits)
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
        return blocks, [logits[slots.rows(number)] for number in range(len(requests))]

    def _add_biases(self, requests: Sequence[DraftRequest], owners: Integers, base_logits: Tensor) -> None:
        """Add the logit biases of the requests that have any; tokens that cannot be drafted have no place."""
        for number, one in enumerate(requests):
            adjustments = one.sampling.adjustments
            if adjustments is None or not adjustments.logit_bias:
                continue
            token_ids, values = zip(*adjustments.logit_bias, strict=True)
            places = self._places[torch.tensor(token_ids)]
            biases = torch.tensor(values, dtype=base_logits.dtype)
            rows = torch.from_numpy(np.flatnonzero(owners == number))
            base_logits[rows[:, None], places[places >= 0]] += biases[places >= 0]

    def _tokens(
        self,
        requests: Sequence[DraftRequest],
        slots: BlockSlots,
        is_greedy: npt.NDArray[np.bool_],  # [R]
        hidden: Tensor,  # [T, H]
        base_logits: Tensor,  # [T, Vd]
    ) -> _Drafts:
        """Draft greedily in one native call where there is one, and otherwise by torch."""
        if self._native is None or not is_greedy.any():
            return self._by_torch(requests, slots, hidden, base_logits)
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
        drawn = self._by_torch(asked, others, hidden[other_rows], base_logits[other_rows])
        order = torch.cat((my_rows, other_rows)).argsort()
        return _Drafts(
            torch.cat((drafts.token_ids, drawn.token_ids))[order],
            torch.cat((drafts.confidence_logits, drawn.confidence_logits))[order],
            {int(other_rows[row]): probs for row, probs in drawn.probs.items()},
        )

    def _by_torch(
        self, requests: Sequence[DraftRequest], slots: BlockSlots, hidden: Tensor, base_logits: Tensor
    ) -> _Drafts:
        drafts = _Drafts.to_come(len(base_logits))
        if self._markov is None:
            everything = np.arange(len(base_logits))
            self._choose(requests, slots, everything, base_logits, drafts)
            embedded = None
        else:
            embedded = self._by_steps(self._markov, requests, slots, hidden, base_logits, drafts)
        if self._confidence_head is not None:
            drafts.confidence_logits = self._confidence_head(hidden, embedded)
        return drafts

    def _by_steps(
        self,
        markov: MarkovHead,
        requests: Sequence[DraftRequest],
        slots: BlockSlots,
        hidden: Tensor,
        base_logits: Tensor,
        drafts: _Drafts,
    ) -> Tensor:
        """Eqs. 4-5: each slot's logits are biased by the token drafted before it, or by all before it.

        Returns the embeddings of the tokens before each slot, [T, rank].
        """
        anchors = torch.tensor([one.anchor_token for one in requests])
        embedded = base_logits.new_empty((len(base_logits), markov.markov_w1.embedding_dim))
        state: Tensor | None = None
        for step, (members, kept) in enumerate(slots.steps()):
            rows = torch.from_numpy(members)
            previous = drafts.token_ids[rows - 1] if step else anchors[torch.from_numpy(kept)]
            embedded[rows] = markov.embed(previous)
            state = state if state is None else state[torch.from_numpy(kept)]
            mixed, state = markov.step(embedded[rows], hidden[rows], state)
            self._choose(requests, slots, members, base_logits[rows] + markov.bias(mixed), drafts)
        return embedded

    def _choose(
        self,
        requests: Sequence[DraftRequest],
        slots: BlockSlots,
        members: Integers,  # slots whose logits are known
        logits: Tensor,  # of the members, [n, Vd]
        drafts: _Drafts,
    ) -> None:
        """Choose the drafts of some slots, and say how sure their distributions are if no head will."""
        asked = [requests[number] for number in slots.request[members].tolist()]
        bases = [one.base_committed_len for one in asked]
        chosen, probs = draft_tokens(
            logits,
            [one.sampling for one in asked],
            [base + offset for base, offset in zip(bases, slots.offset[members].tolist(), strict=True)],
            self._token_map,
            bases=bases,
            find_best=self._find_best,
        )
        rows = torch.from_numpy(members)
        drafts.token_ids[rows] = torch.from_numpy(chosen).to(torch.int64)
        found = zip(members.tolist(), probs, strict=True)
        drafts.probs.update({row: support for row, support in found if support is not None})
        if self._confidence_head is None:
            drafts.confidence_logits[rows] = peak_logits(logits)

    def _confidence(
        self, slots: BlockSlots, is_greedy: npt.NDArray[np.bool_], found: Logits
    ) -> npt.NDArray[np.float32]:
        """Calibrated confidences [R, the longest block] (eq. 7)."""
        logits = np.zeros((len(is_greedy), int(slots.counts.max())), dtype=np.float32)
        logits[slots.request, slots.offset] = found
        return self.calibration.apply(logits, is_greedy)


def _is_greedy(requests: Sequence[DraftRequest]) -> npt.NDArray[np.bool_]:
    return np.array([one.sampling.acceptance is Acceptance.GREEDY for one in requests])


def _native_markov(drafter: Drafter, token_map: Tensor | None) -> NativeMarkovHead | None:
    """The vanilla head and a confidence head in one call, where our own kernel multiplies W2."""
    markov, confidence_head = drafter.markov_head, drafter.confidence_head
    if markov is None or confidence_head is None or drafter.config.markov_head_type != "vanilla":
        return None
    embeddings, biases = markov.markov_w1.weight.detach(), _packed(markov.markov_w2)
    if biases is None or embeddings.dtype != torch.bfloat16:
        return None
    row = confidence_head.proj.weight.detach()[0]
    if not confidence_head.with_markov:
        row = torch.cat((row, row.new_zeros(embeddings.shape[1])))
    bias = float(confidence_head.proj.bias.detach())
    return NativeMarkovHead(biases.kernels, embeddings, biases.packed, token_map, (row, bias))


def _packed(linear: nn.Module) -> PackedLinear | None:
    return linear if isinstance(linear, PackedLinear) else None


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
