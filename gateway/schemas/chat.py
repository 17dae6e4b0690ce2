"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from gateway.schemas.generation import GenerationFields, check_unicode


def _joined_text(content: object) -> object:
    """Text of a message given as a list of text parts."""
    if not isinstance(content, list):
        return content
    return "".join(_text_of(part) for part in content)


def _text_of(part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise PydanticCustomError(
        "content_part", "it must be a string or a list of text parts; this model reads text only"
    )


class ChatMessage(BaseModel):
    """One turn. What a template may read beyond role and content is passed on as it came."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    role: Annotated[str, Field(min_length=1)]
    content: Annotated[str | None, BeforeValidator(_joined_text)] = Field(None, validate_default=True)
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None

    @field_validator("content")
    @classmethod
    def _has_content(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("role") != "assistant":
            raise PydanticCustomError("no_content", "it is missing; give a string")
        return None if value is None else check_unicode(value)

    def for_template(self) -> dict[str, Any]:
        """The members a chat template may read; an absent content reads as empty."""
        return {"content": "", **self.model_dump(exclude_none=True)}


class ChatCompletionRequest(GenerationFields):
    """A conversation to continue."""

    prompt_field: ClassVar[str] = "messages"

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Wins over max_tokens."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(None, validate_default=True)
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Names the chat template may read, such as enable_thinking."
    )
    tools: Any = Field(None, description="Accepted and unused: the model answers in text.")
    tool_choice: Any = None
    response_format: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and not info.data.get("logprobs"):
            raise PydanticCustomError("no_logprobs", "it is allowed only with logprobs: true")
        return value

    @field_validator("tool_choice")
    @classmethod
    def _may_answer_in_text(cls, value: object) -> object:
        if value not in (None, "none", "auto"):
            raise PydanticCustomError(
                "unsupported", "tool calls cannot be forced here; send 'none' or 'auto'"
            )
        return value

    @field_validator("response_format")
    @classmethod
    def _is_text(cls, value: object) -> object:
        if value not in (None, {"type": "text"}):
            raise PydanticCustomError("unsupported", 'only {"type": "text"} is implemented')
        return value

    @field_validator("add_generation_prompt")
    @classmethod
    def _starts_an_answer(cls, value: object) -> object:
        if value not in (None, True):
            raise PydanticCustomError("unsupported", "only true is implemented")
        return value

    @field_validator("continue_final_message")
    @classmethod
    def _starts_afresh(cls, value: object) -> object:
        if value not in (None, False):
            raise PydanticCustomError("unsupported", "only false is implemented")
        return value

    @property
    def output_limit(self) -> tuple[int | None, str]:
        """Most tokens asked for, and the field that asked."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    @property
    def num_logprobs(self) -> int | None:
        """Top log-probabilities per token; None: no log-probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None
