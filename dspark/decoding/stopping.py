"""Where a request ends inside the tokens of a round. Knows token ids, not text."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.decoding.types import FinishReason, StopParams


def cut_at_stop(
    token_ids: Sequence[int],
    num_generated: int,
    stop: StopParams,
) -> tuple[tuple[int, ...], FinishReason | None]:
    """Cut newly committed tokens where the request ends.

    A stop token is part of the output and its last token; it wins over the length limit when both
    fall on the same token. The result does not depend on how an output is cut into rounds.

    Args:
        token_ids: what a round committed.
        num_generated: tokens of the output before them.
        stop: limits of the request.

    Returns:
        The tokens that belong to the output, and why it ended, if it did.
    """
    allowed = max(stop.max_new_tokens - num_generated, 0)
    for place, token_id in enumerate(token_ids[:allowed]):
        if token_id in stop.stop_token_ids:
            return tuple(token_ids[: place + 1]), FinishReason.STOP
    reason = FinishReason.LENGTH if len(token_ids) >= allowed else None
    return tuple(token_ids[:allowed]), reason
