"""Changes single logits of the target, each row of a block by the context it would have in plain decoding.

A token is chosen in this order, which is that of vLLM and, as far as it has them, of transformers:
    0. log-probabilities that are reported come from the raw logits, before all of this;
    1. `min_tokens`: -inf for end-of-text and stop tokens while the output is shorter;
    2. `logit_bias`: added;
    3. `repetition_penalty`: a positive logit of a token of prompt or output is divided by it, any other
       one multiplied;
    4. `frequency_penalty` times the count in the output is subtracted, and `presence_penalty` where that
       count is not 0;
    5. greedy requests take the greatest of these logits; for others come temperature, then top_k, top_p and
       min_p (`dspark.decoding.sampling`; vLLM applies min_p before top_k, transformers last, as here).

Losslessness: row i of a block is reached only when drafts 0 .. i-1 were accepted, so they are the output in
front of it. Row i therefore counts them, and `min_tokens` sees an output longer by i. Rows behind a rejection
were adjusted for a context that never came about, and nobody looks at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.token_counts import Integers, TokenCounts

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Penalties:
    """Steps 3 and 4 for the k + 1 rows of one block, on the tokens that any of them holds.

    Attributes:
        token_ids: [U] int64, distinct.
        repetition: [k + 1, U] what divides or multiplies; 1 where the row does not hold the token.
        subtracted: [k + 1, U].
    """

    token_ids: Integers
    repetition: Doubles
    subtracted: Doubles


class LogitAdjuster:
    """What the adjustments of one request need to know of its committed tokens; grows with them."""

    def __init__(self, adjustments: LogitAdjustments, prompt: Sequence[int], output: Sequence[int]) -> None:
        self._adjustments = adjustments
        self._output_len = len(output)
        bias = adjustments.logit_bias
        self._biased_ids = torch.tensor([token_id for token_id, _ in bias], dtype=torch.int64)
        self._biases = torch.tensor([value for _, value in bias], dtype=torch.float64)
        self._ending_ids = torch.tensor(adjustments.ending_token_ids, dtype=torch.int64)
        self._counts: TokenCounts | None = None
        if adjustments.has_penalties:
            # Only the repetition penalty looks at the prompt.
            seen = prompt if adjustments.repetition_penalty != 1.0 else ()
            self._counts = TokenCounts.of(seen, output)

    def commit(self, token_ids: Sequence[int]) -> None:
        """Take in tokens of the output, in order."""
        self._output_len += len(token_ids)
        if self._counts is not None:
            self._counts = self._counts.extended(token_ids)

    def ban_and_bias(self, logits: Tensor) -> None:  # [k + 1, V]
        """Steps 1 and 2 on the rows of a block, in place."""
        num_early = self._adjustments.min_tokens - self._output_len
        if num_early > 0:
            logits[:num_early, self._ending_ids.to(logits.device)] = -torch.inf
        if len(self._biased_ids) > 0:
            biases = self._biases.to(logits.device, logits.dtype)
            logits[:, self._biased_ids.to(logits.device)] += biases

    def penalties(self, drafts: Sequence[int]) -> Penalties | None:
        """Those of a block of k drafts; None where the request asks for none."""
        counts = self._counts
        if counts is None:
            return None
        drafted, columns = np.unique(np.asarray(drafts, dtype=np.int64), return_inverse=True)
        before = np.zeros((len(drafts) + 1, len(drafted)), dtype=np.int64)
        before[np.arange(1, len(drafts) + 1), columns] = 1
        before = before.cumsum(axis=0)
        # Tokens of the block stand apart: their counts alone change from row to row.
        is_held, others = counts.holds(drafted), counts.without(drafted)
        shape = (len(before), len(others.token_ids))
        in_output = np.concatenate(
            (np.broadcast_to(others.in_output, shape), counts.in_output_of(drafted) + before), axis=1
        )
        is_seen = np.concatenate((np.ones(shape, dtype=np.bool_), is_held | (before > 0)), axis=1)
        asked = self._adjustments
        return Penalties(
            token_ids=np.concatenate((others.token_ids, drafted)),
            repetition=np.where(is_seen, asked.repetition_penalty, 1.0),
            subtracted=asked.frequency_penalty * in_output + asked.presence_penalty * (in_output > 0),
        )


def adjust_blocks(
    logits: Tensor,  # [T, V] float32 or float64, contiguous; changed in place
    blocks: Sequence[tuple[LogitAdjuster, Sequence[int]]],
) -> None:
    """Adjust the rows of blocks that lie one behind the other, each given by its request and its k drafts.

    Of the k + 1 rows of a block, row i becomes what plain decoding would choose from behind the committed
    tokens and drafts 0 .. i-1.
    """
    assert logits.ndim == 2, logits.shape
    tables: list[tuple[int, Penalties]] = []
    first_row = 0
    for adjuster, drafts in blocks:
        end = first_row + len(drafts) + 1
        adjuster.ban_and_bias(logits[first_row:end])
        penalties = adjuster.penalties(drafts)
        if penalties is not None:
            tables.append((first_row, penalties))
        first_row = end
    assert first_row == logits.shape[0], (first_row, logits.shape)
    if tables:
        _penalise(logits, tables)


def _penalise(logits: Tensor, tables: Sequence[tuple[int, Penalties]]) -> None:
    """All blocks at once, on the few places that change."""
    places = np.concatenate([_places(first_row, one, logits.shape[1]) for first_row, one in tables])
    index = torch.from_numpy(places).to(logits.device)
    repetition, subtracted = (
        torch.from_numpy(np.concatenate(parts)).to(logits.device, logits.dtype)
        for parts in (
            [one.repetition.ravel() for _, one in tables],
            [one.subtracted.ravel() for _, one in tables],
        )
    )
    flat = logits.view(-1)
    values = flat.index_select(0, index)
    values = torch.where(values > 0, values / repetition, values * repetition) - subtracted
    flat.index_copy_(0, index, values)


def _places(first_row: int, penalties: Penalties, num_tokens: int) -> Integers:
    """Where the entries of a table lie in the flattened logits."""
    rows = np.arange(first_row, first_row + len(penalties.subtracted), dtype=np.int64)
    return (rows[:, None] * num_tokens + penalties.token_ids).ravel()
