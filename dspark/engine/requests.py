"""The requests the target engine holds: their tokens, how far they are computed, and their pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dspark.decoding.adjustment import LogitAdjuster
from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.types import OpenRequest, SamplingParams
from dspark.engine.pages import PagePool
from dspark.errors import ContextTooLongError, InvalidRequestError, StaleEpochError


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for.

    Attributes:
        max_context_len: tokens of one request, prompt and output.
        vocab_size: of the target.
    """

    max_context_len: int
    vocab_size: int


@dataclass(slots=True)
class HeldRequest:
    """One opened request.

    Attributes:
        token_ids: prompt and committed tokens; the last one is the anchor.
        num_computed: leading tokens whose keys and values are in the pages. While prefilling it grows to the
            number of tokens the request was opened with; afterwards it is `committed_len - 1`.
        prefill_len: tokens the request was opened with.
        pages: in order of position.
        adjuster: knows the committed tokens where `sampling` has adjustments, else None.
    """

    request_id: str
    epoch: int
    token_ids: list[int]
    sampling: SamplingParams
    prefill_len: int
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)
    adjuster: LogitAdjuster | None = None

    @property
    def committed_len(self) -> int:
        """Tokens whose values are fixed."""
        return len(self.token_ids)

    def commit(self, token_ids: Sequence[int]) -> None:
        """Append tokens of the output."""
        self.token_ids.extend(token_ids)
        if self.adjuster is not None:
            self.adjuster.commit(token_ids)

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens it was opened with are still to be computed."""
        return self.num_computed < self.prefill_len


class RequestTable:
    """All opened requests; takes pages from the pool and gives them back."""

    def __init__(self, pool: PagePool, limits: Limits) -> None:
        self._pool = pool
        self._limits = limits
        self._requests: dict[str, HeldRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: str) -> HeldRequest | None:
        """The request of this id, if held."""
        return self._requests.get(request_id)

    def open(self, request: OpenRequest) -> None:
        """Hold a request; the same or a newer epoch replaces what is held.

        Raises:
            InvalidRequestError: no tokens, a token the target does not know, or none that may be chosen.
            ContextTooLongError: more tokens than the context holds.
            StaleEpochError: a higher epoch is open.
        """
        self._check(request)
        held = self._requests.get(request.request_id)
        if held is not None and held.epoch > request.epoch:
            raise StaleEpochError(
                f"request {request.request_id!r} is open with epoch {held.epoch}; "
                f"epoch {request.epoch} is stale"
            )
        self.close([request.request_id])
        self._requests[request.request_id] = HeldRequest(
            request_id=request.request_id,
            epoch=request.epoch,
            token_ids=list(request.token_ids),
            sampling=request.sampling,
            prefill_len=len(request.token_ids),
            adjuster=_adjuster_of(request),
        )

    def close(self, request_ids: Iterable[str]) -> None:
        """Forget these requests and free their pages. Unknown ones are ignored."""
        for request_id in request_ids:
            held = self._requests.pop(request_id, None)
            if held is not None:
                self._pool.free(held.pages)

    def close_all(self) -> None:
        """Forget every request."""
        self.close(list(self._requests))

    def reserve(self, held: HeldRequest, num_tokens: int) -> None:
        """Make sure the request has pages for its first `num_tokens` tokens.

        Raises:
            OutOfPagesError: the pool has not enough; the request keeps what it had.
        """
        missing = -(-num_tokens // self._pool.page_size) - len(held.pages)
        if missing > 0:
            held.pages.extend(self._pool.allocate(missing))

    def _check(self, request: OpenRequest) -> None:
        num_tokens = len(request.token_ids)
        if num_tokens == 0:
            raise InvalidRequestError("token_ids is empty; a request needs at least one token", "token_ids")
        if num_tokens > self._limits.max_context_len:
            raise ContextTooLongError(
                f"the request has {num_tokens} tokens, the context holds {self._limits.max_context_len}; "
                "shorten the prompt",
                "token_ids",
            )
        if min(request.token_ids) < 0 or max(request.token_ids) >= self._limits.vocab_size:
            raise InvalidRequestError(
                f"token_ids must lie in [0, {self._limits.vocab_size}); use the target's own tokenizer",
                "token_ids",
            )
        if request.sampling.adjustments is not None:
            _check_adjustments(request.sampling.adjustments, self._limits.vocab_size)


def _adjuster_of(request: OpenRequest) -> LogitAdjuster | None:
    adjustments = request.sampling.adjustments
    if adjustments is None:
        return None
    prompt, output = request.token_ids[: request.prompt_len], request.token_ids[request.prompt_len :]
    return LogitAdjuster(adjustments, prompt, output)


def _check_adjustments(adjustments: LogitAdjustments, vocab_size: int) -> None:
    named = {
        "logit_bias": [token_id for token_id, _ in adjustments.logit_bias],
        "ending_token_ids": adjustments.ending_token_ids,
    }
    for field_name, token_ids in named.items():
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            raise InvalidRequestError(
                f"{field_name} must lie in [0, {vocab_size}); use the target's own tokenizer", field_name
            )
    if adjustments.min_tokens > 0 and len(set(adjustments.ending_token_ids)) == vocab_size:
        raise InvalidRequestError(
            "min_tokens leaves no token to choose, as every one ends the output; leave it out", "min_tokens"
        )
