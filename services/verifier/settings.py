"""Settings of the verifier process, from VERIFIER_… variables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from services.runtime.settings import OptionalAddress, ServiceSettings


def _split(value: object) -> object:
    return [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class VerifierSettings(ServiceSettings):
    """What the verifier needs to know."""

    model_config = SettingsConfigDict(env_prefix="VERIFIER_")

    target: str = Field("smollm2", description="Target: a Hugging Face directory, a .gguf file, or smollm2.")
    drafter_address: OptionalAddress = Field(
        "", description="Drafter that target features are sent to; empty: none."
    )
    drafter: Path | None = Field(
        None,
        description="Directory of the drafter's checkpoint, where this machine has it, or prompt-lookup: "
        "tells which layers it reads, so that the verifier need not wait for the drafter.",
    )
    drafter_wait_s: float = Field(
        60.0,
        ge=0,
        description="Seconds to wait at start for the drafter to say which layers it reads; then it serves "
        "without features. Not used with drafter or target_layer_ids.",
    )
    target_layer_ids: Annotated[tuple[int, ...], NoDecode, BeforeValidator(_split)] = Field(
        (), description="Layers to tap, as in 1,8,15; -1 is the embedding. Empty: those the drafter asks for."
    )
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = Field(
        "auto", description="Type of the weights."
    )
    pool_tokens: int = Field(65536, ge=16, description="Tokens the KV pages of all requests hold together.")
    cache_dir: Path | None = Field(
        None, description="Directory for prepared targets, kernels and measurements."
    )
    threads: int = Field(0, ge=0, description="Threads of a forward pass; 0: all cores.")
    idle_ttl_s: float = Field(
        600.0, gt=0, description="Seconds after which a request that nobody steps is freed."
    )
    feature_queue_mib: int = Field(
        64,
        ge=1,
        description="MiB of features that wait for a slow drafter; beyond it the oldest are dropped.",
    )
