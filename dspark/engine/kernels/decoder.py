"""Typed calls into the native decoder: all layers of a model in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dspark.engine.kernels.arguments import c_float, c_int32, c_int64, c_pointer, point
from dspark.engine.kernels.native import NativeKernels, PackedWeight
from dspark.models.config import EMBEDDING_TAP


class _LayerArgs(ctypes.Structure):
    _fields_ = (
        *((name, c_pointer) for name in ("input_norm", "attention_norm", "query_norm", "key_norm")),
        *((name, c_pointer) for name in ("qkv", "qkv_bias", "output", "output_bias")),
        *((name, c_pointer) for name in ("gated", "down", "down_bias", "key_pages", "value_pages")),
        ("tap", c_int64),
    )


class DecoderArgs(ctypes.Structure):
    """Of all layers of a model."""

    _fields_ = (
        *((name, c_pointer) for name in ("layers", "final_norm", "residual", "hidden", "taps")),
        *((name, c_pointer) for name in ("delta", "heads", "attended", "gated")),
        *((name, c_pointer) for name in ("slots", "row_request", "page_table", "kv_lens", "cos", "sin")),
        *((name, c_int64) for name in ("num_rows", "table_width", "tap_stride")),
        *((name, c_int32) for name in ("num_layers", "hidden_size", "intermediate_size")),
        *((name, c_int32) for name in ("num_heads", "num_kv_heads", "head_dim", "num_threads", "is_int8")),
        *((name, c_float) for name in ("scale", "norm_eps")),
    )


# What `run` sets beside them.
_STEP_TENSORS = (
    *("residual", "hidden", "taps", "delta", "heads", "attended", "gated"),
    *("slots", "row_request", "page_table", "kv_lens", "cos", "sin"),
)


@dataclass(frozen=True, slots=True)
class PackedProjection:
    """A packed weight and its bias, if any."""

    weight: PackedWeight
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer.

    Attributes:
        norms: before attention and before the MLP, [H] each.
        head_norms: of query and key heads, [D] each, or None.
        qkv: queries, keys and values behind one another.
        output: of attention.
        gated: gates and ups; no bias.
        down: of the MLP.
    """

    norms: tuple[Tensor, Tensor]
    head_norms: tuple[Tensor, Tensor] | None
    qkv: PackedProjection
    output: PackedProjection
    gated: PackedWeight
    down: PackedProjection


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes and constants all layers share."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    norm_eps: float


@dataclass(slots=True)
class _BoundLayers:
    """The layers' arguments for the pages of one pool."""

    keys: Sequence[Tensor]
    args: ctypes.Array[_LayerArgs] = field(repr=False)


class NativeDecoder:
    """All layers and the final norm of a bfloat16 model."""

    def __init__(
        self,
        kernels: NativeKernels,
        layers: Sequence[DecoderLayer],
        final_norm: Tensor,
        shape: DecoderShape,
        *,
        tapped_layers: Sequence[int] = (),
    ) -> None:
        self._call = kernels.function("dspark_decode")
        self._layers = list(layers)
        self._final_norm = final_norm
        self._shape = shape
        self._tapped = tuple(tapped_layers)
        self._is_int8 = _is_int8(layers)
        self._bound: _BoundLayers | None = None

    def run(
        self,
        residual: Tensor,  # [T, H], overwritten
        pages: tuple[Sequence[Tensor], Sequence[Tensor]],  # keys and values of every layer
        layout: tuple[Tensor, Tensor, Tensor, Tensor],  # slots, row_request, page_table, kv_lens
        rotation: tuple[Tensor, Tensor],  # cosines and sines [T, D / 2]
    ) -> tuple[Tensor, Tensor]:
        """Embeddings to hidden states [T, H] after the final norm and tapped outputs [T, L*H]."""
        shape, num_rows = self._shape, residual.shape[0]
        query_width = shape.num_heads * shape.head_dim
        heads_width = query_width + 2 * shape.num_kv_heads * shape.head_dim
        hidden, taps, delta, heads, attended, gated = (
            torch.empty((num_rows, width), dtype=torch.bfloat16)
            for width in (
                shape.hidden_size,
                len(self._tapped) * shape.hidden_size,
                shape.hidden_size,
                heads_width,
                query_width,
                shape.intermediate_size,
            )
        )
        tensors = (
            residual,
            hidden,
            taps,
            delta,
            heads,
            attended,
            gated,
            *layout,
            *rotation,
        )
        if EMBEDDING_TAP in self._tapped:
            column = self._tapped.index(EMBEDDING_TAP) * shape.hidden_size
            taps[:, column : column + shape.hidden_size] = residual
        args = self.arguments(pages)
        point(args, _STEP_TENSORS, tensors)
        args.num_rows, args.table_width, args.tap_stride = num_rows, layout[2].shape[1], taps.shape[1]
        self._call(ctypes.byref(args))
        return hidden, taps

    def arguments(self, pages: tuple[Sequence[Tensor], Sequence[Tensor]]) -> DecoderArgs:
        """All that does not depend on the rows of a step, with keys and values in these pages."""
        shape = self._shape
        return DecoderArgs(
            layers=ctypes.addressof(self._bind(pages)),
            final_norm=self._final_norm.data_ptr(),
            num_layers=len(self._layers),
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            num_threads=torch.get_num_threads(),
            is_int8=self._is_int8,
            scale=shape.scale,
            norm_eps=shape.norm_eps,
        )

    def _bind(self, pages: tuple[Sequence[Tensor], Sequence[Tensor]]) -> ctypes.Array[_LayerArgs]:
        if self._bound is None or self._bound.keys is not pages[0]:
            array = (_LayerArgs * len(self._layers))()
            for index, layer in enumerate(self._layers):
                array[index] = self._layer_args(index, layer, (pages[0][index], pages[1][index]))
            self._bound = _BoundLayers(pages[0], array)
        return self._bound.args

    def _layer_args(self, index: int, layer: DecoderLayer, pages: tuple[Tensor, Tensor]) -> _LayerArgs:
        column = self._tapped.index(index) * self._shape.hidden_size if index in self._tapped else -1
        return _LayerArgs(
            *(norm.data_ptr() for norm in layer.norms),
            *((norm.data_ptr() for norm in layer.head_norms) if layer.head_norms else (None, None)),
            *_pointers(layer.qkv),
            *_pointers(layer.output),
            layer.gated.words.data_ptr(),
            *_pointers(layer.down),
            *(tensor.data_ptr() for tensor in pages),
            column,
        )


def _is_int8(layers: Sequence[DecoderLayer]) -> bool:
    formats = {
        weight.is_int8
        for layer in layers
        for weight in (layer.qkv.weight, layer.output.weight, layer.gated, layer.down.weight)
    }
    assert len(formats) == 1, "one format for all weights"
    return formats.pop()


def _pointers(projection: PackedProjection) -> tuple[int, int | None]:
    bias = projection.bias
    return projection.weight.words.data_ptr(), None if bias is None else bias.data_ptr()
