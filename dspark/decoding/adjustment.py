"""Changes single logits of the target, each row of a block by the context it would have in plain decoding.

A token is chosen in this order, which is that of vLLM and, as far as it has them, of transformers:
    0. log-probabilities that are reported come from the raw logits, before all of this;
    1. `min_tokens`: -inf for end-of-text and stop tokens while the output is shorter;
    2. `logit_bias`: added;
    3. `repetition_penalty`: a positive logit of a token of prompt or output is divided by it, any other
       one multiplied;
    4. `frequency_penalty` times the count in the output, then `presence_penalty` where that is not 0,
       are subtracted;
    5. greedy requests take the greatest of these logits; for others come temperature, then top_k, top_p and
       min_p (`dspark.decoding.sampling`; vLLM applies min_p before top_k, transformers last, as here).

Losslessness: row i of a block is reached only when drafts 0 .. i-1 were accepted, so they are the output in
front of it. Row i therefore counts them, and `min_tokens` sees an output longer by i. Rows behind a rejection
were adjusted for a context that never came about, and nobody looks at them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.token_counts import TokenCounts
from dspark.decoding.types import LogitAdjustments


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

    def adjust(
        self,
        logits: Tensor,  # [k + 1, V], changed in place
        drafts: Sequence[int],  # [k]
    ) -> None:
        """Adjust the rows of a block: row i as after the committed tokens and drafts 0 .. i-1."""
        assert logits.ndim == 2, logits.shape
        assert logits.shape[0] == len(drafts) + 1, (logits.shape, len(drafts))
        num_early = self._adjustments.min_tokens - self._output_len
        if num_early > 0:
            logits[:num_early, self._ending_ids.to(logits.device)] = -torch.inf
        if len(self._biased_ids) > 0:
            biases = self._biases.to(logits.device, logits.dtype)
            logits[:, self._biased_ids.to(logits.device)] += biases
        if self._counts is not None:
            self._penalise(logits, self._counts, np.asarray(drafts, dtype=np.int64))

    def _penalise(self, logits: Tensor, counts: TokenCounts, drafts: npt.NDArray[np.int64]) -> None:
        """Steps 3 and 4: on the committed tokens, alike in all rows; on the drafts, by those in front."""
        drafted = np.unique(drafts)
        before = np.zeros((len(drafts) + 1, len(drafted)), dtype=np.int64)
        before[np.arange(1, len(drafts) + 1), np.searchsorted(drafted, drafts)] = 1
        before = before.cumsum(axis=0)
        drafted_ids = torch.from_numpy(drafted).to(logits.device)
        # They may be committed tokens too, so these are computed from the logits as they were.
        penalised = self._penalised(
            logits.index_select(1, drafted_ids),
            is_seen=counts.holds(drafted) | (before > 0),
            in_output=counts.in_output_of(drafted) + before,
        )
        held_ids = torch.from_numpy(counts.token_ids).to(logits.device)
        held = self._penalised(
            logits.index_select(1, held_ids),
            is_seen=np.ones(len(counts.token_ids), dtype=np.bool_),
            in_output=counts.in_output,
        )
        logits.index_copy_(1, held_ids, held).index_copy_(1, drafted_ids, penalised)

    def _penalised(
        self,
        logits: Tensor,  # [k + 1, U]
        *,
        is_seen: npt.NDArray[np.bool_],  # [U] or [k + 1, U]
        in_output: npt.NDArray[np.int64],  # [U] or [k + 1, U]
    ) -> Tensor:
        penalty = self._adjustments.repetition_penalty
        if penalty != 1.0:
            repeated = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits = torch.where(torch.from_numpy(is_seen).to(logits.device), repeated, logits)
        counts = torch.from_numpy(in_output).to(logits.device, logits.dtype)
        by_count = self._adjustments.frequency_penalty * counts
        return logits - by_count - self._adjustments.presence_penalty * counts.clamp(max=1.0)
