"""Makes generation requests of prompts, one way per kind of sampling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dspark.decoding.types import Acceptance, GenerationRequest, SamplingParams, StopParams
from dspark.evaluation.tasks import TaskPrompt

GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)


def sampling_of(temperature: float, seed: int, *, is_coupled: bool = False) -> SamplingParams:
    """Greedy at temperature 0, else rejection sampling or, where asked for, coupled sampling."""
    if temperature == 0.0:
        return GREEDY
    acceptance = Acceptance.COUPLED if is_coupled else Acceptance.REJECTION
    return SamplingParams(temperature=temperature, seed=seed, acceptance=acceptance)


def make_requests(
    prompts: Sequence[TaskPrompt],
    max_new_tokens: int,
    eos_token_ids: Iterable[int],
    *,
    temperature: float = 0.0,
    seed: int = 0,
    is_coupled: bool = False,
    label: str = "",
) -> list[GenerationRequest]:
    """One request per prompt; the seed of prompt n is `seed + n`.

    Args:
        prompts: encoded.
        max_new_tokens: limit of each output.
        eos_token_ids: tokens that end it earlier.
        temperature: 0 is greedy.
        seed: of the first request.
        is_coupled: whether sampled outputs shall depend on the seed alone.
        label: keeps the ids of several calls apart.
    """
    stop = StopParams(max_new_tokens, frozenset(eos_token_ids))
    return [
        GenerationRequest(
            f"{label}{number}-{prompt.name}",
            prompt.token_ids,
            sampling_of(temperature, seed + number, is_coupled=is_coupled),
            stop,
        )
        for number, prompt in enumerate(prompts)
    ]
