"""Which samples are trained on and which are held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dspark.models.drafter import Drafter
from dspark.training.blocks import AnchorRule, BlockBatch, BlockSampler
from dspark.training.feature_source import FeatureSource
from dspark.training.vocabulary import invert_vocabulary


@dataclass(frozen=True, slots=True)
class Split:
    """Samplers over training and held-out samples."""

    train: BlockSampler
    held_out: list[BlockBatch]


def split_cache(
    cache: FeatureSource,
    drafter: Drafter,
    *,
    batch_samples: int,
    anchors_per_sample: int,
    seed: int,
    rule: AnchorRule = AnchorRule.SERVING,
) -> Split:
    """Hold out one sample in twenty, but at least one batch and at most four."""
    order = np.random.Generator(np.random.PCG64(7)).permutation(len(cache))
    count = min(max(batch_samples, len(order) // 20), 4 * batch_samples)
    t2d: Tensor = invert_vocabulary(drafter.d2t, cache.vocab_size)

    def sampler(members: np.ndarray, sampler_seed: int, rule: AnchorRule) -> BlockSampler:
        return BlockSampler(
            cache,
            members,
            t2d,
            gamma=drafter.config.gamma,
            batch_samples=batch_samples,
            anchors_per_sample=anchors_per_sample,
            seed=sampler_seed,
            rule=rule,
            reads_last_state=drafter.config.reads_last_state,
        )

    # Held-out figures are those of serving, whatever is trained.
    held_out = sampler(order[:count], 1, AnchorRule.SERVING)
    batches = [held_out.batch(number) for number in range(len(held_out))]
    return Split(sampler(order[count:], seed, rule), batches)
