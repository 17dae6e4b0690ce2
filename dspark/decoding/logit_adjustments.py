"""What a request asks to change in single logits. Values only; `dspark.decoding.adjustment` applies them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogitAdjustments:
    """What changes single logits of the target by what the request holds already, before temperature.

    The formulas and their order stand in `dspark.decoding.adjustment`. Prompt and output are told apart:
    a request that is restored counts the tokens it had committed as output.
    """

    repetition_penalty: float = 1.0  # > 0; on tokens of prompt and output; 1: off
    presence_penalty: float = 0.0  # on tokens of the output
    frequency_penalty: float = 0.0  # times how often the token stands in the output
    # (token id, what is added to its logit), rising ids
    logit_bias: tuple[tuple[int, float], ...] = ()
    # before so many output tokens none of `ending_token_ids` (end of text and stop tokens) may be chosen
    min_tokens: int = 0
    ending_token_ids: tuple[int, ...] = ()

    @property
    def has_penalties(self) -> bool:
        """Whether it matters which tokens the request holds."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)
