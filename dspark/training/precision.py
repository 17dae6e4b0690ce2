"""The dtype training computes in: what this processor multiplies fastest."""

from __future__ import annotations

from typing import TypeVar

import torch

from dspark.engine.linear import has_fast_bfloat16
from dspark.models.drafter import Drafter

_Drafter = TypeVar("_Drafter", bound=Drafter)


def training_dtype() -> torch.dtype:
    """Bfloat16 where torch has fast kernels for it here, else float32.

    Without AVX-512 torch multiplies bfloat16 ten times slower than float32 (16 against 170 GFLOP/s on two
    cores of an AMD EPYC), so there half the memory traffic buys nothing.
    """
    return torch.bfloat16 if has_fast_bfloat16() else torch.float32


def set_training_dtype(drafter: _Drafter, dtype: torch.dtype) -> _Drafter:
    """Keep parameters in float32 and the target's frozen rows in `dtype`; all products follow theirs."""
    drafter.float()
    drafter.lm_head, drafter.embed_tokens = drafter.lm_head.to(dtype), drafter.embed_tokens.to(dtype)
    return drafter.train()
