"""Arguments of the kernels, laid out as the C++ sees them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from torch import Tensor

c_pointer, c_int64, c_int32, c_float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


def point(args: ctypes.Structure, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    """Let the arguments of these names point to these tensors."""
    for name, tensor in zip(names, tensors, strict=True):
        setattr(args, name, tensor.data_ptr())


class AttentionArgs(ctypes.Structure):
    """Of attention, and of writing pages without it."""

    _fields_ = (
        *((name, c_pointer) for name in ("query", "key", "value", "out", "key_pages", "value_pages")),
        *((name, c_pointer) for name in ("slots", "row_request", "page_table", "kv_lens")),
        *((name, c_pointer) for name in ("cos", "sin", "query_norm", "key_norm")),
        *((name, c_int64) for name in ("query_stride", "key_stride", "value_stride")),
        *((name, c_int64) for name in ("num_rows", "table_width")),
        *((name, c_int32) for name in ("num_heads", "num_kv_heads", "head_dim", "num_threads")),
        *((name, c_float) for name in ("scale", "norm_eps")),
    )


class NormArgs(ctypes.Structure):
    """Of adding and RMSNorm."""

    _fields_ = (
        *((name, c_pointer) for name in ("residual", "delta", "weight", "out")),
        ("num_rows", c_int64),
        *((name, c_int32) for name in ("hidden_size", "num_threads")),
        ("eps", c_float),
    )


class GateArgs(ctypes.Structure):
    """Of silu(gate) * up."""

    _fields_ = (
        *((name, c_pointer) for name in ("gate_up", "out")),
        ("num_rows", c_int64),
        *((name, c_int32) for name in ("intermediate_size", "num_threads")),
    )


class MatmulArgs(ctypes.Structure):
    """Of rows times a packed weight."""

    _fields_ = (
        *((name, c_pointer) for name in ("x", "packed", "bias", "out")),
        *((name, c_int64) for name in ("x_stride", "num_rows")),
        *((name, c_int32) for name in ("in_features", "out_features", "num_threads", "is_gated", "is_int8")),
    )


class BestTwoArgs(ctypes.Structure):
    """Of the two greatest logits of each row."""

    _fields_ = (
        *((name, c_pointer) for name in ("rows", "places", "best", "second")),
        *((name, c_int64) for name in ("num_rows", "width")),
        ("num_threads", c_int32),
    )


class PackArgs(ctypes.Structure):
    """Of packing a weight."""

    _fields_ = (
        *((name, c_pointer) for name in ("weight", "packed")),
        *((name, c_int32) for name in ("in_features", "out_features", "is_gated", "num_threads", "is_int8")),
    )
