"""What one HTTP request asks of the scheduler: one generation per choice, and how its tokens become text."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.service import Service
from dspark.decoding.types import Acceptance, GenerationRequest, SamplingParams, StopParams
from dspark.errors import ContextTooLongError, InvalidRequestError
from gateway.backend import ServingInfo
from gateway.schemas.generation import GenerationFields


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """One choice of a response.

    Attributes:
        index: its index in the response.
        stop_strings: texts that end it, besides the stop tokens of `request`.
        include_stop: whether the text of the stop belongs to the output.
        echo: text shown before the output.
    """

    index: int
    request: GenerationRequest
    stop_strings: tuple[str, ...] = ()
    include_stop: bool = False
    echo: str = ""

    @property
    def min_tokens(self) -> int:
        """Tokens of the output before which nothing ends it."""
        adjustments = self.request.sampling.adjustments
        return adjustments.min_tokens if adjustments is not None else 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens of one prompt, and its text where the response repeats it."""

    token_ids: tuple[int, ...]
    echo: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the model and of this gateway.

    Attributes:
        max_choices: most choices of one response, over all its prompts.
    """

    max_context_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    max_choices: int

    @classmethod
    def of(cls, info: ServingInfo, *, max_choices: int) -> Limits:
        """Take the model's bounds from what the scheduler says."""
        return cls(info.max_context_len, info.vocab_size, frozenset(info.eos_token_ids), max_choices)


def plan_choices(
    response_id: str,
    fields: GenerationFields,
    prompts: Sequence[Prompt],
    limits: Limits,
    *,
    num_logprobs: int | None,
    service: Service,
) -> tuple[ChoicePlan, ...]:
    """One plan per prompt and choice; choice `j` of prompt `i` has the index `i * n + j`.

    Raises:
        InvalidRequestError: too many choices, a token outside the vocabulary, or more tokens at least than
            at most.
        ContextTooLongError: a prompt, or a prompt with its output, exceeds the context.
    """
    num_choices = len(prompts) * fields.num_choices
    if num_choices > limits.max_choices:
        raise InvalidRequestError(
            f"n asks for {num_choices} choices, this server gives at most {limits.max_choices} per request.",
            field="n",
        )
    sampling = replace(sampling_of(fields, num_logprobs), adjustments=adjustments_of(fields, limits))
    plans: list[ChoicePlan] = []
    for prompt in prompts:
        stop = _stop_of(fields, len(prompt.token_ids), limits)
        for seed in derive_seeds(sampling.seed, fields.num_choices):
            request = GenerationRequest(
                request_id=f"{response_id}-{len(plans)}",
                prompt_token_ids=prompt.token_ids,
                sampling=replace(sampling, seed=seed),
                stop=stop,
                service=service,
            )
            plans.append(
                ChoicePlan(
                    len(plans), request, tuple(fields.stop), fields.include_stop_str_in_output, prompt.echo
                )
            )
    return tuple(plans)


def sampling_of(fields: GenerationFields, num_logprobs: int | None) -> SamplingParams:
    """Temperature 0 is greedy, a seed asks for coupled sampling, all else is rejection sampling."""
    temperature = 1.0 if fields.temperature is None else fields.temperature
    if temperature == 0:
        acceptance = Acceptance.GREEDY
    else:
        acceptance = Acceptance.REJECTION if fields.seed is None else Acceptance.COUPLED
    return SamplingParams(
        temperature=temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=max(fields.top_k or 0, 0),
        min_p=fields.min_p or 0.0,
        seed=secrets.randbits(64) if fields.seed is None else fields.seed % 2**64,
        acceptance=acceptance,
        num_logprobs=num_logprobs,
    )


def adjustments_of(fields: GenerationFields, limits: Limits) -> LogitAdjustments | None:
    """What changes single logits; None where nothing does.

    Raises:
        InvalidRequestError: a biased token outside the vocabulary.
    """
    if fields.logit_bias and fields.logit_bias[-1][0] >= limits.vocab_size:
        raise InvalidRequestError(
            f"logit_bias holds {fields.logit_bias[-1][0]}, but the vocabulary ends at"
            f" {limits.vocab_size - 1}.",
            field="logit_bias",
        )
    # Also under ignore_eos, as in vLLM: the minimum is of tokens that are not the end of the text.
    ending = limits.eos_token_ids.union(fields.stop_token_ids) if fields.min_tokens else ()
    adjustments = LogitAdjustments(
        repetition_penalty=1.0 if fields.repetition_penalty is None else fields.repetition_penalty,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias=fields.logit_bias,
        min_tokens=fields.min_tokens or 0,
        ending_token_ids=tuple(sorted(ending)),
    )
    return adjustments if adjustments != LogitAdjustments() else None


def derive_seeds(seed: int, count: int) -> Iterator[int]:
    """Seeds of the choices: the first keeps the request's own, so n=1 gives the first of n=4."""
    yield seed
    for index in range(1, count):
        digest = hashlib.blake2b(seed.to_bytes(8, "little") + index.to_bytes(4, "little"), digest_size=8)
        yield int.from_bytes(digest.digest(), "little")


def _stop_of(fields: GenerationFields, prompt_len: int, limits: Limits) -> StopParams:
    room = limits.max_context_len - prompt_len
    if room < 1:
        raise ContextTooLongError(
            f"The prompt has {prompt_len} tokens, but the context of this model is"
            f" {limits.max_context_len} tokens and one must be left for the output; shorten it.",
            field=fields.prompt_field,
        )
    asked, name = fields.output_limit
    if asked is not None and asked > room:
        raise ContextTooLongError(
            f"The prompt has {prompt_len} tokens and {name} asks for {asked} more, but the context of this"
            f" model is {limits.max_context_len} tokens; set {name} to at most {room}.",
            field=name,
        )
    stop_ids = frozenset(fields.stop_token_ids)
    if bad := [i for i in stop_ids if i >= limits.vocab_size]:
        raise InvalidRequestError(
            f"stop_token_ids holds {bad[0]}, but the vocabulary ends at {limits.vocab_size - 1}.",
            field="stop_token_ids",
        )
    if not fields.ignore_eos:
        stop_ids |= limits.eos_token_ids
    most = room if asked is None else asked
    if (fields.min_tokens or 0) > most:
        raise InvalidRequestError(
            f"min_tokens asks for at least {fields.min_tokens} tokens, but at most {most} may come"
            f"{'' if asked is None else f' by {name}'}; set it to at most {most}.",
            field="min_tokens",
        )
    return StopParams(max_new_tokens=most, stop_token_ids=stop_ids)
