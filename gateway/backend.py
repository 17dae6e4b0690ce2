"""What the gateway needs from the scheduler. The gRPC client of the scheduler fits it; so does a fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from dspark.decoding.types import GenerationRequest, TokenDelta


class Counters(Protocol):
    """Counters of speculation since the scheduler started."""

    @property
    def num_drafts(self) -> int:
        """Blocks verified."""

    @property
    def num_draft_tokens(self) -> int:
        """Draft tokens verified."""

    @property
    def num_accepted_tokens(self) -> int:
        """Draft tokens accepted."""

    @property
    def num_accepted_tokens_per_pos(self) -> Sequence[int]:
        """Draft tokens accepted by position in the block, [gamma]."""

    @property
    def num_proposed_tokens(self) -> int:
        """Draft tokens proposed, scheduled or not."""

    @property
    def num_committed_tokens(self) -> int:
        """Tokens committed."""

    @property
    def num_rounds(self) -> int:
        """Rounds run."""

    @property
    def num_free_pages(self) -> int:
        """Free KV pages of the verifier."""

    @property
    def num_pages(self) -> int:
        """KV pages of the verifier."""

    @property
    def num_preemptions(self) -> int:
        """Requests preempted for want of pages."""


class ServingInfo(Protocol):
    """What is served and how it fares."""

    @property
    def target_name(self) -> str:
        """Name of the target."""

    @property
    def drafter_name(self) -> str:
        """Name of the drafter; empty when there is none."""

    @property
    def gamma(self) -> int:
        """Draft tokens per block; 0 without a drafter."""

    @property
    def max_context_len(self) -> int:
        """Most tokens of one sequence."""

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """End-of-text tokens."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary."""

    @property
    def is_verifier_ready(self) -> bool:
        """Whether the verifier answers."""

    @property
    def is_drafter_ready(self) -> bool:
        """Whether the drafter answers."""

    @property
    def is_store_healthy(self) -> bool:
        """Whether the store takes writes."""

    @property
    def num_running(self) -> int:
        """Requests running."""

    @property
    def num_waiting(self) -> int:
        """Requests waiting."""

    @property
    def is_exact(self) -> bool:
        """Whether logits are bit-identical whatever else is in the batch."""

    @property
    def counters(self) -> Counters:
        """Counters since start."""


class GenerationBackend(Protocol):
    """Generates tokens."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        """Deltas of the request in order; closing the iterator gives the request up and frees it.

        Raises:
            InvalidRequestError, OverloadedError: the request was not taken.
            ServiceUnavailableError, DeadlineError, EngineError: generation cannot go on.
        """
        ...

    async def get_info(self) -> ServingInfo:
        """Describe what is served.

        Raises:
            ServiceUnavailableError, DeadlineError: the scheduler does not answer.
        """
        ...
