"""The cost table and the calibration that SGLang reads.

`--speculative-dspark-sps-table-path` takes one of two tables (`dspark_sps.py` of sgl-project/sglang at
45b76f5). The additive one has seconds as bias + alpha(requests) + theta(tokens), linear between probes. The
other has steps per second by tokens; what lies between two probes counts as the lower one. What SGLang calls
a step is a whole round.

`--speculative-dspark-confidence-sts-path` takes temperatures (`dspark_sts.py` at 9e16e2d); the planner
(`dspark_planner.py` at 00c3cff) refuses them unless there are gamma.
"""

from __future__ import annotations

from typing import Any

from dspark.scheduling.formats.costs import RoundCosts
from dspark.scheduling.formats.fields import Fields
from dspark.scheduling.formats.temperatures import Temperatures

_ADDITIVE, _SPS, _STS = "SGLang's additive SPS table", "SGLang's SPS table", "SGLang's STS calibration"


def additive_table(costs: RoundCosts) -> dict[str, Any]:
    """Drafting as alpha, the target's step as bias and theta."""
    # SGLang refuses a bias of 0; the cheapest step is what no plan can save.
    bias_s = costs.step_cost[0][1]
    drafts = costs.draft_cost or ((1, 0.0),)
    return {
        "bias_seconds": bias_s,
        "bs_probes": [requests for requests, _ in drafts],
        "alpha_seconds": [seconds for _, seconds in drafts],
        "m_probes": [size for size, _ in costs.step_cost],
        "theta_seconds": [seconds - bias_s for _, seconds in costs.step_cost],
    }


def sps_table(costs: RoundCosts, gamma: int) -> dict[str, Any]:
    """Rounds per second of B tokens, from as few requests as these take: B / (gamma + 1), at least one.

    That is how SGLang's own profiler measures such a table.
    """
    sizes = [size for size, _ in costs.step_cost]
    seconds = [costs.step_s(size) + costs.draft_s(max(1.0, size / (gamma + 1))) for size in sizes]
    return {
        "sample_batch_tokens": sizes,
        "sample_steps_per_sec": [1.0 / one for one in seconds],
        "max_batch_tokens": sizes[-1],
    }


def read_costs(document: object) -> RoundCosts:
    """The costs of either table; those of the one by tokens alone have no drafts of their own.

    Raises:
        ConfigurationError: SGLang would refuse it, or it makes no curve; names the field.
    """
    fields = Fields.of(_SPS, document)
    if "bias_seconds" in fields.values:
        return _read_additive(Fields(_ADDITIVE, fields.values))
    return _read_sps(fields)


def _read_additive(fields: Fields) -> RoundCosts:
    bias_s = fields.number("bias_seconds")
    if bias_s <= 0.0:
        raise fields.refusal("bias_seconds", f"must be above 0, not {bias_s}")
    sizes, requests = fields.sizes("m_probes"), fields.sizes("bs_probes")
    theta = fields.numbers("theta_seconds", len(sizes))
    alpha = fields.numbers("alpha_seconds", len(requests))
    return RoundCosts(
        tuple((size, bias_s + seconds) for size, seconds in zip(sizes, theta, strict=True)),
        tuple(zip(requests, alpha, strict=True)) if any(alpha) else (),
    )


def _read_sps(fields: Fields) -> RoundCosts:
    sizes = fields.sizes("sample_batch_tokens")
    speeds = fields.numbers("sample_steps_per_sec", len(sizes))
    if min(speeds) <= 0.0:
        raise fields.refusal("sample_steps_per_sec", f"must be above 0, not {list(speeds)}")
    # SGLang wants it there, at least as large as the largest probe, and then looks nothing up by it.
    fields.whole("max_batch_tokens", least=sizes[-1])
    return RoundCosts(tuple((size, 1.0 / speed) for size, speed in zip(sizes, speeds, strict=True)))


def sts_calibration(temperatures: Temperatures) -> dict[str, Any]:
    """The temperatures; what is not known of them is left out, as SGLang leaves it out."""
    known = {
        "dataset": temperatures.origin,
        "num_samples": temperatures.num_blocks,
        "ece_before": list(temperatures.before),
        "ece_after": list(temperatures.after),
    }
    told = {name: value for name, value in known.items() if value}
    return {"temperatures": list(temperatures.values), **told}


def read_temperatures(document: object, gamma: int) -> Temperatures:
    """The temperatures of a drafter with blocks of `gamma`.

    Raises:
        ConfigurationError: SGLang would refuse them; names the field.
    """
    fields = Fields.of(_STS, document)
    errors = {name: fields.numbers(name) for name in ("ece_before", "ece_after") if name in fields.values}
    temperatures = Temperatures(
        fields.numbers("temperatures"),
        num_blocks=fields.whole("num_samples", least=0, default=0),
        before=errors.get("ece_before", ()),
        after=errors.get("ece_after", ()),
        origin=str(fields.values.get("dataset", "")),
    )
    temperatures.check_gamma(gamma)
    return temperatures
