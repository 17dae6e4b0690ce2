"""The draft layer of `Qwen3DSparkModel`: a Qwen3 decoder layer (DeepSpec section 2.3)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from dspark.models.config import DrafterConfig
from dspark.models.layers import Attend, RmsNorm, rotate


class DraftAttention(nn.Module):
    """Query, key and value projections with per-head norms, as in Qwen3."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.scaling = config.attention_scale
        bias, input_size = config.attention_bias, config.attention_input_size
        query_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(input_size, query_size, bias=bias)
        self.k_proj = nn.Linear(input_size, kv_size, bias=bias)
        self.v_proj = nn.Linear(input_size, kv_size, bias=bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=bias)
        self.q_norm = RmsNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RmsNorm(config.head_dim, eps=config.rms_norm_eps)

    def keys_values(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Project [T, H] (Eagle3: [T, 2H]) to keys and values, each [T, Hkv, D]."""
        num_tokens = states.shape[0]
        key = self.k_norm(self.k_proj(states).view(num_tokens, -1, self.head_dim))
        value = self.v_proj(states).view(num_tokens, -1, self.head_dim)
        return rotate(key, cos, sin), value

    def queries(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Project [T, H] (Eagle3: [T, 2H]) to queries [T, Hq, D]."""
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
        return self.mix(index, self.input_layernorm(states), states, rotary, attend)

    def mix(
        self, index: int, normed: Tensor, states: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """Everything after the first norm: attention over `normed` [T, *] and the rest, added to `states`."""
        query = self.self_attn.queries(normed, *rotary)
        key, value = self.self_attn.keys_values(normed, *rotary)
        attended = attend(index, query, key, value)
        states = states + self.self_attn.o_proj(attended.flatten(1))
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out
