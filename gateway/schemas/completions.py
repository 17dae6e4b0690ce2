"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from gateway.schemas.generation import GenerationFields, check_unicode

TokenPrompt = tuple[int, ...]


def _as_prompts(value: object) -> list[str | TokenPrompt]:
    """A prompt is a string, token ids, or a list of either; all become a list of prompts."""
    if isinstance(value, str):
        return [check_unicode(value)]
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("prompt", "it must be a string, a list of strings or a list of token ids")
    if _is_token_ids(value):
        return [tuple(value)]
    return [_one_prompt(entry) for entry in value]


def _one_prompt(entry: object) -> str | TokenPrompt:
    if isinstance(entry, str):
        return check_unicode(entry)
    if isinstance(entry, list) and _is_token_ids(entry):
        return tuple(entry)
    raise PydanticCustomError("prompt", "each prompt must be a string or a list of token ids")


def _is_token_ids(value: list[Any]) -> bool:
    return bool(value) and all(type(i) is int and i >= 0 for i in value)


class CompletionRequest(GenerationFields):
    """Text to continue."""

    prompt: Annotated[list[Any], BeforeValidator(_as_prompts)]
    echo: bool | None = Field(None, description="Repeat the prompt before the output.")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: Any = None

    @field_validator("logprobs")
    @classmethod
    def _not_of_the_prompt(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("echo"):
            raise PydanticCustomError(
                "unsupported",
                "log-probabilities of the prompt are not implemented; leave out echo or logprobs",
            )
        return value

    @field_validator("best_of")
    @classmethod
    def _is_n(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value > (info.data.get("n") or 1):
            raise PydanticCustomError("unsupported", "more than n is not implemented; leave it out")
        return value

    @field_validator("suffix")
    @classmethod
    def _no_suffix(cls, value: object) -> object:
        if value not in (None, ""):
            raise PydanticCustomError(
                "unsupported", "inserting before a suffix is not implemented; leave it out"
            )
        return value

    @property
    def prompts(self) -> list[str | TokenPrompt]:
        """The prompts, each a text or token ids."""
        return self.prompt
