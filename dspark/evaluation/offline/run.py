"""Which passes an evaluation makes, and all of them one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dspark.evaluation.generation import Engines
from dspark.evaluation.offline.decode import DecodePlan, PassPlan, decode_pass
from dspark.evaluation.offline.results import Pass, PassKind, Results
from dspark.evaluation.tasks import TaskPrompt

SWEEPS = ("auto", "run", "off")


def pass_plans(
    temperatures: Sequence[float], *, sweep: str, thresholds: Sequence[float], only_blocks: bool
) -> list[PassPlan]:
    """The passes to make.

    Args:
        temperatures: to decode at.
        sweep: "auto": greedy blocks at every position, elsewhere nothing but the whole blocks; "run": a pass
            for every threshold; "off": no sweep.
        thresholds: of the sweep.
        only_blocks: leave out what does not bear on whole blocks under the rule of DeepSpec.
    """
    assert sweep in SWEEPS, sweep
    plans = []
    for temperature in temperatures:
        plans.append(PassPlan(PassKind.FULL, temperature))
        if not only_blocks:
            plans.append(PassPlan(PassKind.SERVED, temperature))
        if not only_blocks and temperature > 0.0:
            plans.append(PassPlan(PassKind.COUPLED, temperature))
        if sweep == "auto" and temperature == 0.0:
            plans.append(PassPlan(PassKind.DENSE, temperature))
        if sweep == "run":
            plans += [PassPlan(PassKind.THRESHOLD, temperature, level) for level in thresholds]
    return plans


async def run_passes(
    engines: Engines,
    prompts: Sequence[TaskPrompt],
    plan: DecodePlan,
    plans: Sequence[PassPlan],
    results: Results,
    tell: Callable[[str], None],
) -> list[Pass]:
    """Make the passes.

    Args:
        engines: with a drafter.
        prompts: encoded.
        plan: limits.
        plans: what to decode.
        results: without passes; its calibration is the one that the drafter applies.
        tell: takes a line about each pass before it begins.
    """
    passes = []
    for number, one in enumerate(plans):
        level = "" if one.threshold is None else f" {one.threshold:g}"
        tell(
            f"pass {number + 1} of {len(plans)}: {one.kind.value}{level}, T = {one.temperature:g}, "
            f"{len(prompts)} prompts"
        )
        passes.append(await decode_pass(engines, prompts, plan, one, results.scaling(one.temperature)))
    return passes
