"""The dtype training computes in: what this processor multiplies fastest."""

from __future__ import annotations

from typing import TypeVar

import torch

from dspark.engine.kernels.build import cpu_flags
from dspark.engine.linear import has_onednn_bfloat16
from dspark.models.drafter import Drafter

# Flags of /proc/cpuinfo that tell of instructions for products of bfloat16: x86's two, and ARM's.
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}

_Drafter = TypeVar("_Drafter", bound=Drafter)


def training_dtype() -> torch.dtype:
    """Bfloat16 where the processor has instructions for it that torch uses, else float32.

    Without them torch multiplies bfloat16 much slower than float32 (on two cores 16 against 170 GFLOP/s of an
    AMD EPYC with AVX2, 63 against 250 to 350 of an Intel Xeon with AVX-512), so there half the memory traffic
    buys nothing.
    """
    has_instructions = not _BFLOAT16_FLAGS.isdisjoint(cpu_flags().split())
    return torch.bfloat16 if has_instructions and has_onednn_bfloat16() else torch.float32


def set_training_dtype(drafter: _Drafter, dtype: torch.dtype) -> _Drafter:
    """Keep parameters in float32 and the target's frozen rows in `dtype`; all products follow theirs."""
    drafter.float()
    drafter.lm_head, drafter.embed_tokens = drafter.lm_head.to(dtype), drafter.embed_tokens.to(dtype)
    return drafter.train()
