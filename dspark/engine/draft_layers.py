"""The drafter's backbone in native calls: context into pages, then layers whose rows see the whole block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark.engine.attention import RaggedLayout
from dspark.engine.kernels.context_rows import FollowingRows
from dspark.engine.kernels.decoder import DecoderLayer, DecoderShape, NativeDecoder
from dspark.engine.kernels.draft import NativeDraft
from dspark.engine.kernels.ingest import ContextWeights, NativeContext
from dspark.engine.kernels.markov import NativeMarkovHead
from dspark.engine.kernels.native import NativeKernels, PackedWeight
from dspark.engine.lean_layers import native_layers, take_layer
from dspark.engine.linear import WeightArena
from dspark.engine.pages import PagePool
from dspark.models.config import QWEN3, DrafterConfig
from dspark.models.drafter import DSparkDrafter
from dspark.models.layers import Rotary
from dspark.models.qwen3 import DraftAttention

_LANES = 16


class NativeBackbone:
    """Computes what `Backbone` computes, with keys and values in pages."""

    def __init__(
        self,
        drafter: DSparkDrafter,
        pool: PagePool,
        kernels: NativeKernels,
        layers: list[DecoderLayer],
        arena: WeightArena,
    ) -> None:
        backbone, config = drafter.backbone, drafter.config
        self._pool, self._kernels = pool, kernels
        self._rotary = rotary_table(backbone.rotary, config, pool.dtype)
        self._decoder = NativeDecoder(kernels, layers, backbone.norm.weight.detach(), _shape(config))
        attentions: list[DraftAttention] = [layer.self_attn for layer in backbone.layers]  # type: ignore[misc]
        parts = [part.weight.detach() for one in attentions for part in (one.k_proj, one.v_proj)]
        weights = ContextWeights(
            fuse=arena.pack(backbone.fc.weight.detach()),
            fused_norm=backbone.hidden_norm.weight.detach().to(pool.dtype),
            keys_values=arena.pack(torch.cat(parts)),
            key_norms=[one.k_norm.weight.detach().to(pool.dtype) for one in attentions],
            eps=config.rms_norm_eps,
        )
        pages = (pool.keys, pool.values)
        self._context = NativeContext(kernels, weights, pages, pool.num_kv_heads, self._rotary)

    def ingest(self, features: Tensor, rows: Sequence[FollowingRows]) -> None:
        """Write keys and values of the context (eqs. 2-3) from the features [T, L*H] of these rows."""
        self._context.write(features, rows)

    def blocks(self, embeddings: Tensor, positions: Tensor, layout: RaggedLayout) -> Tensor:
        """Block embeddings [T, H], overwritten, at absolute positions [T] to hidden states [T, H]."""
        indices = (layout.slots, layout.row_request, layout.page_table, layout.kv_lens)
        pages = (self._pool.keys, self._pool.values)
        cos, sin = (table.index_select(0, positions) for table in self._rotary)
        return self._decoder.run(embeddings, pages, indices, (cos, sin))[0]

    def with_heads(
        self, drafter: DSparkDrafter, heads: tuple[PackedWeight, NativeMarkovHead]
    ) -> NativeDraft | None:
        """A whole draft in one call; None where there is more between the parts than the call does."""
        config, embeddings = drafter.config, drafter.embed_tokens
        if config.final_logit_softcapping or config.embedding_scale != 1:
            return None
        if embeddings.dtype != torch.bfloat16 or not embeddings.is_contiguous():
            return None
        pages = (self._pool.keys, self._pool.values)
        return NativeDraft(
            self._kernels,
            (self._decoder, pages),
            heads,
            (embeddings, config.mask_token_id),
            self._rotary,
        )


def native_backbone(
    drafter: DSparkDrafter, pool: PagePool, arena: WeightArena | None
) -> NativeBackbone | None:
    """The backbone in native calls where the CPU has our kernels; None: run the modules.

    Args:
        drafter: with stock linear layers, in bfloat16.
        pool: pages of the context, which the calls read and write.
        arena: where packed weights go.
    """
    if arena is None or pool.kernels is None or pool.dtype != torch.bfloat16:
        return None
    config = drafter.config
    if config.architecture != QWEN3 or config.attention_bias or config.hidden_size % _LANES:
        return None
    stock = drafter.backbone.layers
    layers = native_layers([take_layer(layer, pool.kernels, arena) for layer in stock])  # type: ignore[arg-type]
    return None if layers is None else NativeBackbone(drafter, pool, pool.kernels, layers, arena)


def _shape(config: DrafterConfig) -> DecoderShape:
    return DecoderShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        scale=config.attention_scale,
        norm_eps=config.rms_norm_eps,
    )


def rotary_table(rotary: Rotary, config: DrafterConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position a block can reach, [P, D / 2], rounded as the modules round."""
    positions = torch.arange(config.max_position_embeddings + config.gamma)
    half = config.head_dim // 2
    cos, sin = (part[:, 0, :half].float().contiguous() for part in rotary(positions, dtype))
    return cos, sin
