"""Prompt lookup: drafts what followed the last time the text went as it ends now. No model, no tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dspark.decoding.types import (
    Acceptance,
    DraftBlock,
    DrafterInfo,
    DraftRequest,
    FeatureBatch,
    SparseProbs,
)
from dspark.engine.acceptance_odds import AcceptanceOdds, Lately
from dspark.engine.ngrams import IndexedText

DEFAULT_GAMMA = 10
# Drafts of a copy beside a model's blocks: they cost no time to make, and a text that repeats itself goes on.
LONGEST_COPY = 15
_LEAST_SURVIVAL = 0.05


@dataclass(frozen=True, slots=True)
class Copy:
    """Drafts copied from earlier text.

    Attributes:
        base_committed_len: they would stand from this position on.
        token_ids: of at least one draft.
        confidence: [G], conditional.
        match_len, lately: what the confidence hangs on.
    """

    base_committed_len: int
    token_ids: list[int]
    confidence: npt.NDArray[np.float64]
    match_len: int
    lately: Lately

    @property
    def expected_accepted(self) -> float:
        """Drafts that are expected to be accepted, if all are verified."""
        return float(np.cumprod(self.confidence).sum())

    def block(self, request: DraftRequest) -> DraftBlock:
        """The drafts as an answer. Their distributions are point masses, which rejection sampling takes."""
        probs: tuple[SparseProbs, ...] = ()
        if request.sampling.acceptance is Acceptance.REJECTION:
            one = np.ones(1, dtype=np.float32)
            probs = tuple(SparseProbs(np.array([token], dtype=np.int32), one) for token in self.token_ids)
        return DraftBlock(
            request_id=request.request_id,
            epoch=request.epoch,
            base_committed_len=request.base_committed_len,
            token_ids=np.array(self.token_ids, dtype=np.int32),
            confidence=self.confidence.astype(np.float32),
            probs=probs,
            is_copied=True,
        )


@dataclass(slots=True)
class _Known:
    """What is known of a request."""

    epoch: int
    text: IndexedText
    lately: Lately = Lately.UNKNOWN
    # copies of which it is not known yet how far they were right
    open_copies: list[Copy] = field(default_factory=list)


class Lookup:
    """The texts of all requests, and what became of the copies made of them.

    A copy is judged by the text itself, as it grows: whether it was verified, or another block in its place,
    does not matter.
    """

    def __init__(self, gamma: int, max_tokens: int) -> None:
        """Hold no text yet.

        Args:
            gamma: most drafts of a copy.
            max_tokens: of all texts; beyond it those that were not used for longest are forgotten.
        """
        self.gamma = gamma
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._odds = {"greedy": AcceptanceOdds(gamma), "sampling": AcceptanceOdds(gamma)}

    def push(self, batch: FeatureBatch) -> None:
        """Take committed tokens; an older epoch is dropped, a newer one or a gap starts the text anew."""
        known = self._known.get(batch.request_id)
        if known is not None and batch.epoch < known.epoch:
            return
        is_continued = known is not None and batch.epoch == known.epoch
        if known is None or not is_continued or not known.text.start <= batch.start <= known.text.end:
            self.close([batch.request_id])
            known = self._known[batch.request_id] = _Known(batch.epoch, IndexedText(batch.start))
        self._put(batch.request_id, known, batch.start, batch.token_ids.tolist())

    def is_ready(self, request: DraftRequest) -> bool:
        """Whether the text before the anchor is known, and none behind it."""
        known = self._known.get(request.request_id)
        if known is None or known.epoch != request.epoch:
            return False
        return known.text.end - request.base_committed_len in (-1, 0)

    def copy_for(self, request: DraftRequest) -> Copy | None:
        """What to draft for a request that is ready; None where the text ends as it never did before."""
        known = self._known[request.request_id]
        self._put(request.request_id, known, request.base_committed_len - 1, [request.anchor_token])
        odds = self._odds["greedy" if request.sampling.acceptance is Acceptance.GREEDY else "sampling"]
        _judge(known, odds)
        match = known.text.match()
        if match is None:
            return None
        most = min(max(request.max_drafts, request.max_copied), self.gamma)
        chances = odds.chances(match.length, known.lately, most)
        # a draft that hardly ever survives would only be ranked in vain
        count = max(1, int((np.cumprod(chances) >= _LEAST_SURVIVAL).sum()))
        copy = Copy(
            base_committed_len=request.base_committed_len,
            token_ids=known.text.continuation(match, count),
            confidence=chances[:count],
            match_len=match.length,
            lately=known.lately,
        )
        known.open_copies.append(copy)
        return copy

    def close(self, request_ids: Iterable[str]) -> None:
        """Forget these requests; unknown ones are ignored."""
        for request_id in request_ids:
            known = self._known.pop(request_id, None)
            if known is not None:
                self._num_tokens -= len(known.text.token_ids)

    def errors(self) -> dict[str, Sequence[float]]:
        """Calibration error of the conditional confidences lately by position, greedy and sampled."""
        return {name: odds.errors() for name, odds in self._odds.items()}

    def _put(self, request_id: str, known: _Known, position: int, token_ids: Sequence[int]) -> None:
        before = len(known.text.token_ids)
        known.text.put(position, token_ids)
        self._num_tokens += len(known.text.token_ids) - before
        self._known.move_to_end(request_id)
        while self._num_tokens > self._max_tokens and len(self._known) > 1:
            self.close([next(iter(self._known))])


class LookupDraftEngine:
    """Prompt lookup as a draft engine. Synchronous; one thread uses it.

    A request whose text has no match is answered with an empty block: it is decoded plainly in that round.
    Drafting takes some tens of microseconds a request, so no cost is reported for it.

    Attributes:
        info: what the scheduler needs to know about it.
    """

    def __init__(
        self, *, hidden_size: int, vocab_size: int, gamma: int = DEFAULT_GAMMA, pool_tokens: int = 131072
    ) -> None:
        """Hold no request yet.

        Args:
            hidden_size: of the target, which checks it.
            vocab_size: of the target.
            gamma: most drafts of a block.
            pool_tokens: tokens of all requests together.
        """
        self._lookup = Lookup(gamma, pool_tokens)
        self.info = DrafterInfo("prompt-lookup", gamma, (), hidden_size, vocab_size)

    def push(self, batch: FeatureBatch) -> None:
        """Take committed tokens."""
        self._lookup.push(batch)

    def absorb(self) -> None:
        """Nothing is left to do: tokens are indexed as they arrive."""

    def is_ready(self, request: DraftRequest) -> bool:
        """Whether all tokens before the anchor have arrived."""
        return self._lookup.is_ready(request)

    def draft(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """A block for each request that is ready, empty where nothing matches; the others are left out."""
        blocks = []
        for request in requests:
            if self._lookup.is_ready(request):
                copy = self._lookup.copy_for(request)
                blocks.append(copy.block(request) if copy else _empty_block(request))
        return blocks

    def close(self, request_ids: Iterable[str]) -> None:
        """Forget these requests; unknown ones are ignored."""
        self._lookup.close(request_ids)

    def calibration_errors(self) -> dict[str, Sequence[float]]:
        """Calibration error of the conditional confidences lately, by position."""
        return self._lookup.errors()


def _empty_block(request: DraftRequest) -> DraftBlock:
    return DraftBlock(
        request.request_id,
        request.epoch,
        request.base_committed_len,
        np.zeros(0, dtype=np.int32),
        np.zeros(0, dtype=np.float32),
    )


def _judge(known: _Known, odds: AcceptanceOdds) -> None:
    """Learn from the copies that the text has gone on from, and keep those it still follows."""
    following = []
    for copy in known.open_copies:
        first = copy.base_committed_len - known.text.start
        truth = known.text.token_ids[first : first + len(copy.token_ids)]
        pairs = zip(copy.token_ids, truth, strict=False)
        num_right = next((place for place, (mine, its) in enumerate(pairs) if mine != its), len(truth))
        if truth:
            known.lately = Lately.RIGHT if num_right else Lately.WRONG
        if num_right == len(truth) < len(copy.token_ids):
            following.append(copy)
            continue
        num_tried = min(num_right + 1, len(copy.token_ids))
        odds.observe(copy.match_len, copy.lately, num_right, num_tried)
    known.open_copies = following
