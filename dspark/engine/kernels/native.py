"""Typed calls into the compiled kernels: tensors in, tensors out. Arguments are checked here, not in C++."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from dspark.cache import default_cache_dir
from dspark.engine.kernels.arguments import (
    AttentionArgs,
    BestTwoArgs,
    GateArgs,
    MatmulArgs,
    NormArgs,
    PackArgs,
    c_pointer,
)
from dspark.engine.kernels.build import build_kernels

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_LANES = 16
_MAX_HEAD_DIM = 256
_PAGE_SIZE = 16
_BLOCK_INPUTS = 32
_BLOCK_OUTPUTS = 32
_SCALE_BYTES = 4
HUGE_PAGE = 2 << 20


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in the order the matmul kernel reads it.

    Attributes:
        words: where it lies, a flat view of the memory that holds it.
        is_gated: it holds gates and ups, interleaved; the product is silu(gate) * up.
        is_int8: its numbers are of 8 bits, with a scale for each output; otherwise they are bfloat16.
    """

    words: Tensor
    in_features: int
    out_features: int
    is_gated: bool
    is_int8: bool = False


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
        handle = self._handle = ctypes.CDLL(str(library))
        self._attend = handle.dspark_attend
        self._write_pages = handle.dspark_write_pages
        self._add_norm = handle.dspark_add_norm
        self._silu_mul = handle.dspark_silu_mul
        self._best_two = handle.dspark_best_two
        self._matmul = self.function("dspark_matmul")
        self._pack_weight = self.function("dspark_pack_weight")
        self._advise_huge, self._gather_huge = handle.dspark_advise_huge, handle.dspark_gather_huge
        for function in (self._attend, self._write_pages, self._add_norm, self._silu_mul, self._best_two):
            function.argtypes = (ctypes.c_int, c_pointer)
            function.restype = None
        for function in (self._advise_huge, self._gather_huge):
            function.argtypes = (c_pointer, ctypes.c_size_t)
            function.restype = None
        # whether our matmul was built for this CPU (AMX, AVX512-BF16, AVX-512 or AVX2)
        self.has_matmul = bool(handle.dspark_can_matmul())
        # whether it gains from weights of 8 bits (without instructions for bfloat16)
        self.has_int8 = bool(handle.dspark_can_matmul_int8())

    def function(self, name: str) -> Callable[..., None]:
        """An entry point that takes one pointer to its arguments."""
        function = getattr(self._handle, name)
        function.argtypes = (c_pointer,)
        function.restype = None
        return cast(Callable[..., None], function)

    @staticmethod
    def supports(*, dtype: torch.dtype, device: torch.device, head_dim: int, page_size: int) -> bool:
        """Whether attention over such pages can be computed here; otherwise the torch path is used."""
        is_shape = head_dim % _LANES == 0 and head_dim <= _MAX_HEAD_DIM and page_size == _PAGE_SIZE
        return is_shape and dtype in _DTYPES and device.type == "cpu"

    def can_multiply(self, weight: Tensor) -> bool:
        """Whether `matmul` works for this weight [N, K]."""
        is_kind = weight.dtype == torch.bfloat16 and weight.device.type == "cpu"
        return self.has_matmul and is_kind and weight.shape[1] % _BLOCK_INPUTS == 0

    def allocate(self, num_bytes: int) -> Tensor:
        """Untouched memory that asks for huge pages, as bytes: as many whole ones as hold `num_bytes`."""
        size = -(-num_bytes // HUGE_PAGE) * HUGE_PAGE
        memory = torch.empty(size + HUGE_PAGE, dtype=torch.uint8)
        self.advise_huge(memory)
        skip = -memory.data_ptr() % HUGE_PAGE
        return memory[skip : skip + size]

    def advise_huge(self, tensor: Tensor) -> None:
        """Ask for huge pages under a large tensor that was not written yet."""
        self._advise_huge(tensor.data_ptr(), tensor.numel() * tensor.element_size())

    def gather_huge(self, memory: Tensor) -> None:
        """Put the whole huge pages inside this memory, which was advised, on huge pages now."""
        self._gather_huge(memory.data_ptr(), memory.numel() * memory.element_size())

    @staticmethod
    def packed_bytes(weight: Tensor, *, is_int8: bool = False) -> int:
        """Size of this weight [N, K] once packed."""
        num_rows, width = weight.shape
        row_bytes = width + _SCALE_BYTES if is_int8 else width * weight.element_size()
        return -(-num_rows // _BLOCK_OUTPUTS) * _BLOCK_OUTPUTS * row_bytes

    def pack(
        self, weight: Tensor, memory: Tensor, *, is_gated: bool = False, is_int8: bool = False
    ) -> PackedWeight:
        """Pack a bfloat16 weight [N, K] into `memory` of `packed_bytes`.

        With `is_gated` its first half are gates and its second half the ups that belong to them.
        """
        assert self.can_multiply(weight), f"{weight.dtype} {tuple(weight.shape)}"
        assert self.has_int8 or not is_int8, "no kernel for 8 bits"
        assert memory.numel() == self.packed_bytes(weight, is_int8=is_int8), f"{memory.numel()} bytes"
        num_rows, width = weight.shape
        assert not is_gated or num_rows % _BLOCK_OUTPUTS == 0, f"{num_rows} gates and ups"
        weight = weight.contiguous()
        threads = torch.get_num_threads()
        args = PackArgs(weight.data_ptr(), memory.data_ptr(), width, num_rows, is_gated, threads, is_int8)
        self._pack_weight(ctypes.byref(args))
        return PackedWeight(memory, width, num_rows, is_gated, is_int8)

    def matmul(self, x: Tensor, packed: PackedWeight, bias: Tensor | None = None) -> Tensor:
        """Rows [T, K] times the weight, [T, N]; a gated weight gives silu(gate) * up, [T, N / 2]."""
        num_rows = x.shape[0]
        width = packed.out_features // 2 if packed.is_gated else packed.out_features
        out = torch.empty((num_rows, width), dtype=torch.bfloat16)
        args = MatmulArgs(
            x.data_ptr(),
            packed.words.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            x.stride(0),
            num_rows,
            packed.in_features,
            packed.out_features,
            torch.get_num_threads(),
            packed.is_gated,
            packed.is_int8,
        )
        self._matmul(ctypes.byref(args))
        return out

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
        args = AttentionArgs(
            *(tensor.data_ptr() for tensor in (query, key, value, out, *pages)),
            *(tensor.data_ptr() for tensor in (slots, row_request, page_table, kv_lens)),
        )
        _set_transform(args, transform)
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

    def write_pages(
        self,
        key: Tensor,  # [T, Hkv, D]
        value: Tensor,  # [T, Hkv, D]
        pages: tuple[Tensor, Tensor],
        slots: Tensor,  # [T]
        transform: HeadTransform | None = None,
    ) -> None:
        """Write keys and values to their slots."""
        args = AttentionArgs(key=key.data_ptr(), value=value.data_ptr(), slots=slots.data_ptr())
        _set_transform(args, transform)
        args.key_pages, args.value_pages = pages[0].data_ptr(), pages[1].data_ptr()
        args.key_stride, args.value_stride = key.stride(0), value.stride(0)
        args.num_rows, args.num_kv_heads, args.head_dim = key.shape
        args.num_threads = torch.get_num_threads()
        self._write_pages(_DTYPES[key.dtype], ctypes.byref(args))

    def add_norm(self, residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """`residual += delta` in place, then RMSNorm of it; all [T, H], contiguous, H a multiple of 16."""
        out = torch.empty_like(residual)
        args = NormArgs(
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
        args = GateArgs(gate_up.data_ptr(), out.data_ptr(), num_rows, width // 2, torch.get_num_threads())
        self._silu_mul(_DTYPES[gate_up.dtype], ctypes.byref(args))
        return out

    def best_two(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The lowest id of the greatest logit of each row [T, V], that logit, and the second greatest."""
        num_rows, width = rows.shape
        rows = rows.contiguous()
        places = torch.empty(num_rows, dtype=torch.int64)
        best, second = torch.empty(num_rows), torch.empty(num_rows)
        pointers = (one.data_ptr() for one in (rows, places, best, second))
        args = BestTwoArgs(*pointers, num_rows, width, torch.get_num_threads())
        self._best_two(_DTYPES[rows.dtype], ctypes.byref(args))
        return places, best, second


def _set_transform(args: AttentionArgs, transform: HeadTransform | None) -> None:
    if transform is None:
        return
    args.cos, args.sin = transform.cos.data_ptr(), transform.sin.data_ptr()
    args.norm_eps = transform.eps
    if transform.query_norm is not None and transform.key_norm is not None:
        args.query_norm = transform.query_norm.data_ptr()
        args.key_norm = transform.key_norm.data_ptr()


@functools.cache
def load_kernels(cache_dir: Path | None = None) -> NativeKernels | None:
    """The kernels for this machine, built on first use; None where they cannot be built."""
    library = build_kernels(cache_dir or default_cache_dir())
    return None if library is None else NativeKernels(library)
