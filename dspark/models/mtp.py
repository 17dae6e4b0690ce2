"""MTP-1: one next-token module after DeepSeek-V3 (its section 2.2), around a layer of Qwen3.

The state of a pair is the target's last hidden state, after the target's last norm: what the published
modules read, and what every feature cache holds beside its taps. Names and order of the two norms and of the
projection are those of DeepSeek-V3's released tensors: embedding first. The module was made for one more
token; used for further ones it is applied to its own output, before the last norm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark.models.chain import ChainBackbone
from dspark.models.config import DrafterConfig
from dspark.models.layers import RmsNorm
from dspark.models.qwen3 import DraftLayer


class MtpBackbone(ChainBackbone):
    """A decoder layer over M [norm(embedding); norm(state)]."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config, DraftLayer(config))
        self.enorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hnorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    @property
    def input_norms(self) -> tuple[RmsNorm, RmsNorm]:
        """Of the embedding and of the state."""
        return self.enorm, self.hnorm

    def fuse(self, features: Tensor) -> Tensor:
        """The target's last hidden states [T, H] as they are."""
        return features

    def inputs(self, embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """See ChainBackbone: [T, H] twice, with and without the norm of the layer."""
        both = torch.cat((self.enorm(embeddings), self.hnorm(states)), dim=-1)
        joined: Tensor = self.eh_proj(both)
        return self.layer.input_layernorm(joined), joined
