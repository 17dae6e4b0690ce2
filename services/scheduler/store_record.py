"""One request as the store's writer knows it: what should be stored, and how much of it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark.decoding.types import FinishReason, GenerationRequest
from services.scheduler.store_schema import epoch_text, finish_text, pack_tokens, params_text

Arguments = tuple[str | int | bytes, ...]


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Times to live and bounds.

    Attributes:
        running_ttl_s: how long a request lives after its last write; finished ones live `finished_ttl_s`.
        max_events: rounds the event stream of a request keeps, about.
        max_records: requests that wait to be written; beyond it the oldest is dropped and counted.
    """

    running_ttl_s: float = 900.0
    finished_ttl_s: float = 120.0
    max_events: int = 1024
    max_records: int = 4096

    def ttl_ms(self, reason: FinishReason | None) -> int:
        """Milliseconds a request lives from now on."""
        return int(1000 * (self.finished_ttl_s if reason else self.running_ttl_s))


@dataclass(frozen=True, slots=True)
class Write:
    """One script call: what the store holds of the request once it succeeded."""

    is_create: bool
    arguments: Arguments
    # output tokens
    output_len: int
    finish_reason: FinishReason | None


@dataclass(slots=True)
class Record:
    """State to be written, not a log of writes: whatever was missed is in the next write.

    Attributes:
        num_stored: output tokens the store holds; None where it holds nothing of the request.
    """

    request: GenerationRequest
    epoch: int
    output: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_stored: int | None = None
    is_finish_stored: bool = False

    @property
    def is_stored(self) -> bool:
        """Whether the store holds all of it."""
        return self.num_stored == len(self.output) and self.is_finish_stored == bool(self.finish_reason)

    def next_write(self, config: StoreConfig) -> Write:
        """What brings the store up to date."""
        is_create = self.num_stored is None
        arguments = self._create_arguments(config) if is_create else self._commit_arguments(config)
        return Write(is_create, arguments, len(self.output), self.finish_reason)

    def note_stored(self, write: Write) -> None:
        """A write succeeded; the record may have grown meanwhile."""
        self.num_stored = write.output_len
        self.is_finish_stored = write.finish_reason is not None

    def note_missing(self) -> None:
        """The store does not hold what we believed: write all of it again."""
        self.num_stored = None
        self.is_finish_stored = False

    def _create_arguments(self, config: StoreConfig) -> Arguments:
        output = pack_tokens(self.output)
        prompt = self.request.prompt_token_ids
        return (
            epoch_text(self.epoch),
            params_text(self.request),
            len(prompt),
            len(self.output),
            pack_tokens(prompt) + output,
            output,
            finish_text(self.finish_reason),
            config.ttl_ms(self.finish_reason),
        )

    def _commit_arguments(self, config: StoreConfig) -> Arguments:
        assert self.num_stored is not None
        new = self.output[self.num_stored :]
        return (
            epoch_text(self.epoch),
            len(self.request.prompt_token_ids) + self.num_stored,
            len(new),
            pack_tokens(new),
            finish_text(self.finish_reason),
            config.ttl_ms(self.finish_reason),
            config.max_events,
        )
