"""Dense attention of training: each block sees the context before its anchor, and itself (DeepSpec 2.4)."""

from __future__ import annotations

import torch
from torch import Tensor


class BlockAttention:
    """Attention over padded contexts and the blocks drawn from them.

    The context of a block is every position strictly before its anchor; inside the block attention is
    bidirectional; blocks do not see each other.
    """

    def __init__(
        self,
        contexts: list[tuple[Tensor, Tensor]],  # per layer keys and values, each [B*T, Hkv, D]
        anchors: Tensor,  # [B, A]
        gamma: int,
        dtype: torch.dtype,
    ) -> None:
        self._batch, self._num_anchors = anchors.shape
        self._gamma, self._dtype = gamma, dtype
        self._contexts = contexts
        width = contexts[0][0].shape[0] // self._batch
        hidden = torch.arange(width) >= anchors[:, :, None]
        # [B, 1, A, 1, T]: additive mask over context keys
        self._mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
        self._mask = self._mask[:, None, :, None, :]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend: query [N, Hq, D], key and value [N, Hkv, D] with N = B*A*G, to [N, Hq, D]."""
        kv_heads, head_dim = key.shape[1:]
        groups = query.shape[1] // kv_heads
        blocks = (self._batch, self._num_anchors, self._gamma)
        context_key, context_value = (
            part.to(self._dtype).view(self._batch, -1, kv_heads, head_dim).transpose(1, 2)
            for part in self._contexts[layer]
        )
        # [B, Hkv, A, G*groups, D]
        queries = query.to(self._dtype).view(*blocks, kv_heads, groups, head_dim) * head_dim**-0.5
        queries = queries.permute(0, 3, 1, 2, 4, 5).flatten(3, 4)
        own_key, own_value = (
            part.to(self._dtype).view(*blocks, kv_heads, head_dim).permute(0, 3, 1, 2, 4)
            for part in (key, value)
        )
        flat = queries.flatten(2, 3)
        over_context = (flat @ context_key.transpose(2, 3)).view(*queries.shape[:4], -1) + self._mask
        over_block = queries @ own_key.transpose(3, 4)
        probs = torch.softmax(torch.cat((over_context, over_block), dim=-1), dim=-1)
        width = context_key.shape[2]
        out = (probs[..., :width].flatten(2, 3) @ context_value).view_as(queries)
        out = out + probs[..., width:] @ own_value
        out = out.view(self._batch, kv_heads, self._num_anchors, self._gamma, groups, head_dim)
        return out.permute(0, 2, 3, 1, 4, 5).reshape(query.shape)
