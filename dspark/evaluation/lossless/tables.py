"""Target and drafter so small that every output can be enumerated: tables over the last two tokens.

The prompt is empty: an output begins where the sequence does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.adjustment import LogitAdjuster, adjust_blocks
from dspark.decoding.drafting import draft_tokens
from dspark.decoding.sampling import shaped_probs
from dspark.decoding.types import SamplingParams, SparseProbs
from dspark.evaluation.lossless.definition import adjusted_by_definition

Prefix = tuple[int, ...]
# A logit beside which those of 0 have no probability in float64.
_SURE = 1000.0
# Logits after a prefix, [V] for the target and [Vd] for the drafter.
Logits = Callable[[Prefix], Tensor]


@dataclass(frozen=True)
class Tables:
    """A toy pair of models.

    Attributes:
        vocab_size: of the target.
        gamma: drafts per block.
        target_logits: float64 [V] after a prefix.
        draft_logits: float32 [Vd] after a prefix.
        token_map: [Vd] target ids of the drafter's vocabulary.
        confidence: of the next draft after the prefix and the drafts before it.
        sampling: of target and drafter; its seed is not used.
    """

    vocab_size: int
    gamma: int
    target_logits: Logits
    draft_logits: Logits
    token_map: Tensor
    confidence: Callable[[Prefix], float]
    sampling: SamplingParams

    @cached_property
    def target_probs(self) -> Callable[[Prefix], Tensor]:
        """The target distribution of plain decoding after a prefix, by its definition, float64 [V]."""

        def probs(prefix: Prefix) -> Tensor:
            logits = self.target_logits(prefix)
            adjusted = adjusted_by_definition(logits, self.sampling.adjustments, (), prefix)
            return shaped_probs(adjusted, self.sampling)

        return cache(probs)

    @cached_property
    def block_probs(self) -> Callable[[Prefix, Prefix], Tensor]:
        """The distributions of the rows of a block, shaped as one by production, float64 [k + 1, V]."""

        def probs(prefix: Prefix, drafts: Prefix) -> Tensor:
            logits = torch.stack([self.target_logits(prefix + drafts[:k]) for k in range(len(drafts) + 1)])
            adjuster = self.adjuster(prefix)
            if adjuster is not None:
                adjust_blocks(logits, [(adjuster, drafts)])
            return shaped_probs(logits, self.sampling)

        return cache(probs)

    def adjuster(self, output: Prefix) -> LogitAdjuster | None:
        """Production's adjuster after an output, None where nothing is adjusted."""
        adjustments = self.sampling.adjustments
        if adjustments is None:
            return None
        adjuster = LogitAdjuster(adjustments, (), output[:1])
        adjuster.commit(output[1:])
        return adjuster

    @cached_property
    def draft_probs(self) -> Callable[[Prefix], SparseProbs]:
        """The distribution that the production drafting draws from after a prefix."""

        def probs(prefix: Prefix) -> SparseProbs:
            logits = self.draft_logits(prefix)[None]
            _, supports = draft_tokens(logits, [self.sampling], [len(prefix)], self.token_map)
            assert supports[0] is not None, self.sampling
            return supports[0]

        return cache(probs)

    def confidences(self, prefix: Prefix, drafts: Prefix) -> Iterator[float]:
        """Confidences of a block, one by one; each sees the drafts before its own."""
        for place in range(len(drafts)):
            yield self.confidence(prefix + drafts[:place])


def random_tables(seed: int, sampling: SamplingParams, *, vocab_size: int = 4, gamma: int = 3) -> Tables:
    """A target, and a drafter that resembles it but lacks one token."""
    rng = np.random.default_rng(seed)
    shape = (vocab_size + 1, vocab_size + 1)
    token_map = torch.from_numpy(rng.permutation(vocab_size)[: vocab_size - 1].copy())
    target = torch.from_numpy(rng.normal(0, 1.2, (*shape, vocab_size)))
    noise = torch.from_numpy(rng.normal(0, 0.7, (*shape, vocab_size - 1)))
    draft = (target[..., token_map] + noise).float()
    confidence = rng.uniform(0.05, 0.95, shape)

    def row(prefix: Prefix) -> tuple[int, int]:
        """The last two tokens; `vocab_size` stands for none."""
        last = (vocab_size, vocab_size, *prefix)[-2:]
        return last[0], last[1]

    return Tables(
        vocab_size=vocab_size,
        gamma=gamma,
        target_logits=lambda prefix: target[row(prefix)],
        draft_logits=lambda prefix: draft[row(prefix)],
        token_map=token_map,
        confidence=lambda prefix: float(confidence[row(prefix)]),
        sampling=sampling,
    )


def copying(tables: Tables) -> Tables:
    """The same with a drafter that copies: each of its distributions is one token, the likeliest before."""

    def logits(prefix: Prefix) -> Tensor:
        drafted = tables.draft_logits(prefix)
        return torch.where(torch.arange(len(drafted)) == drafted.argmax(), _SURE, 0.0)

    return replace(tables, draft_logits=logits)


def appendix_a_tables() -> Tables:
    """The example of the paper's Appendix A: the second confidence is computed from the first draft."""
    target = torch.tensor([0.7, 0.3], dtype=torch.float64).log()
    return Tables(
        vocab_size=2,
        gamma=2,
        target_logits=lambda prefix: target,
        draft_logits=lambda prefix: torch.zeros(2),
        token_map=torch.arange(2),
        confidence=lambda prefix: 0.8 if not prefix else 0.9 * (prefix[0] == 0),
        sampling=SamplingParams(),
    )
