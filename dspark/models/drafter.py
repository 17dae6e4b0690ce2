"""Drafters as modules: the frozen rows all of them read, and the backbone and heads of a DSpark drafter."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dspark.models.backbone import Backbone
from dspark.models.config import DrafterConfig
from dspark.models.heads import ConfidenceHead, MarkovHead, make_markov_head


class Drafter(nn.Module):
    """What all drafters have. Trained parts have DeepSpec's state-dict keys; the rows here are frozen.

    Attributes:
        backbone: everything trained but the heads.
        markov_head: biases each draft by those before it, if there is one.
        confidence_head: how likely each draft is to be accepted, if there is one.
        embed_tokens: [V, H] the target's input embedding, or the drafter's own copy.
        lm_head: [Vd, H] the rows of the target's output projection for the draft vocabulary, or its own.
        d2t: [Vd] int64, target id of each draft id.
        own_rows: which of the two are the drafter's own; the target's are never written with it.
    """

    backbone: nn.Module
    embed_tokens: Tensor
    lm_head: Tensor
    d2t: Tensor

    def __init__(self, config: DrafterConfig, embed_tokens: Tensor, lm_head: Tensor, d2t: Tensor) -> None:
        super().__init__()
        assert d2t.shape == (config.num_draft_tokens,), (d2t.shape, config.num_draft_tokens)
        assert embed_tokens.shape == (config.vocab_size, config.hidden_size), embed_tokens.shape
        self.config = config
        self.markov_head: MarkovHead | None = None
        self.confidence_head: ConfidenceHead | None = None
        self.own_rows: frozenset[str] = frozenset()
        self.register_buffer("embed_tokens", embed_tokens, persistent=False)
        rows = lm_head[d2t] if config.draft_vocab_size else lm_head
        self.register_buffer("lm_head", rows, persistent=False)
        self.register_buffer("d2t", d2t)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embed tokens of block slots: [...] to [..., H]."""
        embeddings = functional.embedding(token_ids, self.embed_tokens)
        scale = self.config.embedding_scale
        # a Gemma rounds the scale to the dtype of its weights: in bfloat16 61.97 becomes 62
        return embeddings if scale == 1 else embeddings * torch.tensor(scale, dtype=embeddings.dtype)

    def cap(self, base_logits: Tensor) -> Tensor:
        """Base logits within the cap of a Gemma; the Markov bias comes after and is not capped."""
        cap = self.config.final_logit_softcapping
        return torch.tanh(base_logits / cap) * cap if cap else base_logits

    def initialise(self, generator: torch.Generator, target_norm: Tensor) -> None:
        """Normal(0, 0.02) and no biases, as DeepSpec; the last norm starts as that of the target."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0.0, 0.02, generator=generator)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)
        with torch.no_grad():
            self.get_parameter("backbone.norm.weight").copy_(target_norm)


class DSparkDrafter(Drafter):
    """Backbone and heads of a DSpark or DFlash drafter."""

    backbone: Backbone

    def __init__(self, config: DrafterConfig, embed_tokens: Tensor, lm_head: Tensor, d2t: Tensor) -> None:
        super().__init__(config, embed_tokens, lm_head, d2t)
        self.backbone = Backbone(config)
        self.markov_head = make_markov_head(config)
        self.confidence_head = ConfidenceHead(config) if config.has_confidence_head else None

    def block_embeddings(self, anchors: Tensor) -> Tensor:
        """Anchor token, then gamma-1 masks: [R] to [R, G, H]; the anchor's slot gives the first draft."""
        ids = torch.full((len(anchors), self.config.gamma), self.config.mask_token_id, device=anchors.device)
        ids[:, 0] = anchors
        return self.embed(ids)

    def initialise(self, generator: torch.Generator, target_norm: Tensor) -> None:
        """See Drafter; the Markov bias starts as zero."""
        super().initialise(generator, target_norm)
        if self.markov_head is not None:
            nn.init.zeros_(self.markov_head.markov_w2.weight)
