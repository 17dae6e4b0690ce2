"""The compiled form of the vocabulary losses: one call per chunk, three passes per row."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from dspark.cache import default_cache_dir
from dspark.engine.kernels.build import build_kernels

_SOURCE = Path(__file__).parent / "kernels" / "loss.cpp"
_LANES = 16


class _LossArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "target_logits", "log_norm", "labels", "weights")),
        *((name, ctypes.c_void_p) for name in ("value", "overlap")),
        *((name, ctypes.c_int64) for name in ("num_rows", "vocab")),
        *((name, ctypes.c_float) for name in ("hard", "soft", "tv")),
        *((name, ctypes.c_int32) for name in ("is_float32", "num_threads")),
    )


class FusedLoss:
    """The loaded kernel; see `losses.py` for the formulas."""

    def __init__(self, library: Path) -> None:
        self._run = ctypes.CDLL(str(library)).dspark_vocabulary_loss
        self._run.argtypes = (ctypes.c_void_p,)
        self._run.restype = None

    def run(
        self,
        logits: Tensor,  # [n, Vd] bfloat16 or float32; becomes the weighted gradient
        target_logits: Tensor,  # [n, Vd] of the same dtype
        teacher: tuple[Tensor, Tensor],  # log_norm [n] float32, labels [n] int64
        weights: Tensor,  # [n] float32
        coefficients: tuple[float, float, float],  # hard, soft, tv
    ) -> tuple[Tensor, Tensor]:
        """Return the unweighted loss and the overlap of each row, both [n]."""
        log_norm, labels = teacher
        num_rows, vocab = logits.shape
        assert logits.is_contiguous(), "logits must be contiguous"
        assert target_logits.is_contiguous(), "target logits must be contiguous"
        assert logits.dtype == target_logits.dtype, (logits.dtype, target_logits.dtype)
        assert logits.dtype in (torch.bfloat16, torch.float32), logits.dtype
        value, overlap = torch.empty(num_rows), torch.empty(num_rows)
        inputs = (logits, target_logits, log_norm.contiguous(), labels.contiguous(), weights.contiguous())
        args = _LossArgs(
            *(tensor.data_ptr() for tensor in (*inputs, value, overlap)),
            num_rows,
            vocab,
            *coefficients,
            logits.dtype == torch.float32,
            torch.get_num_threads(),
        )
        self._run(ctypes.byref(args))
        return value, overlap


def load_fused_loss(vocab: int, cache_dir: Path | None = None) -> FusedLoss | None:
    """The kernel, or None where it cannot be built or `vocab` is not a multiple of 16."""
    if vocab % _LANES:
        return None
    library = build_kernels(cache_dir or default_cache_dir(), source=_SOURCE)
    return None if library is None else FusedLoss(library)
