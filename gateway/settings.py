"""Settings of the gateway, read once at start from the environment (prefix `GATEWAY_`)."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from dspark.errors import ConfigurationError
from gateway.edge import EdgeOptions
from services.runtime.settings import check_names


class GatewaySettings(BaseSettings):
    """Where to listen, whom to ask, what to call the model."""

    model_config = SettingsConfigDict(
        env_prefix="GATEWAY_", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    host: str = Field("127.0.0.1", description="Interface to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="TCP port; 0 takes a free one.")
    scheduler_address: str = Field("127.0.0.1:50051", description="gRPC target of the scheduler.")
    target: Path = Field(description="Model directory with tokenizer.json and the chat template.")
    model_name: str = Field("", description="Name of the model in the API; empty: that of its directory.")
    max_body_bytes: int = Field(4 * 2**20, ge=1024, description="Largest request body, in bytes.")
    max_choices: int = Field(128, ge=1, description="Most choices of one request, over all its prompts.")
    keep_alive_s: float = Field(10.0, gt=0, description="Seconds of silence before a stream sends a comment.")
    patience_s: float = Field(
        30.0, ge=0, description="Seconds a stream waits for a lost scheduler to come back."
    )
    shutdown_grace_s: int = Field(10, ge=0, description="Seconds for open responses to end at shutdown.")
    keys: str = Field(
        "",
        description="TOML or JSON file of API keys with their tiers and promises; empty: none is asked for.",
    )
    log_level: str = Field(
        "info", pattern="(?i)^(debug|info|warning|error)$", description="Least level logged."
    )

    @property
    def served_name(self) -> str:
        """Name of the model in the API."""
        return self.model_name or self.target.resolve().name

    @property
    def aliases(self) -> frozenset[str]:
        """Other names requests may use: the directory, as given and in full."""
        return frozenset({str(self.target), str(self.target.resolve())})

    def describe(self) -> str:
        """The effective settings in one line."""
        return " ".join(f"{name}={value}" for name, value in self.model_dump().items())

    @property
    def options(self) -> EdgeOptions:
        """Bounds of the edge."""
        return EdgeOptions(
            max_body_bytes=self.max_body_bytes, max_choices=self.max_choices, keep_alive_s=self.keep_alive_s
        )


def read_settings() -> GatewaySettings:
    """Read the settings from the environment.

    Raises:
        ConfigurationError: names the variables and what is wrong with them, or one that is no setting.
    """
    check_names(GatewaySettings, os.environ)
    try:
        return GatewaySettings()  # type: ignore[call-arg] # the environment has them
    except ValidationError as error:
        problems = [f"GATEWAY_{str(p['loc'][0]).upper()}: {p['msg'].lower()}" for p in error.errors()]
        raise ConfigurationError("; ".join(problems) + ".") from error
