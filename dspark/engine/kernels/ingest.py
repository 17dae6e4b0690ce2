"""Typed call that turns features of a target into context keys and values of a drafter."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.engine.kernels.arguments import c_float, c_int32, c_pointer
from dspark.engine.kernels.context_rows import ContextRowsArgs, FollowingRows, RowTable
from dspark.engine.kernels.native import NativeKernels, PackedWeight

# The rows of a round are read while the scheduler is at work on another core: a helper only gets in its way.
_ROWS_OF_ONE_THREAD = 16


class _IngestArgs(ctypes.Structure):
    _fields_ = (
        ("rows", ContextRowsArgs),
        *((name, c_pointer) for name in ("features", "fuse", "fused_norm", "keys_values")),
        *((name, c_pointer) for name in ("key_norms", "key_pages", "value_pages")),
        *((name, c_int32) for name in ("num_layers", "feature_size", "hidden_size")),
        *((name, c_int32) for name in ("num_kv_heads", "head_dim", "num_threads", "is_int8")),
        ("norm_eps", c_float),
    )


@dataclass(frozen=True, slots=True)
class ContextWeights:
    """What the context is made with.

    Attributes:
        fuse: [H, L*H] of the tapped features.
        fused_norm: [H].
        keys_values: of all layers behind one another, keys before values.
        key_norms: of each layer, [D].
        eps: of the norms.
    """

    fuse: PackedWeight
    fused_norm: Tensor
    keys_values: PackedWeight
    key_norms: Sequence[Tensor]
    eps: float


class NativeContext:
    """Writes a drafter's context into the pages of one pool (paper eqs. 2-3)."""

    def __init__(
        self,
        kernels: NativeKernels,
        weights: ContextWeights,
        pages: tuple[Sequence[Tensor], Sequence[Tensor]],  # keys and values of every layer
        num_kv_heads: int,
        rotation: tuple[Tensor, Tensor],  # cosines and sines [P, D / 2] of every position
    ) -> None:
        assert weights.fuse.is_int8 == weights.keys_values.is_int8, "one format for both"
        self._call = kernels.function("dspark_ingest")
        self._weights, self._pages = weights, pages
        self._num_kv_heads = num_kv_heads
        self._table = RowTable(rotation)
        self._pointers = [_addresses(tensors) for tensors in (weights.key_norms, *pages)]

    def write(self, features: Tensor, rows: Sequence[FollowingRows]) -> None:
        """Features [T, L*H] of these rows, in order, to their places."""
        weights, num_rows = self._weights, self._table.fill(rows)
        assert features.dtype == torch.bfloat16, features.dtype
        assert features.is_contiguous(), features.stride()
        assert features.shape == (num_rows, weights.fuse.in_features), features.shape
        num_threads = 1 if num_rows <= _ROWS_OF_ONE_THREAD else torch.get_num_threads()
        args = _IngestArgs(
            self._table.args,
            features.data_ptr(),
            weights.fuse.words.data_ptr(),
            weights.fused_norm.data_ptr(),
            weights.keys_values.words.data_ptr(),
            *(ctypes.addressof(one) for one in self._pointers),
            len(weights.key_norms),
            weights.fuse.in_features,
            weights.fuse.out_features,
            self._num_kv_heads,
            len(weights.key_norms[0]),
            num_threads,
            weights.fuse.is_int8,
            weights.eps,
        )
        self._call(ctypes.byref(args))


def _addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (c_pointer * len(tensors))(*(one.data_ptr() for one in tensors))
