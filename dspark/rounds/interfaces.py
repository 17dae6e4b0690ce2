"""What the round loop needs from the outside, as Protocols. In-process engines and gRPC clients both fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dspark.decoding.types import (
    DraftBlock,
    DrafterInfo,
    DraftRequest,
    FeatureBatch,
    FinishReason,
    GenerationRequest,
    OpenRequest,
    PrefillItem,
    StepResult,
    VerifierInfo,
    VerifyItem,
)
from dspark.rounds.stored import StoredRequest


class Drafter(Protocol):
    """Proposes blocks. A cache that may forget anything at any time."""

    async def get_info(self) -> DrafterInfo:
        """Describe the loaded drafter."""
        ...

    async def draft(self, requests: Sequence[DraftRequest]) -> Sequence[DraftBlock]:
        """Propose one block for each request that is ready.

        A request whose features have not all arrived, or whose epoch is stale, is left out of the
        answer; it is decoded plainly in this round.

        Raises:
            ServiceUnavailableError, DeadlineError: no drafts this round.
        """
        ...

    async def close(self, request_ids: Sequence[str]) -> None:
        """Forget these requests. Unknown ones are ignored."""
        ...


class Verifier(Protocol):
    """Runs the target: the only source of truth about committed tokens."""

    async def get_info(self) -> VerifierInfo:
        """Describe the loaded target."""
        ...

    async def open(self, request: OpenRequest) -> None:
        """Hold a request; replaces an older epoch of the same id.

        Raises:
            ContextTooLongError: more tokens than the context holds.
            StaleEpochError: a higher epoch is already open.
        """
        ...

    async def step(self, items: Sequence[PrefillItem | VerifyItem]) -> StepResult:
        """One ragged forward pass over all items.

        Raises:
            ServiceUnavailableError, DeadlineError, EngineError: nothing was committed.
        """
        ...

    async def close(self, request_ids: Sequence[str]) -> None:
        """Free the pages of these requests. Unknown ones are ignored."""
        ...


class FeatureSink(Protocol):
    """Takes target features from the verifier towards the drafter, never through the scheduler."""

    def push(self, batches: Sequence[FeatureBatch]) -> None:
        """Hand over features; must not block the step. Losing them costs speed, never correctness."""
        ...


class RequestStore(Protocol):
    """Keeps what must outlive a process. Never raises into a round; a dead store is reported, not fatal."""

    def create(self, request: GenerationRequest, epoch: int, output: Sequence[int] = ()) -> None:
        """Record a request that is new, or that was taken over with this output."""
        ...

    def commit(self, request_id: str, epoch: int, base_len: int, token_ids: Sequence[int]) -> None:
        """Append committed output tokens at output offset `base_len`, fenced by (epoch, committed_len)."""
        ...

    def finish(self, request_id: str, epoch: int, reason: FinishReason) -> None:
        """Record why the request ended."""
        ...

    async def claim(self, request_id: str, epoch: int) -> StoredRequest | None:
        """Take a request over from whoever owned it: what that owner writes from now on is refused.

        Args:
            request_id: of a request this process does not run.
            epoch: the least the request gets; it gets a higher one where another owner has used that.

        Returns:
            What the owner left, None where the store holds nothing of it.

        Raises:
            ServiceUnavailableError: the store does not answer.
        """
        ...

    def watch(self, on_stale: Callable[[str], None]) -> None:
        """Have a function told the id of each request of ours that another owner has taken over."""
        ...

    @property
    def is_healthy(self) -> bool:
        """Whether writes are reaching the store."""
        ...
