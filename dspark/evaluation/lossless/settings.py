"""The sampling settings that every check of losslessness goes through: each thing alone, and all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.types import Acceptance, SamplingParams


@dataclass(frozen=True, slots=True)
class SettingTokens:
    """What the settings need to know of a vocabulary and of the outputs.

    Attributes:
        biased: rising ids, biased up and down in turn.
        ending: rising ids that end an output, and which `min_tokens` bans.
        stops: rising ids that end an output where nothing bans them.
        min_tokens: less than an output has.
        top_k: more than one, fewer than the vocabulary.
    """

    biased: tuple[int, ...]
    ending: tuple[int, ...]
    stops: tuple[int, ...]
    min_tokens: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to choose tokens.

    Attributes:
        name: for tables.
        sampling: without seed and acceptance.
        stop_token_ids: end an output.
    """

    name: str
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...] = ()

    @property
    def is_greedy_too(self) -> bool:
        """Whether a greedy output depends on it; temperature and truncations leave the best token."""
        return self.sampling == SamplingParams() or self.sampling.adjustments is not None

    def sampling_of(self, acceptance: Acceptance, seed: int) -> SamplingParams:
        """The parameters of a request, with log-probabilities of the two best tokens."""
        temperature = 0.0 if acceptance is Acceptance.GREEDY else self.sampling.temperature
        return replace(
            self.sampling, temperature=temperature, seed=seed, acceptance=acceptance, num_logprobs=2
        )


def all_settings(tokens: SettingTokens) -> list[Setting]:
    """None, each alone, and all at once."""

    def adjusted(name: str, adjustments: LogitAdjustments, stops: Sequence[int] = ()) -> Setting:
        return Setting(name, SamplingParams(adjustments=adjustments), tuple(stops))

    biases = tuple((token_id, -2.0 if place % 2 else 1.0) for place, token_id in enumerate(tokens.biased))
    # An ending nobody would choose anyway shows nothing.
    wanted_endings = tuple((token_id, 3.0) for token_id in tokens.ending)
    minimum = LogitAdjustments(
        logit_bias=wanted_endings, min_tokens=tokens.min_tokens, ending_token_ids=tokens.ending
    )
    everything = LogitAdjustments(1.2, -0.3, 0.2, biases, tokens.min_tokens, tokens.ending)
    return [
        Setting("plain", SamplingParams()),
        Setting("temperature", SamplingParams(temperature=0.7)),
        Setting("top_p", SamplingParams(top_p=0.9)),
        Setting("top_k", SamplingParams(temperature=1.3, top_k=tokens.top_k)),
        Setting("min_p", SamplingParams(min_p=0.1)),
        adjusted("repetition penalty", LogitAdjustments(repetition_penalty=1.6)),
        adjusted("presence penalty", LogitAdjustments(presence_penalty=0.8)),
        adjusted("frequency penalty", LogitAdjustments(frequency_penalty=0.6)),
        adjusted("logit bias", LogitAdjustments(logit_bias=biases)),
        adjusted("min_tokens", minimum, tokens.ending),
        Setting("stop tokens", SamplingParams(), tokens.stops),
        Setting(
            "all at once",
            SamplingParams(
                temperature=0.8, top_p=0.95, top_k=tokens.top_k, min_p=0.05, adjustments=everything
            ),
            tokens.ending,
        ),
    ]
