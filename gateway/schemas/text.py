"""The bodies of POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.schemas.chat import ChatMessage


class TokenizeRequest(BaseModel):
    """A text, or a conversation, to tokenize."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _has_one_text(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("one_text", "give either prompt or messages")
        return self


class DetokenizeRequest(BaseModel):
    """Token ids to turn into text."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, lt=2**32)]]
