"""What the engine tells the scheduler about itself: read from the model, checked and measured."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

from dspark.decoding.types import StepCost, VerifierInfo
from dspark.engine.exactness import check_exactness
from dspark.engine.huge_pages import huge_page_share, small_pages_sentence
from dspark.engine.loading import LoadedTarget
from dspark.engine.measurements import Measurements
from dspark.engine.pages import PagePool
from dspark.engine.profile import measure_step_cost

_log = logging.getLogger(__name__)


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
    """Add the exactness check, made anew at every start, and the cost of steps, measured once per machine.

    Warns where weights lie on small pages, which makes steps slower.
    """
    exactness = check_exactness(target, pool)
    if sentence := small_pages_sentence(huge_page_share()):
        _log.warning("%s", sentence)
    name = f"step-cost-{info.dtype}"
    step_cost = _known(measurements.recall(name))
    if not step_cost:
        started = time.perf_counter()
        step_cost = measure_step_cost(target, pool)
        _log.info("measured %d kinds of steps in %.1f s", len(step_cost), time.perf_counter() - started)
        measurements.record(name, [dataclasses.astuple(one) for one in step_cost])
    return dataclasses.replace(
        info, is_exact=exactness.is_exact, exact_reason=exactness.reason, step_cost=step_cost
    )


def _known(rows: Any) -> tuple[StepCost, ...]:
    """What was recorded; nothing where it is of a version that kept no contexts."""
    try:
        return tuple(
            StepCost(int(size), float(seconds), int(num_requests), int(context_len))
            for size, seconds, num_requests, context_len in rows
        )
    except (TypeError, ValueError):
        return ()
