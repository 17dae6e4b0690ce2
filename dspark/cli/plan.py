"""Which processes make up a system and with which settings. Pure: options and paths in, specs out."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from dspark.cli.options import UpOptions
from dspark.cli.process import ProcessSpec

# The line each of our processes logs once it serves.
_READY = re.compile(r"(^|: )ready\b")
_STORE_READY = re.compile(r"Ready to accept connections")
_METRICS_ORDER = ("drafter", "verifier", "scheduler")
# Whoever presses Ctrl-C waits for open streams, but not for long.
_SHUTDOWN_GRACE_S = "3"
_KILL_AFTER_S = 8.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one run: private directory, cache, and the prepared target."""

    runtime: Path
    cache: Path
    target: Path

    def address(self, service: str) -> str:
        """Where the service listens."""
        return f"unix:{self.runtime / service}.sock"


def store_spec(binary: Path, runtime: Path) -> ProcessSpec:
    """The embedded store: a unix socket only we can open, nothing on disk."""
    options = {
        "port": "0",
        "unixsocket": str(runtime / "store.sock"),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "maxmemory-policy": "noeviction",
        "dir": str(runtime),
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return ProcessSpec("store", (str(binary), *arguments), _STORE_READY, is_essential=False)


def store_url(runtime: Path) -> str:
    """URL of the embedded store."""
    return f"unix://{runtime / 'store.sock'}"


def prepare_spec(options: UpOptions, runtime: Path, cache: Path) -> ProcessSpec:
    """The short process that turns `--target` into a Hugging Face directory and prints its path."""
    argv = [*_python("dspark.cli.main"), "prepare", "--cache-dir", str(cache)]
    if options.target is not None:
        argv += ["--target", str(options.target)]
    return ProcessSpec("target", tuple(argv), re.compile(r"^prepared (.+)$"), cwd=str(runtime))


def service_specs(options: UpOptions, layout: Layout) -> list[ProcessSpec]:
    """The services, each after those it depends on."""
    env = {
        "drafter": _drafter_env(options, layout),
        "verifier": _verifier_env(options, layout),
        "scheduler": _scheduler_env(options, layout),
        "gateway": _gateway_env(options, layout),
    }
    if options.drafter is None:
        del env["drafter"]
    return [_spec(name, options, layout, values) for name, values in env.items()]


def _spec(name: str, options: UpOptions, layout: Layout, fixed: dict[str, str]) -> ProcessSpec:
    values = {"SHUTDOWN_GRACE_S": _SHUTDOWN_GRACE_S}
    if name == "scheduler":
        # Both engines have the same cores here: two cohorts would only get into each other's way.
        values["COHORTS"] = os.environ.get("SCHEDULER_COHORTS", "1")
    values |= {**options.settings.get(name, {}), **fixed}
    if options.metrics_port and name in _METRICS_ORDER:
        values["METRICS_PORT"] = str(options.metrics_port + _METRICS_ORDER.index(name))
    module = "gateway" if name == "gateway" else f"services.{name}"
    env = {f"{name.upper()}_{key}": value for key, value in values.items()}
    env["PYTHONUNBUFFERED"] = "1"
    # A model is a path here; a name that looks like a hub repository must not be fetched behind our back.
    env["HF_HUB_OFFLINE"] = "1"
    return ProcessSpec(
        name,
        _python(module),
        _READY,
        env=env,
        cwd=str(layout.runtime),
        is_essential=name != "drafter",
        grace_s=_KILL_AFTER_S,
    )


def _python(module: str) -> tuple[str, ...]:
    # -P: a folder called `services` where the user stands must not shadow ours.
    return (sys.executable, "-P", "-m", module)


def _drafter_env(options: UpOptions, layout: Layout) -> dict[str, str]:
    env = {
        "LISTEN": layout.address("drafter"),
        "DRAFTER": str(options.drafter),
        "TARGET": str(layout.target),
        "CACHE_DIR": str(layout.cache),
    }
    if options.lookup is not None:
        env["LOOKUP"] = str(options.lookup).lower()
    return env


def _verifier_env(options: UpOptions, layout: Layout) -> dict[str, str]:
    env = {
        "LISTEN": layout.address("verifier"),
        "TARGET": str(layout.target),
        "DRAFTER_ADDRESS": _drafter_address(options, layout),
        "CACHE_DIR": str(layout.cache),
    }
    if options.drafter is not None:
        # Tells which layers to tap, so that both load side by side.
        env["DRAFTER"] = str(options.drafter)
    return env


def _scheduler_env(options: UpOptions, layout: Layout) -> dict[str, str]:
    url = store_url(layout.runtime) if options.redis_url is None else options.redis_url
    env = {
        "LISTEN": layout.address("scheduler"),
        "VERIFIER_ADDRESS": layout.address("verifier"),
        "DRAFTER_ADDRESS": _drafter_address(options, layout),
        "REDIS_URL": url,
    }
    if options.policy is not None:
        env["POLICY"] = options.policy
    return env


def _gateway_env(options: UpOptions, layout: Layout) -> dict[str, str]:
    return {
        "HOST": options.settings.get("gateway", {}).get("HOST", "127.0.0.1"),
        "PORT": str(options.port),
        "SCHEDULER_ADDRESS": layout.address("scheduler"),
        "TARGET": str(layout.target),
        "MODEL_NAME": options.settings.get("gateway", {}).get("MODEL_NAME", options.model_name),
    }


def _drafter_address(options: UpOptions, layout: Layout) -> str:
    return layout.address("drafter") if options.drafter is not None else ""
