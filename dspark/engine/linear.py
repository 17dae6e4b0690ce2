"""Linear layers with weights packed once for the CPU: faster, and each row's result is its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from dspark.engine.kernels.native import HUGE_PAGE, NativeKernels, PackedWeight, load_kernels

# oneDNN weights packed for one row give bit-identical rows at every row count; larger hints are faster from
# 32 rows on but not exact.
_ROW_HINT = 1
_CHUNK_BYTES = 64 << 20
_LINE_BYTES = 64


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` for inference in bfloat16, by our own kernel."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, arena: WeightArena, is_gated: bool = False
    ) -> None:
        super().__init__()
        assert bias is None or not is_gated, "a gated product has no bias"
        self.in_features = weight.shape[1]
        self.out_features = weight.shape[0] // 2 if is_gated else weight.shape[0]
        self.bias = bias
        self.kernels = arena.kernels
        # Not a buffer: this order belongs to this machine, never to a state dict.
        self.packed = arena.pack(weight, is_gated=is_gated)

    def forward(self, x: Tensor) -> Tensor:
        """Rows [..., in] to [..., out]; a gated layer gives silu(gate) * up."""
        rows = x if x.ndim == 2 and x.stride(1) == 1 else x.reshape(-1, self.in_features).contiguous()
        out = self.kernels.matmul(rows, self.packed, self.bias)
        return out if x.ndim == 2 else out.view(*x.shape[:-1], self.out_features)


class OneDnnLinear(nn.Module):
    """The same by oneDNN, for float32 and for CPUs that do not multiply bfloat16."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.bias = bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROW_HINT)
        self._matmul = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        """Rows [..., in] to [..., out]."""
        # A single float32 row takes another path with other roundings: give it company.
        is_lonely = x.ndim == 2 and x.shape[0] == 1 and x.dtype == torch.float32
        rows = x.expand(2, -1).contiguous() if is_lonely else x
        out: Tensor = self._matmul(rows, self._packed, self.bias, "none", [], "")
        return out[:1] if is_lonely else out


class WeightArena:
    """Memory on huge pages from which packed weights are cut, so that they lie behind one another."""

    def __init__(self, kernels: NativeKernels, *, is_int8: bool = False) -> None:
        """Take no memory yet.

        Args:
            kernels: that read the weights.
            is_int8: whether weights are rounded to 8 bits, with a scale for each output.
        """
        self.kernels = kernels
        self._is_int8 = is_int8
        self._chunk = torch.empty(0, dtype=torch.uint8)
        # bytes of the chunk that are taken, and that lie on pages already
        self._taken = self._backed = 0

    def _take(self, size: int) -> Tensor:
        if self._taken + size > self._chunk.numel():
            self._chunk = self.kernels.allocate(max(size, _CHUNK_BYTES))
            self._taken = self._backed = 0
        start = self._taken
        # Each weight begins on a line of the cache.
        self._taken = start + -(-size // _LINE_BYTES) * _LINE_BYTES
        if self._taken > self._backed:
            backed = -(-self._taken // HUGE_PAGE) * HUGE_PAGE
            self.kernels.gather_huge(self._chunk[self._backed : backed])
            self._backed = backed
        return self._chunk[start : start + size]

    def pack(self, weight: Tensor, *, is_gated: bool = False) -> PackedWeight:
        """The weight packed into memory of this arena; see `NativeKernels.pack`."""
        memory = self._take(self.kernels.packed_bytes(weight, is_int8=self._is_int8))
        return self.kernels.pack(weight, memory, is_gated=is_gated, is_int8=self._is_int8)


def open_arena(cache_dir: Path | None = None, *, prefers_int8: bool = False) -> WeightArena | None:
    """An arena for weights of our own matmul kernel; None where this CPU has no use for it.

    Args:
        cache_dir: where built kernels are kept.
        prefers_int8: whether weights may be rounded to 8 bits, where that makes products faster.
    """
    kernels = load_kernels(cache_dir)
    if kernels is None or not kernels.has_matmul:
        return None
    return WeightArena(kernels, is_int8=prefers_int8 and kernels.has_int8)


def make_linear(weight: Tensor, bias: Tensor | None = None, *, arena: WeightArena | None = None) -> nn.Module:
    """The fastest linear layer this machine has for the weight; a stock one where it can pack nothing."""
    weight = weight.detach()
    if arena is not None and arena.kernels.can_multiply(weight):
        return PackedLinear(weight, bias, arena=arena)
    if can_pack(weight):
        return OneDnnLinear(weight, bias)
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def fuse_linears(*linears: nn.Linear, arena: WeightArena | None = None) -> nn.Module:
    """One linear layer whose output is theirs, concatenated: one matmul over the input they share."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    assert len(biases) in (0, len(linears)), "all or none of the fused layers have a bias"
    return make_linear(weight, torch.cat(biases) if biases else None, arena=arena)


def can_pack(weight: Tensor) -> bool:
    """Whether this torch build and device can pack such a weight for oneDNN."""
    if weight.device.type != "cpu" or weight.dtype not in (torch.bfloat16, torch.float32):
        return False
    if not _has_onednn():
        return False
    return weight.dtype == torch.float32 or has_onednn_bfloat16()


def has_onednn_bfloat16() -> bool:
    """Whether torch multiplies bfloat16 by oneDNN here: packed, if not always fast."""
    return _has_onednn() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _has_onednn() -> bool:
    """Whether torch was built with oneDNN, and so has the operators we call."""
    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    return all(hasattr(torch.ops.mkldnn, name) for name in names)


class _Module(Protocol):
    def named_children(self) -> Iterator[tuple[str, nn.Module]]: ...


def pack_linears(module: _Module, arena: WeightArena | None) -> None:
    """Replace every `nn.Linear` below `module` by a packed one, where this machine can pack it.

    The module is for inference afterwards: its packed weights take no gradient and are in no state dict.

    Args:
        module: changed in place.
        arena: where packed weights go; None: use no kernel of ours.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            bias = None if child.bias is None else child.bias.detach()
            setattr(module, name, make_linear(child.weight, bias, arena=arena))
        else:
            pack_linears(child, arena)
