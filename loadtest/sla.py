"""The service level a run is held to, read from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import yaml

DEFAULT_SLA = Path(__file__).parent / "sla.yaml"


class SlaError(Exception):
    """The SLA file is wrong; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Sla:
    """Bounds. None: not asked for.

    Attributes:
        ttft_p95_ms: 95th percentile of the time to the first text; also the bound of a good request.
        tpot_p95_ms: 95th percentile of the time per output token; also the bound of a good request.
        e2e_p99_ms: 99th percentile of the time to the end of the answer.
        error_rate: greatest share of the requests sent that may fail, be cut or time out.
        min_goodput: good requests per second.
        min_attainment: share of good requests among those sent.
        min_tokens_per_second: output tokens of all requests together.
        min_samples: fewer requests than this make no verdict.
    """

    ttft_p95_ms: float | None = None
    tpot_p95_ms: float | None = None
    e2e_p99_ms: float | None = None
    error_rate: float | None = 0.0
    min_goodput: float | None = None
    min_attainment: float | None = None
    min_tokens_per_second: float | None = None
    min_samples: int = 20

    @classmethod
    def read(cls, path: Path) -> Sla:
        """Read a file.

        Raises:
            SlaError: it cannot be read, or names what does not exist.
        """
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise SlaError(f"the SLA file {path} cannot be read: {error}") from error
        known = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or not set(values) <= known:
            raise SlaError(f"the SLA file {path} may hold only {', '.join(sorted(known))}")
        for name, value in values.items():
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float) or value < 0
            ):
                raise SlaError(f"{name} in the SLA file {path} must be a number of at least 0, not {value!r}")
        return cls(**values)
