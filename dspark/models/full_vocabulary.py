"""A drafter of a reduced vocabulary as one of the whole vocabulary that drafts exactly the same.

No row of a head can hold a token back by itself: its logit would be zero at best, not minus infinity. So the
Markov head grows by one number, which is 1 for every token before a slot (an open gate, a saturated output);
`W2` has 0 there for the tokens of the draft vocabulary, and a logit of -32768 for all others, whose
probability is then 0 at any temperature. The logits of the draft vocabulary gain an exact zero. A drafter
without a Markov head gets one of rank 1.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dspark.models.config import DrafterConfig
from dspark.models.drafter import DSparkDrafter

_UNREACHABLE_LOGIT = -(2.0**15)
# The sigmoid and the tanh of it are 1.
_OPEN = 30.0


def with_full_vocabulary(drafter: DSparkDrafter, target_head: Tensor) -> DSparkDrafter:
    """The same drafts with a row for every token of the target.

    Args:
        drafter: with a reduced vocabulary.
        target_head: [V, H] output projection of the target, in the dtype of the drafter.

    Returns:
        A drafter whose rank is larger by one. Its head is the target's where the drafter's rows are.
    """
    config, d2t = drafter.config, drafter.d2t
    assert config.draft_vocab_size, "a full vocabulary needs no room"
    grown = replace(config, draft_vocab_size=0, markov_rank=config.markov_rank + 1)
    head = target_head
    if "lm_head" in drafter.own_rows:
        head = target_head.clone()
        head[d2t] = drafter.lm_head
    ids = torch.arange(config.vocab_size)
    out = DSparkDrafter(grown, drafter.embed_tokens, head, ids).to(drafter.lm_head.dtype)
    out.own_rows = drafter.own_rows
    heads = {**_markov(drafter, config.markov_rank), **_confidence(drafter, config)}
    backbone = {key: value for key, value in drafter.state_dict().items() if key.startswith("backbone.")}
    out.load_state_dict({**backbone, **heads, "d2t": ids})
    return out.eval()


def _markov(drafter: DSparkDrafter, rank: int) -> dict[str, Tensor]:
    config, d2t, head = drafter.config, drafter.d2t, drafter.markov_head
    like = drafter.lm_head
    w1 = like.new_ones(config.vocab_size, rank + 1)
    w2 = like.new_zeros(config.vocab_size, rank + 1)
    w2[:, rank] = _UNREACHABLE_LOGIT
    w2[d2t, rank] = 0
    tensors = {"markov_head.markov_w1.weight": w1, "markov_head.markov_w2.weight": w2}
    if head is None:
        return tensors
    w1[:, :rank] = head.markov_w1.weight.detach()
    w2[d2t, :rank] = head.markov_w2.weight.detach()
    numbers, hidden, step = torch.arange(rank), torch.arange(config.hidden_size), rank + 1
    layers = {
        # [h; e] to the gate
        "gated": ("gate_proj", numbers, torch.cat((hidden, len(hidden) + numbers)), step, rank),
        # [s; e; h] to gate, candidate and output
        "rnn": (
            "joint_proj",
            torch.cat((numbers, step + numbers, 2 * step + numbers)),
            torch.cat((numbers, step + numbers, 2 * step + hidden)),
            3 * step,
            2 * step + rank,
        ),
    }
    if config.markov_head_type in layers:
        name, rows, columns, num_rows, opened = layers[config.markov_head_type]
        weight, bias = (head.state_dict()[f"{name}.{part}"] for part in ("weight", "bias"))
        # the new row reads nothing, and nothing reads the new numbers
        grown = weight.new_zeros(num_rows, int(columns.max()) + 1 + (name == "gate_proj"))
        grown[rows[:, None], columns] = weight
        grown_bias = bias.new_zeros(num_rows)
        grown_bias[rows], grown_bias[opened] = bias, _OPEN
        tensors |= {f"markov_head.{name}.weight": grown, f"markov_head.{name}.bias": grown_bias}
    return tensors


def _confidence(drafter: DSparkDrafter, config: DrafterConfig) -> dict[str, Tensor]:
    if drafter.confidence_head is None:
        return {}
    weight, bias = drafter.confidence_head.proj.weight.detach(), drafter.confidence_head.proj.bias.detach()
    if config.confidence_head_with_markov:
        weight = torch.cat((weight, weight.new_zeros(1, 1)), dim=-1)
    return {"confidence_head.proj.weight": weight, "confidence_head.proj.bias": bias}
