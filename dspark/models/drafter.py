"""The DSpark drafter as one module: backbone, heads, and the target's frozen embedding and output rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dspark.models.backbone import Backbone
from dspark.models.config import DrafterConfig
from dspark.models.heads import ConfidenceHead, MarkovHead


class DSparkDrafter(nn.Module):
    """Trained parts have DeepSpec's state-dict keys; `embed_tokens` and `lm_head` are the target's, frozen.

    Attributes:
        embed_tokens: [V, H] the target's input embedding.
        lm_head: [Vd, H] the rows of the target's output projection for the draft vocabulary.
        d2t: [Vd] int64, target id of each draft id.
    """

    embed_tokens: Tensor
    lm_head: Tensor
    d2t: Tensor

    def __init__(self, config: DrafterConfig, embed_tokens: Tensor, lm_head: Tensor, d2t: Tensor) -> None:
        super().__init__()
        assert d2t.shape == (config.num_draft_tokens,), (d2t.shape, config.num_draft_tokens)
        assert embed_tokens.shape == (config.vocab_size, config.hidden_size), embed_tokens.shape
        self.config = config
        self.backbone = Backbone(config)
        self.markov_head = MarkovHead(config)
        self.confidence_head = ConfidenceHead(config) if config.has_confidence_head else None
        self.register_buffer("embed_tokens", embed_tokens, persistent=False)
        self.register_buffer("lm_head", lm_head[d2t], persistent=False)
        self.register_buffer("d2t", d2t)

    def block_embeddings(self, anchors: Tensor) -> Tensor:
        """Anchor token, then gamma-1 masks: [R] to [R, G, H]; the anchor's slot gives the first draft."""
        ids = torch.full((len(anchors), self.config.gamma), self.config.mask_token_id, device=anchors.device)
        ids[:, 0] = anchors
        return functional.embedding(ids, self.embed_tokens)

    def initialise(self, generator: torch.Generator, target_norm: Tensor) -> None:
        """Normal(0, 0.02) as DeepSpec; the last norm starts as the target's, so that its head reads it."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0.0, 0.02, generator=generator)
        nn.init.zeros_(self.markov_head.markov_w2.weight)
        with torch.no_grad():
            self.backbone.norm.weight.copy_(target_norm)
