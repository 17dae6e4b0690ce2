"""Chain drafters: one draft per call, whose output state is the input of the next.

A pair is the target's feature at position i and the token at i + 1; it predicts the token at i + 2 and stands
at position i. Beyond the target's features the drafter's own output stands for the feature: step s of a chain
takes the token of the step before and the state that came out of it, at position i + s (DeepSpec section 7).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn import functional

from dspark.models.config import DrafterConfig
from dspark.models.drafter import Drafter
from dspark.models.gemma4 import GemmaLayer
from dspark.models.layers import Attend, RmsNorm, Rotary
from dspark.models.qwen3 import DraftLayer


class ChainBackbone(nn.Module, ABC):
    """One layer between a token's embedding with the state before it and the next state."""

    def __init__(self, config: DrafterConfig, layer: DraftLayer | GemmaLayer) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer])
        self.norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = Rotary(config)

    @property
    def layer(self) -> DraftLayer | GemmaLayer:
        """The one layer."""
        layer = self.layers[0]
        assert isinstance(layer, DraftLayer | GemmaLayer)
        return layer

    @property
    @abstractmethod
    def input_norms(self) -> tuple[RmsNorm, RmsNorm]:
        """Of the embedding and of the state."""

    @abstractmethod
    def fuse(self, features: Tensor) -> Tensor:
        """Target features [T, *] to the states [T, H] of pairs that have them."""

    @abstractmethod
    def inputs(self, embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """What is attended over, and what the layer adds to, [T, *] and [T, H], from [T, H] each."""

    def keys_values(self, embeddings: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of pairs, each [T, Hkv, D], from embeddings and states [T, H] at positions [T]."""
        normed, _ = self.inputs(embeddings, states)
        return self.layer.self_attn.keys_values(normed, *self.rotary(positions, normed.dtype))

    def forward(self, embeddings: Tensor, states: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The next states, before the last norm, all [T, H]: from embeddings and states at positions [T]."""
        normed, residual = self.inputs(embeddings, states)
        return self.layer.mix(0, normed, residual, self.rotary(positions, normed.dtype), attend)


class ChainDrafter(Drafter):
    """A chain drafter with the frozen rows of its target.

    Attributes:
        target_norm: [H], weight of the target's last norm where features are its last hidden states.
    """

    backbone: ChainBackbone
    target_norm: Tensor | None

    def __init__(
        self,
        config: DrafterConfig,
        rows: tuple[Tensor, Tensor, Tensor],
        backbone: ChainBackbone,
        target_norm: Tensor | None = None,
    ) -> None:
        """`rows` are embedding, head and draft vocabulary as in `Drafter`."""
        super().__init__(config, *rows)
        self.backbone = backbone
        self.register_buffer("target_norm", target_norm, persistent=False)

    def first_states(self, taps: Tensor) -> Tensor:
        """States of pairs from outputs of the tapped layers: [T, L*H] to [T, H].

        A tap of the last layer has not passed the target's last norm yet, which is made up for here.
        """
        if self.target_norm is not None:
            taps = functional.rms_norm(
                taps, self.target_norm.shape, self.target_norm, self.config.rms_norm_eps
            )
        return self.backbone.fuse(taps)
