"""The fields that chat and text completions share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from gateway.schemas.logit_bias import LogitBias, as_biases

# Fields that change the output and are not implemented, with the values that leave it alone.
NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "skip_special_tokens": (None, True),
    "prompt_logprobs": (None,),
    "structured_outputs": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
}


def as_list(value: object) -> object:
    """One string stands for a list of one; null for none."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def check_unicode(text: str) -> str:
    """Refuse lone surrogates, which JSON can spell but no tokenizer can read."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise PydanticCustomError("unicode", "it holds half a surrogate pair; send whole characters")
    return text


def _not_empty(value: str) -> str:
    if not value:
        raise PydanticCustomError("empty", "an empty stop string would end every output; leave it out")
    return value


class StreamOptions(BaseModel):
    """What a stream says besides the text."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    include_usage: bool = Field(False, description="One more chunk, without choices, that holds the usage.")
    continuous_usage_stats: bool = Field(
        False, description="With include_usage: the usage so far on every chunk."
    )


class GenerationFields(BaseModel):
    """How to sample, when to stop, what to report."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, frozen=True)

    # The field of the subclass that holds the prompt, for messages about its length.
    prompt_field: ClassVar[str] = "prompt"

    model: str | None = Field(None, description="Served name; absent: the only model.")
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = Field(None, description="Default 1; 0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = Field(None, description="0 and -1 are off.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6)] | None = Field(
        None, description="Over 1: fewer tokens that prompt or output hold. Default 1, which is off."
    )
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = Field(
        None, description="Subtracted from the logits of tokens that the output holds."
    )
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = Field(
        None, description="Subtracted once for each time the output holds the token."
    )
    logit_bias: Annotated[LogitBias, BeforeValidator(as_biases)] = Field(
        (), description="An object of token ids and what is added to their logits, -100 to 100."
    )
    min_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Before so many tokens of output nothing ends it: end-of-text and stop tokens are not"
        " chosen, and stop strings are left in the text.",
    )
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = Field(
        None, description="With a seed, the output depends on seed, prompt and model only."
    )
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Annotated[
        list[Annotated[str, Field(max_length=1024), AfterValidator(_not_empty)]],
        BeforeValidator(as_list),
        Field(max_length=16),
    ] = Field(default_factory=list)
    stop_token_ids: Annotated[
        list[Annotated[int, Field(ge=0)]], BeforeValidator(as_list), Field(max_length=128)
    ] = Field(default_factory=list)
    service_tier: Literal["auto", "default", "flex", "priority"] | None = Field(
        None,
        description="How urgent it is; auto, the default, leaves it to the API key. The response says which.",
    )
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_round_details: bool = Field(
        False,
        description=(
            "Adds `dspark` to each streamed choice: drafts of the round (num_drafted, num_scheduled,"
            " num_accepted), and the released text by token: `tokens` (joined they are the text of the"
            " chunk) and `accepted` (whether an accepted draft brought it)."
        ),
    )

    skip_special_tokens: Any = None
    prompt_logprobs: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    @field_validator(*NEUTRAL_VALUES)
    @classmethod
    def _changes_nothing(cls, value: object, info: ValidationInfo) -> object:
        neutral = NEUTRAL_VALUES[str(info.field_name)]
        if value not in neutral:
            raise PydanticCustomError(
                "unsupported", "this server does not implement it; leave it out or send {neutral}",
                {"neutral": repr(neutral[-1])},
            )  # fmt: skip
        return value

    @field_validator("stream_options")
    @classmethod
    def _needs_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise PydanticCustomError("no_stream", "it is allowed only with stream: true")
        return value

    @field_validator("ignore_eos", "include_stop_str_in_output", "return_round_details", mode="before")
    @classmethod
    def _null_is_false(cls, value: object) -> object:
        return False if value is None else value

    @property
    def num_choices(self) -> int:
        """Choices per prompt."""
        return self.n or 1

    @property
    def output_limit(self) -> tuple[int | None, str]:
        """Most tokens asked for, and the field that asked."""
        return self.max_tokens, "max_tokens"

    @property
    def has_usage_chunk(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def has_running_usage(self) -> bool:
        """Whether every chunk of a stream carries the usage so far."""
        return self.has_usage_chunk and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )
