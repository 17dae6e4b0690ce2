"""Re-scores finished outputs by teacher forcing: is every token the choice that plain decoding would make?

A choice is made anew from a judge's logits, by the definitions of the adjustments and truncations and with
the noise that belongs to seed and position. Where the judge rounds elsewhere than the engine, a token may lie
a little below the choice; such near-ties are counted, and all gaps are relative to the greatest logit, as
rounding is. Under rejection any token that the truncations leave may come; that they come as often as they
should is for the statistics to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.rng import race_noise
from dspark.decoding.types import Acceptance, GenerationRequest, SamplingParams
from dspark.evaluation.generation import Generation
from dspark.evaluation.lossless.definition import kept_by_definition, rows_by_definition


class Judge(Protocol):
    """Computes the logits of a whole text at once."""

    def score(self, token_ids: Sequence[int], prompt_len: int) -> Tensor:
        """Logits that chose each token after the prompt, [T, V] float64."""
        ...


@dataclass(frozen=True, slots=True)
class Rescored:
    """What a judge says about outputs.

    Attributes:
        num_near_ties: tokens that are not its choice but within the margin of it.
        worst_gap: the furthest below its choice.
        worst_logprob: the largest difference of a log-probability that was reported.
        outside: names of outputs with a token beyond the margin or a log-probability beyond twice of it.
    """

    num_tokens: int
    num_near_ties: int
    worst_gap: float
    worst_logprob: float
    outside: tuple[str, ...]

    @classmethod
    def of(cls, parts: Iterable[Rescored]) -> Rescored:
        """All together."""
        some = list(parts)
        return cls(
            num_tokens=sum(part.num_tokens for part in some),
            num_near_ties=sum(part.num_near_ties for part in some),
            worst_gap=max((part.worst_gap for part in some), default=0.0),
            worst_logprob=max((part.worst_logprob for part in some), default=0.0),
            outside=tuple(name for part in some for name in part.outside),
        )

    @property
    def found(self) -> str:
        """In words."""
        text = (
            f"{self.num_near_ties} near-ties in {self.num_tokens} tokens, worst gap {self.worst_gap:.2g}, "
            f"log-probabilities within {self.worst_logprob:.2g}"
        )
        return text + (f", outside: {', '.join(self.outside)}" if self.outside else "")


def rescore(judge: Judge, request: GenerationRequest, output: Generation, margin: float) -> Rescored:
    """Judge one output; gaps and margin are relative to the greatest logit of each position.

    A log-probability may be off by twice the margin: it is the difference of a logit and the logarithm of
    the sum of all, each with roundings of its own. In sampled text transformers' bfloat16 is up to 0.034 off
    its float32, once in a thousand tokens more than 0.028, and the engine no more than that.
    """
    prompt, token_ids, sampling = request.prompt_token_ids, output.token_ids, request.sampling
    logits = judge.score((*prompt, *token_ids), len(prompt))
    scales = logits.amax(-1).abs()
    adjusted = rows_by_definition(logits, sampling.adjustments, prompt, token_ids)
    num_near_ties, worst = 0, 0.0
    for place, token_id in enumerate(token_ids):
        row, scale, position = adjusted[place], float(scales[place]), len(prompt) + place
        if choice_gap(row, token_id, sampling, position, slack=0.0) > 0.0:
            gap = choice_gap(row, token_id, sampling, position, slack=margin * scale) / scale
            num_near_ties += gap <= margin
            worst = max(worst, gap)
    worst_logprob = float((_logprob_errors(logits, output) / scales).amax()) if token_ids else 0.0
    is_outside = worst > margin or worst_logprob > 2 * margin
    return Rescored(
        len(token_ids), num_near_ties, worst, worst_logprob, (request.request_id,) if is_outside else ()
    )


def choice_gap(
    logits: Tensor,  # [V] float64, adjusted
    token_id: int,
    sampling: SamplingParams,
    position: int,
    *,
    slack: float,
) -> float:
    """How far a token lies below the choice, in units of the logits; 0 for the choice itself.

    Args:
        logits: what the token is chosen by.
        token_id: what was chosen.
        sampling: how.
        position: absolute, of the token.
        slack: by how much logits may be off; what the truncations keep may differ accordingly.
    """
    own = float(logits[token_id])
    if sampling.acceptance is Acceptance.GREEDY:
        return float(logits.max()) - own if int(logits.argmax()) != token_id else 0.0
    kept = kept_by_definition(logits, _loosened(sampling, slack))
    below_edge = max(0.0, float(logits[kept].min()) - own) if not kept[token_id] else 0.0
    if sampling.acceptance is Acceptance.REJECTION:
        return below_edge
    if slack > 0.0 and not bool(kept.all()):
        kept = kept_by_definition(logits, _loosened(sampling, -slack))
        kept &= logits >= logits[kept].min() + slack
    return max(below_edge, _race_gap(logits, kept, token_id, sampling, position))


def _loosened(sampling: SamplingParams, slack: float) -> SamplingParams:
    """With the top_p that logits off by so much may amount to: the mass of the tail is off by a factor."""
    if sampling.top_p == 1.0 or slack == 0.0:
        return sampling
    tail = (1.0 - sampling.top_p) * math.exp(-2.0 * slack / sampling.temperature)
    return replace(sampling, top_p=max(1.0 - tail, 1e-9))


def _race_gap(logits: Tensor, runs: Tensor, token_id: int, sampling: SamplingParams, position: int) -> float:
    """How far a token's score lies below the best of those that run, scaled back by the temperature."""
    ids = np.append(torch.nonzero(runs).squeeze(1).numpy(), token_id)
    noise = torch.from_numpy(race_noise(sampling.seed, position, ids))
    # The winner has the least noise / probability.
    scores = logits[torch.from_numpy(ids)] / sampling.temperature - noise.log()
    return float(scores.max() - scores[-1]) * sampling.temperature


def _logprob_errors(logits: Tensor, output: Generation) -> Tensor:
    """Largest difference of the log-probabilities reported of each token, [T]; zeros where none were."""
    reported = [one for delta in output.deltas for one in delta.logprobs]
    if not reported:
        return torch.zeros(len(logits), dtype=logits.dtype)
    assert len(reported) == len(logits), (len(reported), logits.shape)
    expected = logits.log_softmax(-1)
    ids = torch.tensor(
        [(token_id, *one.top_token_ids) for token_id, one in zip(output.token_ids, reported, strict=True)]
    )
    values = torch.tensor([(one.logprob, *one.top_logprobs) for one in reported], dtype=logits.dtype)
    return (expected.gather(1, ids) - values).abs().amax(-1)
