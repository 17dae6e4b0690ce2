"""Typed calls into the compiled kernels: tensors in, tensors filled. Arguments are checked here, not in C++."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dspark.engine.kernels.build import build_kernels, default_cache_dir

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_LANES = 16
_MAX_HEAD_DIM = 256
_PAGE_SIZE = 16

_pointer, _int64, _int32, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class _AttentionArgs(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("query", "key", "value", "out", "key_pages", "value_pages")),
        *((name, _pointer) for name in ("slots", "row_request", "page_table", "kv_lens")),
        *((name, _pointer) for name in ("cos", "sin", "query_norm", "key_norm")),
        *((name, _int64) for name in ("query_stride", "key_stride", "value_stride")),
        *((name, _int64) for name in ("num_rows", "table_width")),
        *((name, _int32) for name in ("num_heads", "num_kv_heads", "head_dim", "num_threads")),
        *((name, _float) for name in ("scale", "norm_eps")),
    )


class _NormArgs(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("residual", "delta", "weight", "out")),
        ("num_rows", _int64),
        *((name, _int32) for name in ("hidden_size", "num_threads")),
        ("eps", _float),
    )


class _GateArgs(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("gate_up", "out")),
        ("num_rows", _int64),
        *((name, _int32) for name in ("intermediate_size", "num_threads")),
    )


@dataclass(frozen=True, slots=True)
class HeadTransform:
    """What happens to query and key heads before attention: norm over head_dim (Qwen3) and rotation.

    Attributes:
        cos: [T, D / 2] float32, rounded as the model rounds it.
        sin: [T, D / 2] float32.
        query_norm: [D] weight, or None.
        key_norm: [D] weight, or None.
        eps: of the norms.
    """

    cos: Tensor
    sin: Tensor
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    eps: float = 0.0


class NativeKernels:
    """The loaded library. Stateless: any thread may call it."""

    def __init__(self, library: Path) -> None:
        # torch is imported first, so the library finds torch's own libgomp by its name and shares its threads.
        handle = ctypes.CDLL(str(library))
        self._attend = handle.dspark_attend
        self._add_norm = handle.dspark_add_norm
        self._silu_mul = handle.dspark_silu_mul
        for function in (self._attend, self._add_norm, self._silu_mul):
            function.argtypes = (ctypes.c_int, _pointer)
            function.restype = None

    @staticmethod
    def supports(*, dtype: torch.dtype, device: torch.device, head_dim: int, page_size: int) -> bool:
        """Whether attention over such pages can be computed here; otherwise the torch path is used."""
        is_shape = head_dim % _LANES == 0 and head_dim <= _MAX_HEAD_DIM and page_size == _PAGE_SIZE
        return is_shape and dtype in _DTYPES and device.type == "cpu"

    def attend(
        self,
        heads: tuple[Tensor, Tensor, Tensor],  # query [T, Hq, D], key and value [T, Hkv, D]
        pages: tuple[Tensor, Tensor],
        layout: tuple[Tensor, Tensor, Tensor, Tensor],  # slots, row_request, page_table, kv_lens
        *,
        scale: float,
        transform: HeadTransform | None = None,
    ) -> Tensor:
        """Write keys and values to their slots, then attend; returns [T, Hq, D]."""
        query, key, value = heads
        slots, row_request, page_table, kv_lens = layout
        num_rows, num_heads, head_dim = query.shape
        out = torch.empty((num_rows, num_heads, head_dim), dtype=query.dtype)
        args = _AttentionArgs(
            *(tensor.data_ptr() for tensor in (query, key, value, out, *pages)),
            *(tensor.data_ptr() for tensor in (slots, row_request, page_table, kv_lens)),
        )
        if transform is not None:
            args.cos, args.sin = transform.cos.data_ptr(), transform.sin.data_ptr()
            args.norm_eps = transform.eps
            if transform.query_norm is not None and transform.key_norm is not None:
                args.query_norm = transform.query_norm.data_ptr()
                args.key_norm = transform.key_norm.data_ptr()
        args.query_stride, args.key_stride, args.value_stride = (
            query.stride(0),
            key.stride(0),
            value.stride(0),
        )
        args.num_rows, args.table_width = num_rows, page_table.shape[1]
        args.num_heads, args.num_kv_heads, args.head_dim = num_heads, key.shape[1], head_dim
        args.num_threads, args.scale = torch.get_num_threads(), scale
        self._attend(_DTYPES[query.dtype], ctypes.byref(args))
        return out

    def add_norm(self, residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """`residual += delta` in place, then RMSNorm of it; all [T, H], contiguous, H a multiple of 16."""
        out = torch.empty_like(residual)
        args = _NormArgs(
            residual.data_ptr(),
            None if delta is None else delta.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            residual.shape[0],
            residual.shape[1],
            torch.get_num_threads(),
            eps,
        )
        self._add_norm(_DTYPES[residual.dtype], ctypes.byref(args))
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up` for contiguous rows [T, 2 * I] that hold gate, then up; I a multiple of 16."""
        num_rows, width = gate_up.shape
        out = torch.empty((num_rows, width // 2), dtype=gate_up.dtype)
        args = _GateArgs(gate_up.data_ptr(), out.data_ptr(), num_rows, width // 2, torch.get_num_threads())
        self._silu_mul(_DTYPES[gate_up.dtype], ctypes.byref(args))
        return out


@functools.cache
def load_kernels(cache_dir: Path | None = None) -> NativeKernels | None:
    """The kernels for this machine, built on first use; None where they cannot be built."""
    library = build_kernels(cache_dir or default_cache_dir())
    return None if library is None else NativeKernels(library)
