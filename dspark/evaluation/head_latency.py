"""What the sequential head adds to a round, by length of the block (paper Fig. 4).

Time does not depend on what a drafter has learnt, so untrained ones of each length are made. DSpark and
DFlash drafters differ in the Markov head alone: the difference of their drafts is what the head costs. A
round is a draft and the verification of the whole block and its anchor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from dspark.decoding.types import (
    Acceptance,
    DraftRequest,
    FeatureBatch,
    OpenRequest,
    PrefillItem,
    SamplingParams,
    VerifyItem,
    VerifyStatus,
)
from dspark.engine.draft import DraftEngine
from dspark.engine.draft_loading import context_pool
from dspark.engine.pages import PAGE_SIZE
from dspark.engine.target import TargetEngine
from dspark.models.checkpoint import build_drafter, read_target_tensors
from dspark.models.config import DrafterConfig
from dspark.models.drafter import DSparkDrafter

_GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)


@dataclass(frozen=True, slots=True)
class RoundLatency:
    """One request, one round, in seconds; each the fastest of some.

    Attributes:
        gamma: drafts of the block.
        parallel_s: a draft without the Markov head.
        draft_s: a draft with it.
        verify_s: one step of the target over the anchor and gamma drafts.
    """

    gamma: int
    parallel_s: float
    draft_s: float
    verify_s: float

    @property
    def head_share(self) -> float:
        """Of the round without the head, what the head adds."""
        return (self.draft_s - self.parallel_s) / (self.parallel_s + self.verify_s)


def measure_latencies(
    config: DrafterConfig,
    target: Path,
    gammas: Sequence[int],
    *,
    context_len: int,
    repeats: int,
    cache_dir: Path,
) -> list[RoundLatency]:
    """Measure blocks of each length, all of them in turn.

    Args:
        config: of the drafter, with a Markov head; its gamma is replaced.
        target: a prepared Hugging Face directory.
        gammas: lengths of blocks.
        context_len: committed tokens before the anchor.
        repeats: rounds of each length; the fastest counts.
        cache_dir: where kernels and measurements are kept.
    """
    room = context_len + (repeats + 2) * (max(gammas) + 1)
    engine = TargetEngine.load(target, pool_tokens=len(gammas) * (room + 2 * PAGE_SIZE), cache_dir=cache_dir)
    dtype = torch.bfloat16 if engine.info.dtype == "bfloat16" else torch.float32
    timed: dict[tuple[int, str], Callable[[], None]] = {}
    for gamma in gammas:
        with_head = replace(config, gamma=gamma)
        without = replace(with_head, markov_rank=0, confidence_head_with_markov=False)
        for name, one in (("draft", with_head), ("parallel", without)):
            drafts = _drafter_engine(_untrained(one, target, dtype), dtype, context_len, cache_dir)
            timed[gamma, name] = _one_draft(drafts, context_len)
        timed[gamma, "verify"] = _one_verify(engine, gamma, context_len)
    fastest = dict.fromkeys(timed, float("inf"))
    for _ in range(repeats + 1):  # the first one warms up
        for key, run in timed.items():
            started = time.perf_counter()
            run()
            fastest[key] = min(fastest[key], time.perf_counter() - started)
    return [
        RoundLatency(gamma, *(fastest[gamma, part] for part in ("parallel", "draft", "verify")))
        for gamma in gammas
    ]


def _untrained(config: DrafterConfig, target: Path, dtype: torch.dtype) -> DSparkDrafter:
    tensors = {name: rows.to(dtype) for name, rows in read_target_tensors(target).items()}
    d2t = torch.arange(config.num_draft_tokens) if config.draft_vocab_size else None
    drafter = build_drafter(config, tensors, d2t)
    assert isinstance(drafter, DSparkDrafter), config.kind
    drafter.initialise(torch.Generator().manual_seed(0), tensors["norm"])
    return drafter.to(dtype).eval()


def _drafter_engine(
    drafter: DSparkDrafter, dtype: torch.dtype, context_len: int, cache_dir: Path
) -> DraftEngine:
    num_pages = 2 + (context_len + drafter.config.gamma) // PAGE_SIZE
    pool = context_pool(drafter.config, num_pages, dtype=dtype, cache_dir=cache_dir)
    return DraftEngine(drafter, pool, cache_dir=cache_dir)


def _one_draft(engine: DraftEngine, context_len: int) -> Callable[[], None]:
    info = engine.info
    features = np.zeros((context_len, len(info.target_layer_ids) * info.hidden_size), dtype=np.float32)
    token_ids = np.ones(context_len, dtype=np.int32)
    engine.push(FeatureBatch("latency", 1, 0, token_ids, features))
    request = DraftRequest("latency", 1, context_len + 1, 1, _GREEDY, info.gamma)

    def run() -> None:
        assert engine.draft([request]), "the request is ready"

    return run


def _one_verify(engine: TargetEngine, gamma: int, context_len: int) -> Callable[[], None]:
    """A step over a block of drafts that the target has no reason to choose."""
    name = f"latency-{gamma}"
    prompt = tuple(range(1, context_len + 1))
    engine.open(OpenRequest(name, 1, prompt, len(prompt), _GREEDY))
    result, _ = engine.step([PrefillItem(name, 1, len(prompt))])
    committed = len(prompt) + len(result.outcomes[0].token_ids)

    def run() -> None:
        nonlocal committed
        drafts = np.full(gamma, 3, dtype=np.int32)
        found, _ = engine.step([VerifyItem(name, 1, committed, drafts)])
        assert found.outcomes[0].status is VerifyStatus.COMMITTED, found.outcomes[0].status
        committed += len(found.outcomes[0].token_ids)

    return run
