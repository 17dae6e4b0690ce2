"""Attention of training: each block sees the context before its anchor, and itself (DeepSpec 2.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# Blocks of one sample attended together. Their anchors are neighbours, so few keys after an anchor are
# computed in vain.
_BLOCKS_TOGETHER = 16


class Contexts(Protocol):
    """Keys and values of the context by layer, such as a list of them."""

    def __getitem__(self, layer: int, /) -> tuple[Tensor, Tensor]:
        """Keys and values, each [T, Hkv, D]; asked for once, while the layer runs."""
        ...


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbouring blocks of one sample: their rows, the context rows before the last anchor."""

    blocks: slice
    context: slice
    # [A, 1, T] whether the context token lies before the anchor, as 0 or -inf
    bias: Tensor


class BlockAttention:
    """Attention over contexts and the blocks drawn from them, both packed without padding.

    Where samples and blocks begin stands in offsets, and a block knows its anchor: no mask of all queries by
    all keys exists. The context of a block is every position strictly before its anchor; inside the block
    attention is bidirectional; blocks do not see each other. Keys of a block may be more than its queries.
    """

    def __init__(
        self,
        contexts: Contexts,
        token_starts: tuple[int, ...],  # [S+1]
        block_starts: tuple[int, ...],  # [S+1]
        anchors: Tensor,  # [R], ascending within a sample
        gamma: int,  # queries of a block
        dtype: torch.dtype,
    ) -> None:
        self._contexts, self._gamma, self._dtype = contexts, gamma, dtype
        self._groups: list[_Group] = []
        for sample, first_token in enumerate(token_starts[:-1]):
            for first in range(block_starts[sample], block_starts[sample + 1], _BLOCKS_TOGETHER):
                blocks = slice(first, min(first + _BLOCKS_TOGETHER, block_starts[sample + 1]))
                width = int(anchors[blocks.stop - 1])
                hidden = torch.arange(width) >= anchors[blocks, None, None]
                bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
                self._groups.append(_Group(blocks, slice(first_token, first_token + width), bias))

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend: query [R*G, Hq, D], key and value [R*K, Hkv, D], block after block, to [R*G, Hq, D]."""
        kv_heads, head_dim = key.shape[1:]
        shared, num_blocks = query.shape[1] // kv_heads, query.shape[0] // self._gamma
        # [Hkv, T, D] and [Hkv, R, K, D]; queries of the heads that share keys lie side by side
        context = [part.to(self._dtype).transpose(0, 1) for part in self._contexts[layer]]
        own = [
            part.to(self._dtype).view(num_blocks, -1, kv_heads, head_dim).permute(2, 0, 1, 3)
            for part in (key, value)
        ]
        queries = (query.to(self._dtype) * head_dim**-0.5).view(-1, self._gamma, kv_heads, shared, head_dim)
        queries = queries.permute(2, 0, 1, 3, 4).flatten(2, 3)  # [Hkv, R, G*shared, D]
        outs = [self._attend(group, queries, context, own) for group in self._groups]
        out = torch.cat(outs, dim=1).view(kv_heads, -1, self._gamma, shared, head_dim)
        return out.permute(1, 2, 0, 3, 4).reshape(query.shape)

    def _attend(self, group: _Group, queries: Tensor, context: list[Tensor], own: list[Tensor]) -> Tensor:
        """One group: [Hkv, A, G*shared, D]."""
        query = queries[:, group.blocks]
        keys, values = (part[:, group.context] for part in context)
        own_keys, own_values = (part[:, group.blocks] for part in own)
        over_context = (query.flatten(1, 2) @ keys.transpose(1, 2)).view(*query.shape[:3], -1) + group.bias
        over_block = query @ own_keys.transpose(2, 3)
        scores = torch.cat((over_context, over_block), dim=-1)
        probs = torch.softmax(scores, dim=-1, dtype=torch.float32).to(self._dtype)
        width = keys.shape[1]
        out = (probs[..., :width].flatten(1, 2) @ values).view_as(query)
        return out + probs[..., width:] @ own_values
