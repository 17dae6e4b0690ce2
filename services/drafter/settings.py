"""Settings of the drafter process, from DRAFTER_… variables."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.runtime.settings import ServiceSettings


class DrafterSettings(ServiceSettings):
    """What the drafter needs to know."""

    model_config = SettingsConfigDict(env_prefix="DRAFTER_")

    drafter: Path = Field(description="Directory of the drafter checkpoint, or prompt-lookup.")
    target: Path = Field(description="Hugging Face directory of the target it was trained for.")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="Type of weights and context.")
    allow_int8: bool = Field(
        True,
        description="Whether weights may be rounded to 8 bits where drafts gain: no bfloat16 instructions.",
    )
    pool_tokens: int = Field(131072, ge=16, description="Context tokens of all requests together.")
    cache_dir: Path | None = Field(None, description="Directory for built kernels.")
    threads: int = Field(0, ge=0, description="Threads of a forward pass; 0: all cores.")
    feature_wait_s: float = Field(
        0.05, ge=0, description="Most seconds a draft waits for target features that are on their way."
    )
    lookup: bool = Field(
        True, description="Whether prompt lookup drafts in place of the model where that was worth more."
    )
    gamma: int | None = Field(
        None, ge=1, description="Drafts of a block of prompt-lookup; a drafter with a model has its own."
    )
    refit_calibration: bool = Field(
        True, description="Whether calibrated confidences follow what becomes of the drafts."
    )
    idle_ttl_s: float = Field(
        600.0, gt=0, description="Seconds after which a request that nobody drafts for is forgotten."
    )
