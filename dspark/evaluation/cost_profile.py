"""What steps and drafts cost on this machine: read where it was measured before, else measured."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from dspark.engine.measurements import Measurements
from dspark.engine.profile import CONTEXT_LEN
from dspark.evaluation.generation import EnginePlan, load_engines


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Costs of a target and its drafter, and what they belong to.

    Attributes:
        dtype: of the target.
        num_threads: of torch.
        context_len: tokens that each request of a measured step already had.
        step_cost: (batch tokens, seconds) of the target.
        draft_cost: (slots of all blocks, seconds) of the drafter; empty without one.
        gamma: slots of a block; 0 without a drafter.
        key: of the weights, hardware and versions the steps were measured with.
        measured_at: when that was.
        is_new: whether it was just now. Drafts are measured at every start.
    """

    dtype: str
    num_threads: int
    context_len: int
    step_cost: tuple[tuple[int, float], ...]
    draft_cost: tuple[tuple[int, float], ...]
    gamma: int
    key: str
    measured_at: datetime
    is_new: bool


def read_profile(target: Path, drafter: Path | None, cache_dir: Path, *, is_fresh: bool) -> CostProfile:
    """Load the engines as `dspark up` would, and take what they tell the scheduler.

    Args:
        target: a prepared Hugging Face directory.
        drafter: a drafter directory, or None.
        cache_dir: where kernels and measurements are kept.
        is_fresh: whether to measure steps anew.

    Raises:
        ConfigurationError, ModelMismatchError: as the engines say.
    """
    measurements = Measurements(target, cache_dir)
    if is_fresh:
        measurements.forget("step-cost-*")
    started = datetime.now(UTC)
    engines = load_engines(EnginePlan(target, drafter, cache_dir=cache_dir))
    info = engines.target.info
    drafts = engines.drafter.info if engines.drafter is not None else None
    engines.worker.shutdown()
    # A disk that keeps nothing has no date either: then it was measured now.
    measured_at = measurements.made_at(f"step-cost-{info.dtype}") or started
    return CostProfile(
        dtype=info.dtype,
        num_threads=torch.get_num_threads(),
        context_len=CONTEXT_LEN,
        step_cost=info.step_cost,
        draft_cost=drafts.draft_cost if drafts else (),
        gamma=drafts.gamma if drafts else 0,
        key=measurements.key,
        measured_at=measured_at,
        is_new=measured_at >= started,
    )
