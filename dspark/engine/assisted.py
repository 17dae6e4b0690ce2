"""A drafter with a model, and prompt lookup in its place where that has been worth more.

Losslessness: which of the two drafts is decided by the committed text and by outcomes of earlier rounds,
before the model has drafted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from dspark.decoding.types import Acceptance, DraftBlock, DraftRequest, FeatureBatch
from dspark.engine.acceptance_odds import AcceptanceOdds, Lately
from dspark.engine.lookup import Copy, Lookup
from dspark.rounds.local import DraftEngine

# One in so many copies that look better gives way to the model, or its worth there would never be known.
_PROBED_ONE_IN = 16


class ModelEngine(DraftEngine, Protocol):
    """A draft engine with a model, as `dspark.engine.draft.DraftEngine`."""

    def is_ready(self, request: DraftRequest, /) -> bool:
        """Whether the features of all tokens before the anchor have arrived."""
        ...

    def calibration_errors(self) -> Mapping[str, Sequence[float]]:
        """Calibration error of confidences lately, by position, for each set of the calibration."""
        ...


@dataclass(slots=True)
class _ModelBlock:
    """The last block of the model for a request, as long as nothing else was drafted since."""

    base_committed_len: int
    match_len: int
    lately: Lately


class AssistedDraftEngine:
    """Answers with a copy where more of it is expected to be accepted than of the model's block.

    The model then has no pass for that request, which saves its time; it takes the features later. Both
    expectations are counted, the model's by length of the match too: text that repeats is easy for it, too.

    Attributes:
        info: that of the model, with the drafts of the longest block of either.
    """

    def __init__(self, model: ModelEngine, lookup: Lookup) -> None:
        self._model, self._lookup = model, lookup
        gamma = model.info.gamma
        self.info = replace(model.info, gamma=max(gamma, lookup.gamma))
        self._odds = {"greedy": AcceptanceOdds(gamma), "sampling": AcceptanceOdds(gamma)}
        self._last: dict[str, _ModelBlock] = {}
        self._lately: dict[str, Lately] = {}
        self._num_better = 0

    def push(self, batch: FeatureBatch) -> None:
        """Take features and token ids of committed tokens."""
        self._model.push(batch)
        self._lookup.push(batch)

    def absorb(self) -> None:
        """Have the model work on the features that have arrived."""
        self._model.absorb()

    def is_ready(self, request: DraftRequest) -> bool:
        """Whether the features of all tokens before the anchor have arrived."""
        return self._model.is_ready(request)

    def draft(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """A block of either for each request that is ready; the others are left out."""
        blocks: list[DraftBlock] = []
        for_model: list[DraftRequest] = []
        for request in requests:
            # The model learns from blocks that it drafted itself only.
            is_its_own = self._learn(request)
            copy = self._lookup.copy_for(request) if self._lookup.is_ready(request) else None
            if copy is not None and self._is_better(copy, request):
                blocks.append(copy.block(request))
                self._last.pop(request.request_id, None)
                continue
            for_model.append(request if is_its_own else replace(request, num_verified=0))
            self._last[request.request_id] = _ModelBlock(
                request.base_committed_len, copy.match_len if copy else 0, self._lately_of(request)
            )
        return [*blocks, *self._model.draft(for_model)] if for_model else blocks

    def close(self, request_ids: Sequence[str]) -> None:
        """Forget these requests; unknown ones are ignored."""
        self._model.close(request_ids)
        self._lookup.close(request_ids)
        self._forget(request_ids)

    def calibration_errors(self) -> dict[str, Sequence[float]]:
        """Calibration error of the conditional confidences lately by position, of the model and of copies."""
        copies = {f"{name}, lookup": errors for name, errors in self._lookup.errors().items()}
        return {**self._model.calibration_errors(), **copies}

    def _is_better(self, copy: Copy, request: DraftRequest) -> bool:
        chances = self._odds_of(request).chances(
            copy.match_len, self._lately_of(request), len(copy.token_ids)
        )
        if copy.expected_accepted <= float(np.cumprod(chances).sum()):
            return False
        self._num_better += 1
        return self._num_better % _PROBED_ONE_IN != 0

    def _learn(self, request: DraftRequest) -> bool:
        """Take in what became of the model's last block, if that was the request's last."""
        last = self._last.get(request.request_id)
        if last is None or request.num_verified == 0:
            return last is not None
        num_accepted = request.base_committed_len - last.base_committed_len - 1
        if not 0 <= num_accepted <= request.num_verified:
            return False
        num_tried = min(num_accepted + 1, request.num_verified)
        self._odds_of(request).observe(last.match_len, last.lately, num_accepted, num_tried)
        self._lately[request.request_id] = Lately.RIGHT if num_accepted else Lately.WRONG
        return True

    def _odds_of(self, request: DraftRequest) -> AcceptanceOdds:
        return self._odds["greedy" if request.sampling.acceptance is Acceptance.GREEDY else "sampling"]

    def _lately_of(self, request: DraftRequest) -> Lately:
        return self._lately.get(request.request_id, Lately.UNKNOWN)

    def _forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._last.pop(request_id, None)
            self._lately.pop(request_id, None)
