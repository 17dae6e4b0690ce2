"""Log-probabilities of committed tokens, from the raw logits of the target."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark.decoding.types import TokenLogprobs


def token_logprobs(
    logits: Tensor,  # [T, V]
    token_ids: Sequence[int],  # [T]
    num_top: int,
) -> tuple[TokenLogprobs, ...]:
    """Of each token and of the `num_top` most probable ones at its position, [T]."""
    assert logits.shape[0] == len(token_ids), (logits.shape, len(token_ids))
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None]).squeeze(1).tolist()
    best = logprobs.topk(min(num_top, logprobs.shape[1]), dim=-1)
    return tuple(
        TokenLogprobs(logprob, tuple(ids), tuple(values))
        for logprob, ids, values in zip(chosen, best.indices.tolist(), best.values.tolist(), strict=True)
    )
