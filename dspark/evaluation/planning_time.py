"""How long a policy thinks about one round, on this machine."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import numpy as np

from dspark.decoding.types import DrafterInfo, VerifierInfo
from dspark.evaluation.simulation.curves import Machine
from dspark.rounds.planner import planner_of
from dspark.rounds.step_ahead import StepAhead
from dspark.scheduling.ranking import Confidences

# Rounds with confidences of their own, taken in turns.
_NUM_ROUNDS = 32
_WARM_UP = 32
_CONTEXT_LEN = 1000
_US = 1e6
_PARTS = 20


@dataclass(frozen=True, slots=True)
class PlanningTime:
    """Microseconds of one plan, and what the plans were.

    Attributes:
        quiet_us: the median of the quietest of twenty parts of the plans: other programs only ever add to it.
        median_us: of all plans.
        p99_us: of all plans.
        mean_verified: drafts per request that the plans admit.
    """

    quiet_us: float
    median_us: float
    p99_us: float
    mean_verified: float

    def as_dict(self) -> dict[str, float]:
        """For the report."""
        return asdict(self)


def time_planning(
    policy: str, machine: Machine, *, num_requests: int, gamma: int, repeats: int, seed: int
) -> PlanningTime:
    """Time plans of full blocks, from the drafter's arrays to the prefix lengths, as a round asks for them.

    Args:
        policy: as `planner_of` names it ("fixed" is the full block).
        machine: whose costs the policy weighs.
        num_requests: of the round.
        gamma: drafts of each block.
        repeats: plans that count.
        seed: of the confidences.

    Raises:
        ConfigurationError: no such policy, or the policy cannot work with the machine's curve.
    """
    planner = planner_of(policy, fixed_len=gamma)
    planner.learn_costs(*_infos(machine, gamma))
    names = [f"request-{number}" for number in range(num_requests)]
    step = StepAhead(names, [gamma] * num_requests, num_held=num_requests * _CONTEXT_LEN)
    rounds = _rounds(num_requests, gamma, seed)
    seconds, num_verified = [], 0
    for repeat in range(_WARM_UP + repeats):
        blocks = rounds[repeat % _NUM_ROUNDS]
        if planner.prepares:
            # The drafter is at work meanwhile: nobody waits for it.
            planner.prepare(step)
        started = time.perf_counter()
        prefix_lens = planner.plan(step, blocks)
        seconds.append(time.perf_counter() - started)
        num_verified += sum(prefix_lens) if repeat >= _WARM_UP else 0
    micros = _US * np.array(seconds[_WARM_UP:])
    quiet_us = min(float(np.median(part)) for part in np.array_split(micros, min(_PARTS, repeats)))
    median_us, p99_us = np.percentile(micros, (50, 99)).tolist()
    return PlanningTime(quiet_us, median_us, p99_us, num_verified / (repeats * num_requests))


def _rounds(num_requests: int, gamma: int, seed: int) -> list[list[Confidences]]:
    """Confidences of easy and hard requests, one array per block as they come from a drafter."""
    drawn = np.random.default_rng(seed).beta(4.0, 1.0, (_NUM_ROUNDS, num_requests, gamma)).astype(np.float32)
    return [list(blocks) for blocks in drawn]


def _infos(machine: Machine, gamma: int) -> tuple[VerifierInfo, DrafterInfo]:
    verifier = VerifierInfo(machine.name, 2, 2, 1, 1, (), step_cost=machine.step_cost)
    return verifier, DrafterInfo(machine.name, gamma, (0,), 1, 2, draft_cost=machine.draft_cost)
