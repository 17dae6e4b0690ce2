"""What every service reads from its environment, and how a wrong value is reported."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from dspark.errors import ConfigurationError
from services.runtime.channel import check_address


def _checked(address: str) -> str:
    try:
        return check_address(address)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def _checked_or_empty(address: str) -> str:
    return _checked(address) if address else address


Address = Annotated[str, AfterValidator(_checked)]
OptionalAddress = Annotated[str, AfterValidator(_checked_or_empty)]


# What Kubernetes sets in every container for a Service that is called like one of ours.
_SERVICE_LINK = re.compile(r"service_(host|port(_\w+)?)|port(_\d+_(tcp|udp)(_\w+)?)?")


class ServiceSettings(BaseSettings):
    """Settings that all services share. Read once, in `__main__`."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    listen: Address = Field(description="Where the service listens: unix:/path/of/socket or 127.0.0.1:port.")
    metrics_port: int = Field(0, ge=0, le=65535, description="Port for Prometheus; 0 is off.")
    metrics_host: str = Field("127.0.0.1", description="Address for Prometheus.")
    log_level: str = Field(
        "info", pattern="(?i)^(debug|info|warning|error)$", description="Least level logged."
    )
    shutdown_grace_s: float = Field(5.0, ge=0, description="Seconds that running calls get at a stop.")

    def describe(self) -> str:
        """The effective settings in one line, secrets hidden."""
        return " ".join(f"{name}={value}" for name, value in self.model_dump().items())


_Settings = TypeVar("_Settings", bound=ServiceSettings)


def read_settings(kind: type[_Settings]) -> _Settings:
    """Read the settings of a service from the environment.

    Raises:
        ConfigurationError: names the variable and what is wrong with it, or that there is no such setting.
    """
    check_names(kind, os.environ)
    prefix = str(kind.model_config.get("env_prefix", ""))
    try:
        # The values come from the environment, which the type checker cannot know.
        return kind()  # type: ignore[call-arg]
    except ValidationError as error:
        problems = [_sentence(prefix, problem["loc"], problem["msg"]) for problem in error.errors()]
        raise ConfigurationError("; ".join(problems)) from error


def check_names(kind: type[BaseSettings], names: Iterable[str]) -> None:
    """Refuse a variable that has the prefix of these settings and is none of them.

    Raises:
        ConfigurationError: names it and the setting that is most like it.
    """
    prefix = str(kind.model_config.get("env_prefix", ""))
    for name in sorted(names):
        key = name.upper().removeprefix(prefix).lower()
        is_ours = name.upper().startswith(prefix) and not _SERVICE_LINK.fullmatch(key)
        if is_ours and key not in kind.model_fields:
            (nearest,) = difflib.get_close_matches(key, kind.model_fields, n=1, cutoff=0.0)
            raise ConfigurationError(f"there is no setting {key} ({name}); the nearest one is {nearest}")


def _sentence(prefix: str, location: tuple[int | str, ...], message: str) -> str:
    name = prefix + "_".join(str(part) for part in location).upper()
    text = message.removeprefix("Value error, ")
    return f"{name}: {text[:1].lower()}{text[1:]}"
