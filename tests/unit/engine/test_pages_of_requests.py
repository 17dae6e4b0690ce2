"""Pages in = pages out, whatever is opened, computed and closed in whatever order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_targets import some_tokens

from dspark.decoding.types import (
    Acceptance,
    OpenRequest,
    PrefillItem,
    SamplingParams,
    VerifyItem,
    VerifyStatus,
)
from dspark.engine.target import TargetEngine

GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
NAMES = ("a", "b", "c")
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from(NAMES), st.integers(1, 60)),
        st.tuples(st.just("close"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 40), st.integers(0, 5)),
    ),
    max_size=14,
)


@pytest.fixture(scope="module")
def small_engine(tiny_llama: Path, cache_dir: Path) -> TargetEngine:
    return TargetEngine.load(tiny_llama, dtype="float32", pool_tokens=112, cache_dir=cache_dir, measure=False)


def step_all(engine: TargetEngine, bases: dict[str, int | None], chunk: int, num_drafts: int) -> int:
    """One step over all open requests; returns how many had no pages."""
    drafts = np.full(num_drafts, 7, dtype=np.int32)
    items = [
        PrefillItem(name, 1, chunk) if base is None else VerifyItem(name, 1, base, drafts)
        for name, base in bases.items()
    ]
    result, _ = engine.step(items)
    for name, outcome in zip(list(bases), result.outcomes, strict=True):
        if outcome.status is VerifyStatus.COMMITTED:
            bases[name] = outcome.base_committed_len + len(outcome.token_ids)
    assert result.num_free_pages == engine.num_free_pages
    return sum(outcome.status is VerifyStatus.OUT_OF_PAGES for outcome in result.outcomes)


@given(actions=ACTIONS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_page_comes_back(small_engine: TargetEngine, actions: list[tuple[str, str | int, int]]) -> None:
    engine, bases = small_engine, dict[str, int | None]()
    for kind, first, second in actions:
        if kind == "open":
            tokens = tuple(some_tokens(second))
            engine.open(OpenRequest(str(first), 1, tokens, second, GREEDY))
            bases[str(first)] = None
        elif kind == "close":
            engine.close([str(first), "never opened"])
            bases.pop(str(first), None)
        else:
            step_all(engine, bases, int(first), second)
    held = engine.info.num_pages - engine.num_free_pages
    assert held >= sum(base is not None for base in bases.values())
    engine.close_all()
    assert engine.num_free_pages == engine.info.num_pages
