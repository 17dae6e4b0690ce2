"""How good a drafter is: what a full block is worth, and what it brings as it is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dspark.evaluation.acceptance import (
    accept_len,
    conditional_acceptance,
    mean_committed,
    mean_scheduled,
)
from dspark.evaluation.generation import Engines, Generation, LocalDecoder
from dspark.evaluation.requests import make_requests
from dspark.evaluation.tasks import TaskPrompt, task_names


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
    """A drafter on one task.

    Attributes:
        accept_len: DeepSpec's, every block verified in full.
        acceptance: by position, given that all drafts before were accepted; full blocks.
        mean_committed: tokens of the output per round as served, under Algorithm 1.
        mean_scheduled: drafts verified per round as served.
    """

    task: str
    num_prompts: int
    accept_len: float
    acceptance: tuple[float, ...]
    mean_committed: float
    mean_scheduled: float

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {
            "prompts": self.num_prompts,
            "accept_len": self.accept_len,
            "acceptance": list(self.acceptance),
            "mean_committed": self.mean_committed,
            "mean_scheduled": self.mean_scheduled,
        }


async def measure_drafter(
    engines: Engines, prompts: Sequence[TaskPrompt], plan: DecodePlan
) -> list[TaskFigures]:
    """Decode every prompt twice, with full blocks and as served, and take the figures of each task."""
    assert engines.drafter is not None, "there is nothing to measure without a drafter"
    gamma = engines.drafter.info.gamma
    # Room behind the limit, so that the last counted round is a whole one.
    full = await _decode(engines, prompts, plan, policy="fixed", extra_tokens=gamma)
    as_served = await _decode(engines, prompts, plan, policy="auto")
    figures = []
    for task in task_names(prompts):
        places = [place for place, prompt in enumerate(prompts) if prompt.task == task]
        whole, served = [full[place] for place in places], [as_served[place] for place in places]
        figures.append(
            TaskFigures(
                task=task,
                num_prompts=len(places),
                accept_len=accept_len(whole, plan.max_new_tokens),
                acceptance=tuple(conditional_acceptance(whole, gamma)),
                mean_committed=mean_committed(served),
                mean_scheduled=mean_scheduled(served),
            )
        )
    return figures


async def _decode(
    engines: Engines, prompts: Sequence[TaskPrompt], plan: DecodePlan, *, policy: str, extra_tokens: int = 0
) -> list[Generation]:
    requests = make_requests(
        prompts,
        plan.max_new_tokens + extra_tokens,
        engines.target.info.eos_token_ids,
        temperature=plan.temperature,
        seed=plan.seed,
        label=f"{policy}-",
    )
    outputs: list[Generation] = []
    async with LocalDecoder(engines, policy=policy) as decoder:
        for start in range(0, len(requests), plan.streams):
            outputs += await decoder.generate(requests[start : start + plan.streams])
    return outputs
