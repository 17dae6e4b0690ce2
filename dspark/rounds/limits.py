"""What a request may ask for, given the model and its pages."""

from __future__ import annotations

from dataclasses import replace

from dspark.decoding.types import GenerationRequest, StopParams, VerifierInfo
from dspark.errors import ContextTooLongError, InvalidRequestError


def limited_stop(request: GenerationRequest, info: VerifierInfo) -> StopParams:
    """Check a request and cut its output limit to what the context leaves.

    Raises:
        InvalidRequestError: no prompt, a token the target does not know, or no output wanted.
        ContextTooLongError: the prompt leaves no room for a single token.
    """
    prompt = request.prompt_token_ids
    if not prompt:
        raise InvalidRequestError("prompt_token_ids is empty; send at least one token", "prompt_token_ids")
    if not 0 <= min(prompt) <= max(prompt) < info.vocab_size:
        raise InvalidRequestError(
            f"prompt_token_ids holds a token outside 0..{info.vocab_size - 1}; use the tokenizer of "
            f"{info.name}",
            "prompt_token_ids",
        )
    if request.stop.max_new_tokens < 1:
        raise InvalidRequestError(
            f"max_new_tokens is {request.stop.max_new_tokens}; ask for at least 1", "max_new_tokens"
        )
    context_len = min(info.max_context_len, info.num_pages * info.page_size)
    if len(prompt) >= context_len:
        raise ContextTooLongError(
            f"prompt_token_ids holds {len(prompt)} tokens and at most {context_len - 1} leave room for an "
            "output; shorten it",
            "prompt_token_ids",
        )
    return replace(request.stop, max_new_tokens=min(request.stop.max_new_tokens, context_len - len(prompt)))
