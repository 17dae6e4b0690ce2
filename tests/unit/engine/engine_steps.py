"""Short words for what the engine tests do over and over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dspark.decoding.types import (
    Acceptance,
    OpenRequest,
    PrefillItem,
    SamplingParams,
    VerifyItem,
    VerifyOutcome,
)
from dspark.engine.target import TargetEngine

GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
COUPLED = SamplingParams(temperature=1.0, seed=11, acceptance=Acceptance.COUPLED)
TAPS = (0, 2)


def load(path: Path, cache_dir: Path, *, pool_tokens: int = 1024, dtype: str = "float32") -> TargetEngine:
    return TargetEngine.load(
        path,
        dtype=dtype,
        target_layer_ids=TAPS,
        pool_tokens=pool_tokens,
        cache_dir=cache_dir,
        measure=False,
    )


def open_request(
    engine: TargetEngine,
    name: str,
    tokens: Sequence[int],
    *,
    epoch: int = 1,
    sampling: SamplingParams = GREEDY,
) -> None:
    engine.open(OpenRequest(name, epoch, tuple(tokens), len(tokens), sampling))


def verify(name: str, base: int, drafts: Sequence[int] = (), *, epoch: int = 1) -> VerifyItem:
    return VerifyItem(name, epoch, base, np.array(drafts, dtype=np.int32))


def step(engine: TargetEngine, *items: PrefillItem | VerifyItem) -> list[VerifyOutcome]:
    return list(engine.step(items)[0].outcomes)


def start(
    engine: TargetEngine, name: str, tokens: Sequence[int], *, sampling: SamplingParams = GREEDY
) -> int:
    open_request(engine, name, tokens, sampling=sampling)
    (outcome,) = step(engine, PrefillItem(name, 1, len(tokens)))
    return outcome.token_ids[0]


def decode(
    engine: TargetEngine, name: str, tokens: Sequence[int], count: int, *, sampling: SamplingParams = GREEDY
) -> list[int]:
    """Plain decoding of `count` tokens."""
    output = [start(engine, name, tokens, sampling=sampling)]
    while len(output) < count:
        output += step(engine, verify(name, len(tokens) + len(output)))[0].token_ids
    engine.close([name])
    return output
