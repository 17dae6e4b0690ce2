"""What the engine refuses, and that nothing was done then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from engine_steps import decode, load, open_request, start, step, verify
from tiny_targets import VOCAB, some_tokens

from dspark.decoding.types import (
    Acceptance,
    PrefillItem,
    SamplingParams,
    SparseProbs,
    VerifyItem,
    VerifyStatus,
)
from dspark.engine.target import TargetEngine
from dspark.errors import (
    ConfigurationError,
    ContextTooLongError,
    EngineError,
    InvalidRequestError,
    ModelMismatchError,
    StaleEpochError,
)


def test_items_for_another_state_are_stale_and_change_nothing(engine: TargetEngine) -> None:
    tokens = some_tokens(10)
    plain = decode(engine, "plain", tokens, 3)
    open_request(engine, "young", tokens)
    start(engine, "a", tokens)
    outcomes = step(
        engine,
        verify("a", 10),
        verify("a", 12),
        verify("a", 11, epoch=2),
        PrefillItem("a", 1, 5),
        verify("young", 10),
        verify("nobody", 4),
        PrefillItem("nobody", 1, 4),
    )
    assert [outcome.status for outcome in outcomes] == [VerifyStatus.STALE] * 5 + [VerifyStatus.UNKNOWN] * 2
    assert step(engine, verify("a", 11))[0].token_ids == (plain[1],)


def test_the_second_item_of_a_request_in_one_step_is_stale(engine: TargetEngine) -> None:
    start(engine, "a", some_tokens(10))
    outcomes = step(engine, verify("a", 11), verify("a", 11))
    assert [outcome.status for outcome in outcomes] == [VerifyStatus.COMMITTED, VerifyStatus.STALE]


def test_an_older_epoch_cannot_open_and_a_newer_one_replaces(engine: TargetEngine) -> None:
    start(engine, "a", some_tokens(40))
    with pytest.raises(StaleEpochError, match="open with epoch 1"):
        open_request(engine, "a", some_tokens(4), epoch=0)
    open_request(engine, "a", some_tokens(4), epoch=2)
    assert engine.num_free_pages == engine.info.num_pages
    assert step(engine, verify("a", 41))[0].status is VerifyStatus.STALE
    assert step(engine, PrefillItem("a", 2, 4))[0].status is VerifyStatus.COMMITTED


def test_a_request_without_pages_is_refused_alone(tiny_llama: Path, cache_dir: Path) -> None:
    engine = load(tiny_llama, cache_dir, pool_tokens=64)
    start(engine, "a", some_tokens(30))
    open_request(engine, "b", some_tokens(48))
    outcomes = step(engine, PrefillItem("b", 1, 48), verify("a", 31))
    assert [outcome.status for outcome in outcomes] == [VerifyStatus.OUT_OF_PAGES, VerifyStatus.COMMITTED]
    engine.close(["a"])
    assert step(engine, PrefillItem("b", 1, 48))[0].status is VerifyStatus.COMMITTED


@pytest.mark.parametrize(
    ("tokens", "error", "text"),
    [
        ([], InvalidRequestError, "at least one token"),
        ([5, VOCAB], InvalidRequestError, r"\[0, 97\)"),
        ([5, -1], InvalidRequestError, r"\[0, 97\)"),
        ([1] * 257, ContextTooLongError, "257 tokens, the context holds 256"),
    ],
)
def test_a_request_that_cannot_be_held_says_why(
    engine: TargetEngine, tokens: list[int], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        open_request(engine, "a", tokens)


@pytest.mark.parametrize(
    ("item", "error", "text"),
    [
        (PrefillItem("a", 1, 0), InvalidRequestError, "at least one token"),
        (verify("a", 11, [VOCAB]), InvalidRequestError, "another target"),
        (verify("a", 250, [1] * 7), ContextTooLongError, "position 257"),
    ],
)
def test_a_wrong_item_says_why_and_nothing_is_computed(
    engine: TargetEngine, item: PrefillItem | VerifyItem, error: type[Exception], text: str
) -> None:
    start(engine, "b", some_tokens(4))
    with pytest.raises(error, match=text):
        engine.step([verify("b", 5), item])
    assert step(engine, verify("b", 5))[0].status is VerifyStatus.COMMITTED


def test_a_rejection_draft_without_its_distribution_is_the_callers_fault(engine: TargetEngine) -> None:
    sampling = SamplingParams(temperature=1.0, seed=3, acceptance=Acceptance.REJECTION)
    start(engine, "a", some_tokens(6), sampling=sampling)
    with pytest.raises(InvalidRequestError):
        engine.step([verify("a", 7, [4])])
    probs = SparseProbs(np.array([4], dtype=np.int32), np.array([1.0], dtype=np.float32))
    item = VerifyItem("a", 1, 7, np.array([4], dtype=np.int32), (probs,))
    assert step(engine, item)[0].status is VerifyStatus.COMMITTED


def test_a_failed_forward_commits_nothing(engine: TargetEngine, tiny_llama: Path, cache_dir: Path) -> None:
    class Broken:
        use_kernels = True

        def hidden(self, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
            raise RuntimeError("out of memory")

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden

    working = engine._target.forward
    first = start(engine, "a", some_tokens(6))
    object.__setattr__(engine._target, "forward", Broken())
    with pytest.raises(EngineError, match="a step of 1 tokens: out of memory"):
        engine.step([verify("a", 7)])
    object.__setattr__(engine._target, "forward", working)
    assert [first, *step(engine, verify("a", 7))[0].token_ids] == decode(engine, "b", some_tokens(6), 2)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"dtype": "int8"}, ConfigurationError, "choose auto, bfloat16, float32, float64"),
        ({"pool_tokens": 3}, ConfigurationError, "at least 16 tokens"),
        ({"target_layer_ids": (3,)}, ModelMismatchError, "names layer 3; .* has 3 layers"),
    ],
)
def test_a_wrong_setting_says_what_to_change(
    tiny_llama: Path, cache_dir: Path, settings: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        TargetEngine.load(tiny_llama, cache_dir=cache_dir, measure=False, **settings)
