"""Training-time test of chain drafters: all steps of every block, each over the state of the one before.

The tokens of a chain are the true ones. In a greedy text a draft that is accepted *is* the true token, and
what comes after a rejected one does not count, so the accepted prefix is the one that drafting would have.
The block of an anchor at position a begins with the pair of position a - 1 (DeepSpec section 7).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from dspark.models.chain import ChainDrafter
from dspark.training.attention import BlockAttention
from dspark.training.blocks import BlockBatch


class _ChainAttention:
    """A step sees the pairs before its block, and the steps of its own block up to itself."""

    def __init__(self, blocks: BlockAttention) -> None:
        self._blocks = blocks
        self._own: tuple[list[Tensor], list[Tensor]] = ([], [])

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend one step of all blocks: query [R, Hq, D], key and value [R, Hkv, D], to [R, Hq, D]."""
        for parts, part in zip(self._own, (key, value), strict=True):
            parts.append(part)
        keys, values = (torch.stack(parts, dim=1).flatten(0, 1) for parts in self._own)
        return self._blocks(layer, query, keys, values)


def chain_states(drafter: ChainDrafter, batch: BlockBatch, dtype: torch.dtype) -> Tensor:
    """States of all steps after the last norm, block after block, [R*G, H]; gradients flow through all steps.

    Args:
        drafter: whose frozen rows are in `dtype`.
        batch: R blocks of G steps.
        dtype: to compute in.
    """
    backbone, starts = drafter.backbone, batch.token_starts
    states = backbone.fuse(batch.features.to(dtype))
    positions = torch.cat([torch.arange(stop - start) for start, stop in itertools.pairwise(starts)])
    # The last position of a sample takes a token of another one, and is before no anchor.
    following = drafter.embed(batch.token_ids.roll(-1))
    context = backbone.keys_values(following, states, positions)
    first = batch.anchors - 1
    attend = _ChainAttention(BlockAttention([context], starts, batch.block_starts, first, 1, dtype))
    state = states[first + _sample_starts(batch)]
    steps = []
    for step in range(batch.is_valid.shape[-1]):
        state = backbone(drafter.embed(batch.tokens[:, step]), state, first + step, attend)
        steps.append(state)
    hidden: Tensor = backbone.norm(torch.stack(steps, dim=1).flatten(0, 1))
    return hidden


def _sample_starts(batch: BlockBatch) -> Tensor:
    """Of the sample that each block is of, [R]."""
    counts = torch.tensor(batch.block_starts).diff()
    return torch.tensor(batch.token_starts[:-1]).repeat_interleave(counts)
