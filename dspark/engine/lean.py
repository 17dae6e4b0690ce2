"""The lean forward of Llama-like models on a CPU: packed fused matmuls and our kernels, nothing between them.

Computes what the stock classes compute, with the same roundings; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dspark.engine.attention import RaggedStep, paged_attention
from dspark.engine.forward import CausalModel
from dspark.engine.kernels.native import HeadTransform, NativeKernels, load_kernels
from dspark.engine.lean_layers import LeanLayer, native_decoder, take_layer
from dspark.engine.linear import can_pack, make_linear, open_arena
from dspark.engine.pages import PAGE_SIZE
from dspark.models.target import TARGET_FAMILIES

_LANES = 16


def is_lean(model: CausalModel, dtype: torch.dtype, cache_dir: Path | None = None) -> bool:
    """Whether the lean forward computes this model on this machine."""
    config, kernels = model.config, load_kernels(cache_dir)
    sizes = (config.hidden_size, config.intermediate_size, model.model.layers[0].self_attn.head_dim)
    return (
        kernels is not None
        and config.model_type in TARGET_FAMILIES
        and config.hidden_act == "silu"
        and all(size % _LANES == 0 for size in sizes)
        and (kernels.can_multiply(model.lm_head.weight) or can_pack(model.lm_head.weight))
        and NativeKernels.supports(
            dtype=dtype, device=model.lm_head.weight.device, head_dim=sizes[2], page_size=PAGE_SIZE
        )
    )


class LeanForward:
    """A decoder-only model as a list of tensors: one native call for all layers, or one per operation."""

    def __init__(
        self, model: CausalModel, target_layer_ids: Sequence[int], *, cache_dir: Path | None = None
    ) -> None:
        config = model.config
        kernels = load_kernels(cache_dir)
        assert kernels is not None, "is_lean said so"
        arena = open_arena(cache_dir)
        self.use_kernels = True
        self._embedding = model.model.embed_tokens.weight.detach()
        self._rotary = _RotaryTable(model, config.max_position_embeddings)
        self._layers = [take_layer(layer, kernels, arena) for layer in model.model.layers]
        self._decoder = native_decoder(kernels, self._layers, model, target_layer_ids)
        self._final_norm = model.model.norm.weight.detach()
        self._head = make_linear(model.lm_head.weight, arena=arena)
        self._eps = float(config.rms_norm_eps)
        self._num_heads = config.num_attention_heads
        self._num_kv_heads = config.num_key_value_heads
        self._head_dim = model.model.layers[0].self_attn.head_dim
        self._tap_columns = {layer_id: place for place, layer_id in enumerate(target_layer_ids)}

    def hidden(self, token_ids: Tensor, positions: Tensor, step: RaggedStep) -> tuple[Tensor, Tensor]:
        """See TargetForward."""
        residual = torch.nn.functional.embedding(token_ids, self._embedding)
        rotation = self._rotary.rows(positions)
        if self._decoder is None:
            return self._by_operation(residual, rotation, step)
        pool, layout = step.pool, step.layout
        indices = (layout.slots, layout.row_request, layout.page_table, layout.kv_lens)
        return self._decoder.run(residual, (pool.keys, pool.values), indices, rotation)

    def logits(self, hidden: Tensor) -> Tensor:
        """See TargetForward."""
        logits: Tensor = self._head(hidden)
        return logits

    def _by_operation(
        self, residual: Tensor, rotation: tuple[Tensor, Tensor], step: RaggedStep
    ) -> tuple[Tensor, Tensor]:
        kernels = step.pool.kernels
        assert kernels is not None, "the lean forward needs a pool with kernels"
        taps = residual.new_empty((residual.shape[0], len(self._tap_columns) * residual.shape[1]))
        delta: Tensor | None = None
        for index, layer in enumerate(self._layers):
            normed = kernels.add_norm(residual, delta, layer.input_norm, self._eps)
            self._tap(index - 1, residual, taps)
            delta = layer.output(self._attend(index, layer, normed, step, rotation))
            normed = kernels.add_norm(residual, delta, layer.attention_norm, self._eps)
            delta = layer.down(layer.gated(normed))
        hidden = kernels.add_norm(residual, delta, self._final_norm, self._eps)
        self._tap(len(self._layers) - 1, residual, taps)
        return hidden, taps

    def _attend(
        self, index: int, layer: LeanLayer, normed: Tensor, step: RaggedStep, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        heads = layer.qkv(normed).view(normed.shape[0], -1, self._head_dim)
        query, key, value = heads.split((self._num_heads, self._num_kv_heads, self._num_kv_heads), dim=1)
        transform = HeadTransform(*rotation, layer.query_norm, layer.key_norm, self._eps)
        out = paged_attention(
            step.pool, index, query, key, value, step.layout, scale=layer.scale, transform=transform
        )
        return out.view(normed.shape[0], -1)

    def _tap(self, layer_id: int, residual: Tensor, taps: Tensor) -> None:
        place = self._tap_columns.get(layer_id)
        if place is not None:
            width = residual.shape[1]
            taps[:, place * width : (place + 1) * width] = residual


class _RotaryTable:
    """Cosines and sines of every position, rounded as the model rounds them, made once."""

    def __init__(self, model: CausalModel, num_positions: int) -> None:
        like = model.lm_head.weight
        cos, sin = model.model.rotary_emb(like, torch.arange(num_positions)[None])
        half = cos.shape[-1] // 2
        # The model repeats the first half; the kernel does not need it twice.
        self._cos = cos[0, :, :half].float().contiguous()
        self._sin = sin[0, :, :half].float().contiguous()

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[T] positions to cosines and sines [T, D / 2]."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)
