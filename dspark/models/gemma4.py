"""The draft layer of `Gemma4DSparkModel`: a global layer of a Gemma 4 text model (DeepSpec section 2.7).

Its attention is not scaled, its values may be the keys' projection under another norm, each half of a layer
has a norm before and after, and the whole layer a stored factor.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dspark.models.config import DrafterConfig
from dspark.models.layers import Attend, RmsNorm, rotate


class GemmaAttention(nn.Module):
    """Query, key and value projections; without `v_proj` where keys and values share one."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim, self.eps = config.head_dim, config.rms_norm_eps
        bias, input_size = config.attention_bias, config.attention_input_size
        query_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(input_size, query_size, bias=bias)
        self.k_proj = nn.Linear(input_size, kv_size, bias=bias)
        self.v_proj = None if config.attention_k_eq_v else nn.Linear(input_size, kv_size, bias=bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=bias)
        self.q_norm = RmsNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RmsNorm(config.head_dim, eps=config.rms_norm_eps)

    def keys_values(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Project [T, H] (Eagle3: [T, 2H]) to keys and values, each [T, Hkv, D]; values do not turn."""
        shape = (states.shape[0], -1, self.head_dim)
        key = self.k_proj(states).view(shape)
        value = key if self.v_proj is None else self.v_proj(states).view(shape)
        # the norm of values has no weight
        value = functional.rms_norm(value, (self.head_dim,), eps=self.eps)
        return rotate(self.k_norm(key), cos, sin), value

    def queries(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Project [T, H] (Eagle3: [T, 2H]) to queries [T, Hq, D]."""
        query = self.q_norm(self.q_proj(states).view(states.shape[0], -1, self.head_dim))
        return rotate(query, cos, sin)


class GemmaMlp(nn.Module):
    """Gated feed-forward network with the tanh form of GELU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Map [T, H] to [T, H]."""
        gate = functional.gelu(self.gate_proj(states), approximate="tanh")
        out: Tensor = self.down_proj(gate * self.up_proj(states))
        return out


class GemmaLayer(nn.Module):
    """One decoder layer over the block; the context enters only through keys and values."""

    layer_scalar: Tensor

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = GemmaAttention(config)
        self.mlp = GemmaMlp(config)
        self.input_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.pre_feedforward_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_feedforward_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.register_buffer("layer_scalar", torch.ones(1))

    def forward(self, index: int, states: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Map block states [T, H] to [T, H]."""
        return self.mix(index, self.input_layernorm(states), states, rotary, attend)

    def mix(
        self, index: int, normed: Tensor, states: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """Everything after the first norm: attention over `normed` [T, *] and the rest, added to `states`."""
        query = self.self_attn.queries(normed, *rotary)
        key, value = self.self_attn.keys_values(normed, *rotary)
        attended = self.self_attn.o_proj(attend(index, query, key, value).flatten(1))
        states = states + self.post_attention_layernorm(attended)
        fed = self.mlp(self.pre_feedforward_layernorm(states))
        out: Tensor = (states + self.post_feedforward_layernorm(fed)) * self.layer_scalar
        return out
