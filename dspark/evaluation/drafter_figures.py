"""How good a drafter is: what a full block is worth, and what it brings as it is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dspark.evaluation.acceptance import (
    accept_len,
    conditional_acceptance,
    mean_accepted,
    mean_committed,
    mean_scheduled,
)
from dspark.evaluation.generation import Engines, Generation, LocalDecoder
from dspark.evaluation.requests import make_requests
from dspark.evaluation.tasks import TaskPrompt, task_names

ALL_TASKS = "all"


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How prompts are decoded.

    Attributes:
        streams: prompts side by side.
        seed: of the first prompt, where sampled.
    """

    max_new_tokens: int
    temperature: float
    streams: int
    seed: int = 980406


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """A drafter on one task, or on all.

    Attributes:
        accept_len: DeepSpec's, every block verified in full.
        acceptance: by position, given that all drafts before were accepted; full blocks.
        mean_accepted: drafts accepted per round, full blocks; by rejection sampling where sampled.
        mean_coupled: the same with coupled sampling; None where greedy.
        mean_committed: tokens of the output per round as served, under Algorithm 1.
        mean_scheduled: drafts verified per round as served.
    """

    task: str
    num_prompts: int
    accept_len: float
    acceptance: tuple[float, ...]
    mean_accepted: float
    mean_coupled: float | None
    mean_committed: float
    mean_scheduled: float

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {
            "prompts": self.num_prompts,
            "accept_len": self.accept_len,
            "acceptance": list(self.acceptance),
            "mean_accepted": self.mean_accepted,
            "mean_accepted_coupled": self.mean_coupled,
            "mean_committed": self.mean_committed,
            "mean_scheduled": self.mean_scheduled,
        }


async def measure_drafter(
    engines: Engines, prompts: Sequence[TaskPrompt], plan: DecodePlan
) -> list[TaskFigures]:
    """Decode every prompt with full blocks, as served, and where sampled with full blocks and coupled too.

    Returns:
        The figures of each task, and of all together.
    """
    assert engines.drafter is not None, "there is nothing to measure without a drafter"
    gamma = engines.drafter.info.gamma
    # Room behind the limit, so that the last counted round is a whole one.
    full = await _decode(engines, prompts, plan, policy="fixed", extra_tokens=gamma)
    as_served = await _decode(engines, prompts, plan, policy="auto")
    coupled: list[Generation] = []
    if plan.temperature > 0.0:
        coupled = await _decode(engines, prompts, plan, policy="fixed", extra_tokens=gamma, is_coupled=True)
    figures = []
    for task in (*task_names(prompts), ALL_TASKS):
        places = [place for place, prompt in enumerate(prompts) if task in (prompt.task, ALL_TASKS)]
        whole, served = [full[place] for place in places], [as_served[place] for place in places]
        raced = [coupled[place] for place in places] if coupled else None
        figures.append(
            TaskFigures(
                task=task,
                num_prompts=len(places),
                accept_len=accept_len(whole, plan.max_new_tokens),
                acceptance=tuple(conditional_acceptance(whole, gamma)),
                mean_accepted=mean_accepted(whole, plan.max_new_tokens),
                mean_coupled=mean_accepted(raced, plan.max_new_tokens) if raced else None,
                mean_committed=mean_committed(served),
                mean_scheduled=mean_scheduled(served),
            )
        )
    return figures


async def _decode(
    engines: Engines,
    prompts: Sequence[TaskPrompt],
    plan: DecodePlan,
    *,
    policy: str,
    extra_tokens: int = 0,
    is_coupled: bool = False,
) -> list[Generation]:
    requests = make_requests(
        prompts,
        plan.max_new_tokens + extra_tokens,
        engines.target.info.eos_token_ids,
        temperature=plan.temperature,
        seed=plan.seed,
        is_coupled=is_coupled,
        label=f"{policy}-",
    )
    outputs: list[Generation] = []
    async with LocalDecoder(engines, policy=policy) as decoder:
        for start in range(0, len(requests), plan.streams):
            outputs += await decoder.generate(requests[start : start + plan.streams])
    return outputs
