"""The sequential head and the confidence head of a DSpark drafter (paper §3.1, eqs. 4-5 and 7)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark.models.config import DrafterConfig


class MarkovHead(nn.Module):
    """First-order bias B(x_{k-1}) = W1[x_{k-1}] W2 (eq. 5); W2 has one row per draft-vocabulary token."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, config.num_draft_tokens, bias=False)

    def embed(self, previous: Tensor) -> Tensor:
        """Embed the previous tokens, W1[x_{k-1}]: target ids [...] to [..., rank]."""
        out: Tensor = self.markov_w1(previous)
        return out

    def bias(self, embedded: Tensor) -> Tensor:
        """Bias on the base logits: [..., rank] to [..., Vd]."""
        out: Tensor = self.markov_w2(embedded)
        return out


class ConfidenceHead(nn.Module):
    """c_k = sigmoid(w [h_k; W1[x_{k-1}]] + b) (eq. 7; the bias is DeepSpec's)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.hidden_size + config.markov_rank, 1)

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Confidence logits in float32: [..., H] and [..., rank] to [...]."""
        out: Tensor = self.proj(torch.cat((hidden, embedded), dim=-1)).squeeze(-1).float()
        return out
