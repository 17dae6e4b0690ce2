"""The backbone of `Qwen3Eagle3Model` and `Gemma4Eagle3Model` (DeepSpec sections 1.6 and 7).

Differs from the original EAGLE-3 in what DeepSpec changed: any number of tapped layers, head norms as in the
target's family, and the target's own frozen head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark.models.chain import ChainBackbone
from dspark.models.config import GEMMA4_EAGLE3, QWEN3_EAGLE3, DrafterConfig
from dspark.models.gemma4 import GemmaLayer
from dspark.models.layers import RmsNorm
from dspark.models.qwen3 import DraftLayer


class _Qwen3Layer(DraftLayer):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.hidden_norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)


class _Gemma4Layer(GemmaLayer):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.hidden_norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)


_LAYERS: dict[str, type[_Qwen3Layer] | type[_Gemma4Layer]] = {
    QWEN3_EAGLE3: _Qwen3Layer,
    GEMMA4_EAGLE3: _Gemma4Layer,
}


class Eagle3Backbone(ChainBackbone):
    """Attends over [norm(embedding); norm(state)]; the state itself, without a norm, is what is added to."""

    def __init__(self, config: DrafterConfig) -> None:
        layer = _LAYERS[config.architecture](config)
        super().__init__(config, layer)
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)

    def fuse(self, features: Tensor) -> Tensor:
        """Multiply, W [f_l1; ...; f_lm], without a norm after it: [T, L*H] to [T, H]."""
        fused: Tensor = self.fc(features)
        return fused

    @property
    def input_norms(self) -> tuple[RmsNorm, RmsNorm]:
        """Of the embedding and of the state."""
        layer = self.layer
        assert isinstance(layer, _Qwen3Layer | _Gemma4Layer)
        return layer.input_layernorm, layer.hidden_norm

    def inputs(self, embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """See ChainBackbone: [T, 2H], the embedding first, and [T, H]."""
        of_embedding, of_state = self.input_norms
        return torch.cat((of_embedding(embeddings), of_state(states)), dim=-1), states
