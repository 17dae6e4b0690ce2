"""The dtype training computes in: what this processor multiplies fastest."""

from __future__ import annotations

from typing import TypeVar

import torch

from dspark.engine.linear import has_onednn_bfloat16
from dspark.models.drafter import Drafter
from dspark.processor import bfloat16_flags

_Drafter = TypeVar("_Drafter", bound=Drafter)


def training_dtype() -> torch.dtype:
    """Bfloat16 where the processor has instructions for it that torch uses, else float32.

    Without them torch multiplies bfloat16 much slower than float32 (on two cores 16 against 170 GFLOP/s of an
    AMD EPYC with AVX2, 63 against 250 to 350 of an Intel Xeon with AVX-512), so there half the memory traffic
    buys nothing.
    """
    return torch.bfloat16 if bfloat16_flags() and has_onednn_bfloat16() else torch.float32


def set_training_dtype(drafter: _Drafter, dtype: torch.dtype) -> _Drafter:
    """Keep parameters in float32 and the target's frozen rows in `dtype`; all products follow theirs."""
    drafter.float()
    drafter.lm_head, drafter.embed_tokens = drafter.lm_head.to(dtype), drafter.embed_tokens.to(dtype)
    return drafter.train()
