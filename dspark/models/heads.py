"""The heads of a DSpark drafter: the sequential head of three kinds, and the confidence head (paper §3.1).

With h the hidden state of a slot and e = W1[x] the embedding of the token before it, every sequential head
biases the base logits by W2 u (eqs. 4-5). The kinds differ in u (DeepSpec section 3):
    vanilla:  u = e
    gated:    u = sigmoid(G [h; e] + g) * e
    rnn:      u = tanh(o), with (a, c, o) = J [s; e; h] + j; the next s is sigmoid(a) s + sigmoid(-a) tanh(c)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark.models.config import DrafterConfig

# Probabilities nearer to 0 or 1 than this have the logit of this.
_LEAST_DOUBT = 1e-6


class MarkovHead(nn.Module):
    """The vanilla head, u = e, and what the other kinds share; W2 has one row per draft-vocabulary token."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, config.num_draft_tokens, bias=False)

    def embed(self, previous: Tensor) -> Tensor:
        """Embed the previous tokens, e = W1[x_{k-1}]: target ids [...] to [..., rank]."""
        out: Tensor = self.markov_w1(previous)
        return out

    def step(self, embedded: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One slot of every block.

        Args:
            embedded: [..., rank] of the tokens before the slots.
            hidden: [..., H] of the slots.
            state: what the step of the slots before returned; None at the first slots.

        Returns:
            u [..., rank], and the state of the next step.
        """
        del hidden, state
        return embedded, None

    def over_blocks(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """All slots at once, where the tokens before them are known.

        Args:
            embedded: [N, G, rank] of the tokens before the slots.
            hidden: [N, G, H] of the slots.

        Returns:
            u [N, G, rank].
        """
        return self.step(embedded, hidden, None)[0]

    def bias(self, mixed: Tensor) -> Tensor:
        """Bias on the base logits, W2 u: [..., rank] to [..., Vd]."""
        out: Tensor = self.markov_w2(mixed)
        return out


class GatedMarkovHead(MarkovHead):
    """The hidden state of the slot says how much of each number of the embedding counts."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.gate_proj = nn.Linear(config.hidden_size + config.markov_rank, config.markov_rank)

    def step(self, embedded: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """See MarkovHead; there is no state."""
        del state
        gate = torch.sigmoid(self.gate_proj(torch.cat((hidden, embedded), dim=-1)))
        return gate.to(embedded.dtype) * embedded, None


class RnnMarkovHead(MarkovHead):
    """Remembers all tokens of the block in a state [..., rank], zero at the first slot."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        rank = config.markov_rank
        self.joint_proj = nn.Linear(2 * rank + config.hidden_size, 3 * rank)

    def step(self, embedded: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """See MarkovHead. The bias is made of the state before the slot, not of the one after it."""
        if state is None:
            state = torch.zeros_like(embedded, dtype=hidden.dtype)
        joint = self.joint_proj(torch.cat((state, embedded, hidden), dim=-1))
        gate, candidate, output = joint.chunk(3, dim=-1)
        keep = torch.sigmoid(gate)
        return torch.tanh(output), keep * state + (1 - keep) * torch.tanh(candidate)

    def over_blocks(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """See MarkovHead; slot by slot."""
        state, mixed = None, []
        for slot in range(embedded.shape[1]):
            one, state = self.step(embedded[:, slot], hidden[:, slot], state)
            mixed.append(one)
        return torch.stack(mixed, dim=1)


def make_markov_head(config: DrafterConfig) -> MarkovHead | None:
    """The sequential head that the configuration names; None with rank 0: slots know nothing of drafts."""
    if config.markov_rank == 0:
        return None
    kinds = {"vanilla": MarkovHead, "gated": GatedMarkovHead, "rnn": RnnMarkovHead}
    return kinds[config.markov_head_type](config)


class ConfidenceHead(nn.Module):
    """c_k = sigmoid(w [h_k; e_k] + b), or without e_k (eq. 7; the bias and the switch are DeepSpec's).

    e_k is of the token before draft k, so that c_k knows nothing of draft k.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.with_markov = config.confidence_head_with_markov
        self.proj = nn.Linear(config.hidden_size + config.markov_rank * self.with_markov, 1)

    def forward(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """Confidence logits in float32: [..., H] and [..., rank] to [...].

        `embedded` may be None where there is no Markov head.
        """
        features = hidden
        if self.with_markov:
            assert embedded is not None, "the confidence head reads the Markov head"
            features = torch.cat((hidden, embedded), dim=-1)
        out: Tensor = self.proj(features).squeeze(-1).float()
        return out


def peak_logits(logits: Tensor) -> Tensor:
    """How sure a distribution is of its best token: [..., Vd] to log(p / (1 - p)) of it, [...] float32.

    The confidence of a drafter without a confidence head. It is a property of the distribution a draft is
    chosen from, not of the token chosen, so it knows the drafts before its own only, as planning asks. The
    probability of the drafted token itself would not do: it is known only once that token is.
    """
    peak = torch.softmax(logits, dim=-1, dtype=torch.float32).amax(-1)
    return torch.logit(peak, eps=_LEAST_DOUBT)
