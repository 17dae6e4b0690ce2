"""The backbone of a chain drafter over our CPU kernels: fused products, and our own norms between them."""

from __future__ import annotations

import torch
from torch import Tensor

from dspark.engine.attention import RaggedLayout, paged_attention
from dspark.engine.draft_layers import rotary_table
from dspark.engine.kernels.native import HeadTransform, NativeKernels
from dspark.engine.lean_layers import LeanLayer, take_layer
from dspark.engine.linear import WeightArena
from dspark.engine.pages import PagePool
from dspark.models.chain import ChainDrafter
from dspark.models.layers import rotate
from dspark.models.mtp import MtpBackbone

_LANES = 16


class NativeChain:
    """Computes what `ChainBackbone` computes, for layers of Qwen3 in bfloat16."""

    def __init__(
        self, drafter: ChainDrafter, pool: PagePool, kernels: NativeKernels, arena: WeightArena
    ) -> None:
        config, backbone = drafter.config, drafter.backbone
        self._pool, self._kernels, self._eps = pool, kernels, config.rms_norm_eps
        self._head_dim = config.head_dim
        self._split = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        self._layer: LeanLayer = take_layer(backbone.layer, kernels, arena)  # type: ignore[arg-type]
        self._rotary = rotary_table(backbone.rotary, config, pool.dtype)
        self._final_norm = backbone.norm.weight.detach()
        self._input_norms = tuple(norm.weight.detach() for norm in backbone.input_norms)
        self._mtp = backbone if isinstance(backbone, MtpBackbone) else None

    def keys_values(self, embeddings: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See ChainBackbone."""
        key, value = self._heads(self._inputs(embeddings, states)[0])[1:]
        flat = key.reshape(-1, self._head_dim).contiguous()
        assert self._layer.key_norm is not None, "a draft layer has head norms"
        normed = self._kernels.add_norm(flat, None, self._layer.key_norm, self._eps).view(key.shape)
        cos, sin = (torch.cat((part, part), dim=-1)[:, None].to(key.dtype) for part in self._turn(positions))
        return rotate(normed, cos, sin), value

    def step(
        self, embeddings: Tensor, states: Tensor, positions: Tensor, layout: RaggedLayout
    ) -> tuple[Tensor, Tensor]:
        """The next states before and after the last norm, [n, H] each; `states` is overwritten."""
        kernels, layer, eps = self._kernels, self._layer, self._eps
        read, residual = self._inputs(embeddings, states)
        transform = HeadTransform(*self._turn(positions), layer.query_norm, layer.key_norm, eps)
        attended = paged_attention(
            self._pool, 0, *self._heads(read), layout, scale=layer.scale, transform=transform
        )
        delta = layer.output(attended.view(len(read), -1))
        normed = kernels.add_norm(residual, delta, layer.attention_norm, eps)
        delta = layer.down(layer.gated(normed))
        return residual, kernels.add_norm(residual, delta, self._final_norm, eps)

    def _inputs(self, embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        parts = zip((embeddings, states), self._input_norms, strict=True)
        pair = torch.cat([self._kernels.add_norm(one, None, norm, self._eps) for one, norm in parts], dim=-1)
        if self._mtp is None:
            return pair, states
        joined: Tensor = self._mtp.eh_proj(pair)
        return self._kernels.add_norm(joined, None, self._layer.input_norm, self._eps), joined

    def _heads(self, read: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self._layer.qkv(read).view(len(read), -1, self._head_dim)
        query, key, value = heads.split(self._split, dim=1)
        return query, key, value

    def _turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self._rotary
        return cos.index_select(0, positions), sin.index_select(0, positions)


def native_chain(drafter: ChainDrafter, pool: PagePool, arena: WeightArena | None) -> NativeChain | None:
    """The backbone over our kernels, where the CPU has them; None: run the modules.

    Args:
        drafter: with stock linear layers.
        pool: pages of the context, which attention reads and writes.
        arena: where packed weights go.
    """
    if arena is None or pool.kernels is None or pool.dtype != torch.bfloat16:
        return None
    if drafter.config.is_gemma or drafter.config.hidden_size % _LANES:
        return None
    return NativeChain(drafter, pool, pool.kernels, arena)
