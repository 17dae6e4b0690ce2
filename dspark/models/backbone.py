"""The DFlash backbone of a DSpark drafter: target features injected as keys and values (§3.1, eqs. 2-3).

It knows tensors and weights. Where keys and values of the context live is the caller's affair: attention is
an argument, so that training (dense) and serving (paged) run the same layers.
"""

from __future__ import annotations

from torch import Tensor, nn

from dspark.models.config import GEMMA4, QWEN3, DrafterConfig
from dspark.models.gemma4 import GemmaLayer
from dspark.models.layers import Attend, RmsNorm, Rotary
from dspark.models.qwen3 import DraftLayer

_LAYERS: dict[str, type[DraftLayer] | type[GemmaLayer]] = {QWEN3: DraftLayer, GEMMA4: GemmaLayer}


class Backbone(nn.Module):
    """Features to context, block embeddings to hidden states. State-dict keys are DeepSpec's."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        layer = _LAYERS[config.architecture]
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = Rotary(config)

    def fuse(self, features: Tensor) -> Tensor:
        """H_ctx = RMSNorm(W_c [H_l1; ...; H_lm]), eq. 2: [T, L*H] to [T, H]."""
        fused: Tensor = self.hidden_norm(self.fc(features))
        return fused

    def context_keys_values(self, fused: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the context for every layer, each [T, Hkv, D] (eq. 3)."""
        rotary = self.rotary(positions, fused.dtype)
        return [self.layer_context(layer, fused, rotary) for layer in range(len(self.layers))]

    def layer_context(
        self, layer: int, fused: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of the context for one layer, each [T, Hkv, D]; `rotary` is of its positions."""
        attention = self.layers[layer].self_attn
        pair: tuple[Tensor, Tensor] = attention.keys_values(fused, *rotary)  # type: ignore[union-attr,operator]
        return pair

    def forward(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run the block slots: embeddings [T, H] at absolute positions [T] to hidden states [T, H]."""
        rotary = self.rotary(positions, embeddings.dtype)
        states = embeddings
        for index, layer in enumerate(self.layers):
            states = layer(index, states, rotary, attend)
        out: Tensor = self.norm(states)
        return out
