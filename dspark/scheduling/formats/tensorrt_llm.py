"""The cost table and the calibration that TensorRT-LLM reads.

The table is the curve of `dspark_planner.py` (NVIDIA/TensorRT-LLM at 52cd02d): milliseconds of a step as
fixed_overhead_ms + batch_overhead_ms(requests) + step_time_ms(tokens), linear between points and level beyond
them. That source also reads tables of `schema_version` 2, and at 7fbff6f nothing else: they hold steps timed
on one running engine and its fingerprint, which only that engine can make. They are refused here.

The calibration is read by `dspark_sts.py` at 0ee1e73: one temperature per draft.

These sources name the options `confidence_sps_table_path` and `confidence_sts_path`; the API page of 1.4.0rc4
has `confidence_cost_table_path` and `confidence_calibration_path`. The source of that release was not read.
"""

from __future__ import annotations

from typing import Any

from dspark.errors import ConfigurationError
from dspark.scheduling.formats.costs import Points, RoundCosts
from dspark.scheduling.formats.fields import Fields
from dspark.scheduling.formats.temperatures import Temperatures

_TABLE, _STS = "TensorRT-LLM's cost table", "TensorRT-LLM's calibration"
# Any of these makes it a table of schema 2.
_SCHEMA_2 = (
    "cost_tables",
    "engine_fingerprint",
    "engine_fingerprint_sha256",
    "measurements",
    "schema_version",
)
_MS = 1e3


def cost_table(costs: RoundCosts) -> dict[str, Any]:
    """The target's step by tokens, drafting by requests."""
    table: dict[str, Any] = {
        "token_counts": [size for size, _ in costs.step_cost],
        "step_time_ms": [_MS * seconds for _, seconds in costs.step_cost],
        "fixed_overhead_ms": 0.0,
    }
    if costs.draft_cost:
        table["batch_sizes"] = [requests for requests, _ in costs.draft_cost]
        table["batch_overhead_ms"] = [_MS * seconds for _, seconds in costs.draft_cost]
    return table


def read_costs(document: object) -> RoundCosts:
    """The costs of a table.

    Raises:
        ConfigurationError: TensorRT-LLM would refuse it, it has schema 2, or it makes no curve.
    """
    fields = Fields.of(_TABLE, document)
    for name in _SCHEMA_2:
        if name in fields.values:
            raise fields.refusal(name, "belongs to schema 2, which holds no curve; name a file with a curve")
    fixed_ms = fields.number("fixed_overhead_ms", 0.0)
    if fixed_ms < 0.0:
        raise fields.refusal("fixed_overhead_ms", f"must be at least 0, not {fixed_ms}")
    sizes = fields.sizes("token_counts")
    steps = fields.numbers("step_time_ms", len(sizes))
    if min(steps) <= 0.0:
        raise fields.refusal("step_time_ms", f"must be above 0, not {list(steps)}")
    return RoundCosts(
        tuple((size, (fixed_ms + step_ms) / _MS) for size, step_ms in zip(sizes, steps, strict=True)),
        _draft_cost(fields),
    )


def _draft_cost(fields: Fields) -> Points:
    if "batch_sizes" not in fields.values and "batch_overhead_ms" not in fields.values:
        return ()
    requests = fields.sizes("batch_sizes")
    overheads = fields.numbers("batch_overhead_ms", len(requests))
    if min(overheads) < 0.0:
        raise fields.refusal("batch_overhead_ms", f"must be at least 0, not {list(overheads)}")
    return tuple((size, ms / _MS) for size, ms in zip(requests, overheads, strict=True))


def sts_calibration(temperatures: Temperatures) -> dict[str, Any]:
    """The temperatures, and for how many drafts they are."""
    values = list(temperatures.values)
    return {"max_draft_len": len(values), "sts_temperatures": values}


def read_temperatures(document: object, gamma: int) -> Temperatures:
    """The temperatures of a drafter with blocks of `gamma`; those of a file that SGLang wrote, too.

    Raises:
        ConfigurationError: TensorRT-LLM would refuse them; names the field.
    """
    fields = Fields.of(_STS, document)
    names = [name for name in ("sts_temperatures", "temperatures") if name in fields.values]
    found = [fields.numbers(name) for name in names or ("sts_temperatures",)]
    if any(other != found[0] for other in found):
        raise fields.refusal("sts_temperatures", "and temperatures differ; leave one of them out")
    if fields.whole("max_draft_len", least=1, default=gamma) != gamma:
        raise ConfigurationError(
            f"max_draft_len of {_STS} is {fields.values['max_draft_len']} and the drafter has gamma {gamma}; "
            "fit the temperatures again with dspark calibrate"
        )
    temperatures = Temperatures(found[0])
    temperatures.check_gamma(gamma)
    return temperatures
