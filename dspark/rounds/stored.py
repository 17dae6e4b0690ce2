"""A request as its store remembers it, and what its output is after its owner was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspark.decoding.types import GenerationRequest


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """What another owner left.

    Attributes:
        epoch: higher than any the other owner used.
        output: tokens it recorded as committed.
    """

    request: GenerationRequest
    epoch: int
    output: tuple[int, ...]


def output_after_loss(stored: StoredRequest, received: Sequence[int]) -> tuple[int, ...]:
    """The output to go on from: the longer one of what is stored and what the caller received.

    The store may lag behind the caller, and the caller behind the store. Should they contradict each other,
    which unseeded sampling allows, the caller's tokens are the output: they have been seen, so nothing may
    replace them.

    What the caller lacks is computed anew where log-probabilities are asked for, as the store has none.
    Nobody has seen those tokens, so drawing them again leaves the distribution of the output as it is.
    """
    caller = tuple(received)
    continues_caller = stored.output[: len(caller)] == caller
    if continues_caller and stored.request.sampling.num_logprobs is None:
        return stored.output
    return caller
