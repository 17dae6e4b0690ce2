"""Requests of a simulation: what arrives when, how long and how hard. Read from JSON lines or made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dspark.errors import ConfigurationError

# Conditional acceptance of the first and of the eighth draft of an average block. Synthetic: with blocks of
# seven, mean committed then lies near Table 1 of the paper for GSM8K, HumanEval and MT-Bench.
DOMAINS = {"math": (0.93, 0.92), "code": (0.89, 0.87), "chat": (0.76, 0.70)}
_LENGTH_SPREAD = 0.6
# Median tokens of a synthetic request.
PROMPT_LEN, OUTPUT_LEN = 192, 128


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request.

    Attributes:
        arrival_s: seconds after the start of the trace.
        prompt_len: tokens of the prompt, at least 1.
        output_len: tokens of the output, at least 1.
        difficulty: how much the log-odds of every draft lie below those of the domain; 0 is average.
        domain: one of `DOMAINS`.
    """

    arrival_s: float
    prompt_len: int
    output_len: int
    difficulty: float = 0.0
    domain: str = "chat"

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ValueError: one is out of range.
        """
        if not 0.0 <= self.arrival_s < float("inf"):
            raise ValueError(f"arrival_s is {self.arrival_s}; give seconds of at least 0")
        for name, length in (("prompt_len", self.prompt_len), ("output_len", self.output_len)):
            if not isinstance(length, int) or length < 1:
                raise ValueError(f"{name} is {length!r}; give a whole number of at least 1")
        if not abs(self.difficulty) < float("inf"):
            raise ValueError(f"difficulty is {self.difficulty}; give a finite number")
        if self.domain not in DOMAINS:
            raise ValueError(f"domain is {self.domain!r}; choose one of {', '.join(DOMAINS)}")


@dataclass(frozen=True, slots=True)
class TraceShape:
    """What a synthetic trace looks like.

    Attributes:
        num_requests: how many.
        rate: requests per second that arrive as a Poisson process; None: all arrive at once.
        prompt_len: median of the prompts, lognormal with a spread of 0.6.
        output_len: median of the outputs, likewise.
        difficulty: mean over requests.
        difficulty_spread: standard deviation between requests.
    """

    num_requests: int
    rate: float | None = None
    prompt_len: int = PROMPT_LEN
    output_len: int = OUTPUT_LEN
    difficulty: float = 0.0
    difficulty_spread: float = 0.5


def synthetic_trace(shape: TraceShape, seed: int) -> list[TraceRequest]:
    """Requests of all domains in equal shares, in order of arrival; the same for the same seed."""
    rng = np.random.default_rng(seed)
    count = shape.num_requests
    gaps = rng.exponential(1.0, count)
    arrivals = np.cumsum(gaps) / shape.rate if shape.rate is not None else np.zeros(count)
    prompts, outputs = (
        np.maximum(np.rint(median * np.exp(_LENGTH_SPREAD * rng.standard_normal(count))), 1.0).astype(int)
        for median in (shape.prompt_len, shape.output_len)
    )
    difficulties = shape.difficulty + shape.difficulty_spread * rng.standard_normal(count)
    domains = rng.choice(list(DOMAINS), count)
    columns = (arrivals.tolist(), prompts.tolist(), outputs.tolist(), difficulties.tolist(), domains.tolist())
    return [TraceRequest(*row) for row in zip(*columns, strict=True)]


def write_trace(requests: Sequence[TraceRequest], path: Path) -> None:
    """One JSON object per line.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    try:
        path.write_text("".join(f"{json.dumps(asdict(one))}\n" for one in requests), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--save-trace {path} cannot be written: {error.strerror}") from error


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests of a file, in order of arrival.

    Raises:
        ConfigurationError: it cannot be read, holds no request, or a line is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--trace {path} cannot be read: {error}; name a JSON-lines file") from error
    requests = [_parse(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not requests:
        raise ConfigurationError(f"--trace {path} holds no request; give it one JSON object per line")
    return sorted(requests, key=lambda one: one.arrival_s)


def _parse(path: Path, number: int, line: str) -> TraceRequest:
    try:
        return TraceRequest(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"--trace {path}, line {number}: {error}; a line is "
            '{"arrival_s": 0.5, "prompt_len": 100, "output_len": 80, "difficulty": 0.0, "domain": "chat"}'
        ) from error
