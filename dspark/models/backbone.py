"""The DFlash backbone of a DSpark drafter: target features injected as keys and values (§3.1, eqs. 2-3).

It knows tensors and weights. Where keys and values of the context live is the caller's affair: attention is
an argument, so that training (dense) and serving (paged) run the same layers.
"""

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
    """Rotary position embedding, rotate-half over the whole head, frequencies in float32 (DeepSpec §2.8)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self._exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        self._theta = config.rope_theta

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each [T, 1, D], for absolute positions [T]."""
        frequencies = (self._theta**-self._exponents).to(positions.device, torch.float32)
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


class DraftAttention(nn.Module):
    """Query, key and value projections with per-head norms, as in Qwen3."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.scaling = config.head_dim**-0.5
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = RmsNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RmsNorm(config.head_dim, eps=config.rms_norm_eps)

    def keys_values(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Project [T, H] (context or block) to keys and values, each [T, Hkv, D]."""
        num_tokens = states.shape[0]
        key = self.k_norm(self.k_proj(states).view(num_tokens, -1, self.head_dim))
        value = self.v_proj(states).view(num_tokens, -1, self.head_dim)
        return rotate(key, cos, sin), value

    def queries(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Project [T, H] to queries [T, Hq, D]."""
        query = self.q_norm(self.q_proj(states).view(states.shape[0], -1, self.head_dim))
        return rotate(query, cos, sin)


class DraftMlp(nn.Module):
    """Gated feed-forward network."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Map [T, H] to [T, H]."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))
        return out


class DraftLayer(nn.Module):
    """One decoder layer over the block; the context enters only through keys and values."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config)
        self.mlp = DraftMlp(config)
        self.input_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, index: int, states: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Map block states [T, H] to [T, H]."""
        normed = self.input_layernorm(states)
        query = self.self_attn.queries(normed, *rotary)
        key, value = self.self_attn.keys_values(normed, *rotary)
        attended = attend(index, query, key, value)
        states = states + self.self_attn.o_proj(attended.flatten(1))
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


class Backbone(nn.Module):
    """Features to context, block embeddings to hidden states. State-dict keys are DeepSpec's."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = Rotary(config)

    def fuse(self, features: Tensor) -> Tensor:
        """H_ctx = RMSNorm(W_c [H_l1; ...; H_lm]), eq. 2: [T, L*H] to [T, H]."""
        fused: Tensor = self.hidden_norm(self.fc(features))
        return fused

    def context_keys_values(self, fused: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the context for every layer, each [T, Hkv, D] (eq. 3)."""
        rotary = self.rotary(positions, fused.dtype)
        attentions = [layer.self_attn for layer in self.layers]
        return [one.keys_values(fused, *rotary) for one in attentions]  # type: ignore[union-attr,operator]

    def forward(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run the block slots: embeddings [T, H] at absolute positions [T] to hidden states [T, H]."""
        rotary = self.rotary(positions, embeddings.dtype)
        states = embeddings
        for index, layer in enumerate(self.layers):
            states = layer(index, states, rotary, attend)
        out: Tensor = self.norm(states)
        return out
