"""What the engine tells the scheduler about itself: read from the model, checked and measured."""

from __future__ import annotations

import dataclasses

from dspark.decoding.types import VerifierInfo
from dspark.engine.exactness import check_exactness
from dspark.engine.loading import LoadedTarget
from dspark.engine.measurements import Measurements
from dspark.engine.pages import PagePool
from dspark.engine.profile import measure_step_cost


def describe(target: LoadedTarget, pool: PagePool) -> VerifierInfo:
    """Everything that needs no forward pass."""
    config = target.config
    return VerifierInfo(
        name=target.name,
        vocab_size=int(config.vocab_size),
        # No request can outgrow the pool, however long the model's context is.
        max_context_len=min(int(config.max_position_embeddings), pool.num_pages * pool.page_size),
        page_size=pool.page_size,
        num_pages=pool.num_pages,
        eos_token_ids=target.eos_token_ids,
        dtype=str(target.dtype).removeprefix("torch."),
        exact_reason="not checked",
    )


def measured(
    info: VerifierInfo, target: LoadedTarget, pool: PagePool, measurements: Measurements
) -> VerifierInfo:
    """Add the exactness check, made anew at every start, and the cost of steps, measured once per machine."""
    exactness = check_exactness(target, pool)
    name = f"step-cost-{info.dtype}"
    points = measurements.recall(name)
    if not points:
        points = measure_step_cost(target, pool)
        measurements.record(name, points)
    step_cost = tuple((int(size), float(seconds)) for size, seconds in points)
    return dataclasses.replace(
        info, is_exact=exactness.is_exact, exact_reason=exactness.reason, step_cost=step_cost
    )
