"""Layers of Llama-like models, taken from the stock classes and packed for a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dspark.engine.forward import CausalModel
from dspark.engine.kernels.decoder import DecoderLayer, DecoderShape, NativeDecoder, PackedProjection
from dspark.engine.kernels.native import NativeKernels
from dspark.engine.linear import PackedLinear, WeightArena, fuse_linears, make_linear


class StockMlp(Protocol):
    """A gated MLP of transformers."""

    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear


class StockLayer(Protocol):
    """A decoder layer of transformers."""

    self_attn: Any
    mlp: StockMlp
    input_layernorm: Any
    post_attention_layernorm: Any


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """One decoder layer: what is multiplied, and the norms between.

    Attributes:
        gated: gives silu(gate) * up.
        query_norm: over head_dim, or None.
        key_norm: over head_dim, or None.
        scale: of the attention scores.
    """

    input_norm: Tensor
    attention_norm: Tensor
    qkv: nn.Module
    output: nn.Module
    gated: nn.Module
    down: nn.Module
    query_norm: Tensor | None
    key_norm: Tensor | None
    scale: float


class GatedLinear(nn.Module):
    """silu(gate) * up where the matmul kernel does not do it by itself."""

    def __init__(self, gate_up: nn.Module, kernels: NativeKernels) -> None:
        super().__init__()
        self._gate_up = gate_up
        self._kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        """Rows [T, H] to [T, I]."""
        return self._kernels.silu_mul(self._gate_up(x))


def take_layer(layer: StockLayer, kernels: NativeKernels, arena: WeightArena | None) -> LeanLayer:
    """Pack one stock layer; matmuls over the same input are fused."""
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return LeanLayer(
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


def native_decoder(
    kernels: NativeKernels, layers: Sequence[LeanLayer], model: CausalModel, tapped_layers: Sequence[int]
) -> NativeDecoder | None:
    """All layers in one call, where every matmul is our own kernel's."""
    whole = native_layers(layers)
    if whole is None:
        return None
    config = model.config
    shape = DecoderShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=model.model.layers[0].self_attn.head_dim,
        scale=layers[0].scale,
        norm_eps=float(config.rms_norm_eps),
    )
    final_norm = model.model.norm.weight.detach()
    return NativeDecoder(kernels, whole, final_norm, shape, tapped_layers=tapped_layers)


def native_layers(layers: Sequence[LeanLayer]) -> list[DecoderLayer] | None:
    """The layers for the native decoder; None unless every matmul is our own kernel's."""
    native = [_native_layer(layer) for layer in layers]
    whole = [layer for layer in native if layer is not None]
    return whole if len(whole) == len(layers) else None


def _native_layer(layer: LeanLayer) -> DecoderLayer | None:
    qkv, output, gated, down = layer.qkv, layer.output, layer.gated, layer.down
    if not (
        isinstance(qkv, PackedLinear)
        and isinstance(output, PackedLinear)
        and isinstance(gated, PackedLinear)
        and isinstance(down, PackedLinear)
    ):
        return None
    has_head_norms = layer.query_norm is not None and layer.key_norm is not None
    return DecoderLayer(
        norms=(layer.input_norm, layer.attention_norm),
        head_norms=(layer.query_norm, layer.key_norm) if has_head_norms else None,  # type: ignore[arg-type]
        qkv=PackedProjection(qkv.packed, qkv.bias),
        output=PackedProjection(output.packed, output.bias),
        gated=gated.packed,
        down=PackedProjection(down.packed, down.bias),
    )


def _packed(linear: nn.Linear, arena: WeightArena | None) -> nn.Module:
    return make_linear(linear.weight, None if linear.bias is None else linear.bias.detach(), arena=arena)


def _gated_linear(mlp: StockMlp, kernels: NativeKernels, arena: WeightArena | None) -> nn.Module:
    gate, up = mlp.gate_proj, mlp.up_proj
    if arena is not None and kernels.can_multiply(gate.weight) and gate.bias is None:
        weight = torch.cat([gate.weight.detach(), up.weight.detach()])
        return PackedLinear(weight, None, arena=arena, is_gated=True)
    return GatedLinear(fuse_linears(gate, up, arena=arena), kernels)
