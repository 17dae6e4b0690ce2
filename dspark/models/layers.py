"""What draft layers of all architectures are made of: norms, rotary positions, and a place for attention."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from dspark.models.config import DrafterConfig


class Attend(Protocol):
    """Attention of one layer over context and block."""

    def __call__(
        self,
        layer: int,
        query: Tensor,  # [T, Hq, D], after norm and RoPE
        key: Tensor,  # [T, Hkv, D], after norm and RoPE
        value: Tensor,  # [T, Hkv, D]
    ) -> Tensor:
        """Return the attended values, [T, Hq, D]."""
        ...


class Rotary(nn.Module):
    """Rotary position embedding, rotate-half over the whole head, frequencies in float32 (DeepSpec §2.8).

    With a `partial_rotary_factor` below one only the first frequencies turn; the others are zero, which
    leaves their numbers as they are ("proportional", DeepSpec §2.7).
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        num_frequencies = config.head_dim // 2
        num_turning = int(config.partial_rotary_factor * config.head_dim // 2)
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        self._exponents = exponents
        self._turns = (torch.arange(num_frequencies) < num_turning).to(torch.float64)
        self._theta = config.rope_theta

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each [T, 1, D], for absolute positions [T]."""
        frequencies = (self._theta**-self._exponents * self._turns).to(positions.device, torch.float32)
        angles = positions.to(torch.float32)[:, None] * frequencies
        both = torch.cat((angles, angles), dim=-1)[:, None, :]
        return both.cos().to(dtype), both.sin().to(dtype)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE to [T, heads, D]."""
    half = states.shape[-1] // 2
    turned = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
    return states * cos + turned * sin


class RmsNorm(nn.Module):
    """RMS norm over the last dimension, computed in the dtype of its input (its weight is cast)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        """Normalise [..., size]."""
        weight = self.weight.to(states.dtype)
        return functional.rms_norm(states, (states.shape[-1],), weight, self.eps)
