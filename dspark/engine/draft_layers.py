"""The drafter's layers in one native call: they are decoder layers whose rows may see the whole block."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dspark.engine.attention import RaggedLayout
from dspark.engine.kernels.decoder import DecoderShape, NativeDecoder
from dspark.engine.lean_layers import native_layers, take_layer
from dspark.engine.linear import WeightArena
from dspark.engine.pages import PagePool
from dspark.models.drafter import DSparkDrafter

Blocks = Callable[[Tensor, Tensor, RaggedLayout], Tensor]


def native_backbone(drafter: DSparkDrafter, pool: PagePool, arena: WeightArena | None) -> Blocks | None:
    """The block pass as one call, where the CPU has our kernels; None: run the modules.

    Args:
        drafter: with stock linear layers, in bfloat16.
        pool: pages of the context, which the call reads and writes.
        arena: where packed weights go.

    Returns:
        Block embeddings [T, H], absolute positions [T] and their layout, to hidden states [T, H].
    """
    backbone, config = drafter.backbone, drafter.config
    if arena is None or pool.kernels is None or pool.dtype != torch.bfloat16:
        return None
    taken = [take_layer(layer, pool.kernels, arena) for layer in backbone.layers]  # type: ignore[arg-type]
    layers = native_layers(taken)
    if layers is None:
        return None
    shape = DecoderShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        scale=taken[0].scale,
        norm_eps=config.rms_norm_eps,
    )
    decoder = NativeDecoder(pool.kernels, layers, backbone.norm.weight.detach(), shape)
    half = config.head_dim // 2

    def run(embeddings: Tensor, positions: Tensor, layout: RaggedLayout) -> Tensor:
        cos, sin = (part[:, 0, :half].float().contiguous() for part in backbone.rotary(positions, pool.dtype))
        indices = (layout.slots, layout.row_request, layout.page_table, layout.kv_lens)
        return decoder.run(embeddings.clone(), (pool.keys, pool.values), indices, (cos, sin))[0]

    return run
