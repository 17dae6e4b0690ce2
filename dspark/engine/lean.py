"""The lean forward of Llama-like models on a CPU: packed fused matmuls and our kernels, nothing between them.

Computes what the stock classes compute, with the same roundings; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dspark.engine.attention import RaggedStep, paged_attention
from dspark.engine.forward import CausalModel
from dspark.engine.kernels.native import HeadTransform, NativeKernels, load_kernels
from dspark.engine.linear import PackedLinear, WeightArena, can_pack, fuse_linears, make_linear, open_arena
from dspark.engine.pages import PAGE_SIZE
from dspark.models.target import TARGET_FAMILIES

_LANES = 16


class _StockMlp(Protocol):
    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear


class _StockLayer(Protocol):
    self_attn: Any
    mlp: _StockMlp
    input_layernorm: Any
    post_attention_layernorm: Any


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    attention_norm: Tensor
    qkv: nn.Module
    output: nn.Module
    gated: nn.Module
    down: nn.Module
    query_norm: Tensor | None
    key_norm: Tensor | None
    scale: float


def is_lean(model: CausalModel, dtype: torch.dtype, cache_dir: Path | None = None) -> bool:
    """Whether the lean forward computes this model on this machine."""
    config = model.config
    sizes = (config.hidden_size, config.intermediate_size, model.model.layers[0].self_attn.head_dim)
    return (
        config.model_type in TARGET_FAMILIES
        and config.hidden_act == "silu"
        and all(size % _LANES == 0 for size in sizes)
        and can_pack(model.lm_head.weight)
        and load_kernels(cache_dir) is not None
        and NativeKernels.supports(
            dtype=dtype, device=model.lm_head.weight.device, head_dim=sizes[2], page_size=PAGE_SIZE
        )
    )


class LeanForward:
    """A decoder-only model as a list of tensors."""

    def __init__(
        self, model: CausalModel, target_layer_ids: Sequence[int], *, cache_dir: Path | None = None
    ) -> None:
        config = model.config
        self.use_kernels = True
        self._embedding = model.model.embed_tokens.weight.detach()
        self._rotary = _RotaryTable(model, config.max_position_embeddings)
        kernels = load_kernels(cache_dir)
        assert kernels is not None, "is_lean said so"
        arena = open_arena(cache_dir)
        self._layers = [_lean_layer(layer, kernels, arena) for layer in model.model.layers]
        self._final_norm = model.model.norm.weight.detach()
        self._head = make_linear(model.lm_head.weight, arena=arena)
        self._eps = float(config.rms_norm_eps)
        self._num_heads = config.num_attention_heads
        self._num_kv_heads = config.num_key_value_heads
        self._head_dim = model.model.layers[0].self_attn.head_dim
        self._tap_columns = {layer_id: place for place, layer_id in enumerate(target_layer_ids)}

    def hidden(self, token_ids: Tensor, positions: Tensor, step: RaggedStep) -> tuple[Tensor, Tensor]:
        """See TargetForward."""
        kernels = step.pool.kernels
        assert kernels is not None, "the lean forward needs a pool with kernels"
        cos, sin = self._rotary.rows(positions)
        residual = torch.nn.functional.embedding(token_ids, self._embedding)
        taps = residual.new_empty((residual.shape[0], len(self._tap_columns) * residual.shape[1]))
        delta: Tensor | None = None
        for index, layer in enumerate(self._layers):
            normed = kernels.add_norm(residual, delta, layer.input_norm, self._eps)
            self._tap(index - 1, residual, taps)
            delta = layer.output(self._attend(index, layer, normed, step, (cos, sin)))
            normed = kernels.add_norm(residual, delta, layer.attention_norm, self._eps)
            delta = layer.down(layer.gated(normed))
        hidden = kernels.add_norm(residual, delta, self._final_norm, self._eps)
        self._tap(len(self._layers) - 1, residual, taps)
        return hidden, taps

    def logits(self, hidden: Tensor) -> Tensor:
        """See TargetForward."""
        logits: Tensor = self._head(hidden)
        return logits

    def _attend(
        self, index: int, layer: _Layer, normed: Tensor, step: RaggedStep, rotation: tuple[Tensor, Tensor]
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


class _GatedLinear(nn.Module):
    """silu(gate) * up where the matmul kernel does not do it by itself."""

    def __init__(self, gate_up: nn.Module, kernels: NativeKernels) -> None:
        super().__init__()
        self._gate_up = gate_up
        self._kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        """Rows [T, H] to [T, I]."""
        return self._kernels.silu_mul(self._gate_up(x))


def _lean_layer(layer: _StockLayer, kernels: NativeKernels, arena: WeightArena | None) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return _Layer(
        input_norm=layer.input_layernorm.weight.detach(),
        attention_norm=layer.post_attention_layernorm.weight.detach(),
        qkv=fuse_linears(attention.q_proj, attention.k_proj, attention.v_proj, arena=arena),
        output=_packed(attention.o_proj, arena),
        gated=_gated_linear(mlp, kernels, arena),
        down=_packed(mlp.down_proj, arena),
        query_norm=None if query_norm is None else query_norm.weight.detach(),
        key_norm=None if key_norm is None else key_norm.weight.detach(),
        scale=float(attention.scaling),
    )


def _packed(linear: nn.Linear, arena: WeightArena | None) -> nn.Module:
    return make_linear(linear.weight, None if linear.bias is None else linear.bias.detach(), arena=arena)


def _gated_linear(mlp: _StockMlp, kernels: NativeKernels, arena: WeightArena | None) -> nn.Module:
    gate, up = mlp.gate_proj, mlp.up_proj
    if arena is not None and kernels.can_multiply(gate.weight) and gate.bias is None:
        weight = torch.cat([gate.weight.detach(), up.weight.detach()])
        return PackedLinear(weight, None, arena=arena, is_gated=True)
    return _GatedLinear(fuse_linears(gate, up, arena=arena), kernels)
