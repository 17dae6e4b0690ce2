"""What a step commits, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_steps import COUPLED, decode, load, open_request, start, step, verify
from tiny_targets import VOCAB, some_tokens, stock

from dspark.decoding.types import (
    Acceptance,
    OpenRequest,
    PrefillItem,
    SamplingParams,
    VerifyStatus,
)
from dspark.engine.taps import feature_rows
from dspark.engine.target import TargetEngine


def stock_greedy(path: Path, tokens: Sequence[int], count: int) -> list[int]:
    sequence = list(tokens)
    for _ in range(count):
        sequence.append(int(stock(path, torch.float32, sequence)[0][-1].argmax()))
    return sequence[len(tokens) :]


def test_plain_decoding_is_greedy_decoding_of_the_stock_model(engine: TargetEngine, tiny_llama: Path) -> None:
    tokens = some_tokens(21)
    assert decode(engine, "a", tokens, 6) == stock_greedy(tiny_llama, tokens, 6)


def test_a_prefill_in_chunks_commits_the_token_of_a_whole_one(engine: TargetEngine) -> None:
    tokens = some_tokens(40)
    expected = start(engine, "whole", tokens)
    open_request(engine, "chunks", tokens)
    outcomes = [step(engine, PrefillItem("chunks", 1, size))[0] for size in (1, 16, 20, 99)]
    assert [outcome.status for outcome in outcomes[:3]] == [VerifyStatus.PREFILLING] * 3
    assert [outcome.token_ids for outcome in outcomes[:3]] == [()] * 3
    assert outcomes[3].status is VerifyStatus.COMMITTED
    assert (outcomes[3].base_committed_len, outcomes[3].token_ids) == (40, (expected,))


def test_accepted_drafts_and_the_bonus_token_are_committed(engine: TargetEngine) -> None:
    tokens = some_tokens(18)
    plain = decode(engine, "plain", tokens, 6)
    start(engine, "a", tokens)
    (outcome,) = step(engine, verify("a", 19, plain[1:4]))
    assert (outcome.num_accepted, list(outcome.token_ids)) == (3, plain[1:5])
    assert step(engine, verify("a", 23))[0].token_ids == (plain[5],)


def test_a_rejected_draft_leaves_no_trace(engine: TargetEngine) -> None:
    tokens = some_tokens(30)
    plain = decode(engine, "plain", tokens, 8)
    wrong = [(token + 1) % VOCAB for token in plain]
    start(engine, "a", tokens)
    output = plain[:1]
    # Wrong at once, wrong after one right draft, then none, then all right: the text never changes.
    for drafts in (wrong[1:4], [plain[2], *wrong[3:7]], [], plain[5:7]):
        (outcome,) = step(engine, verify("a", 30 + len(output), drafts))
        output += outcome.token_ids
    assert output == plain


def test_requests_of_one_step_do_not_disturb_each_other(engine: TargetEngine) -> None:
    prompts = {name: some_tokens(length, seed=length) for name, length in (("a", 7), ("b", 33), ("c", 16))}
    plain = {name: decode(engine, name, tokens, 5) for name, tokens in prompts.items()}
    for name in ("a", "b"):
        start(engine, name, prompts[name])
    open_request(engine, "c", prompts["c"])
    outcomes = step(
        engine,
        verify("b", 34, plain["b"][1:3]),
        PrefillItem("c", 1, 16),
        verify("a", 8, [plain["a"][1], (plain["a"][2] + 1) % VOCAB]),
    )
    assert [list(outcome.token_ids) for outcome in outcomes] == [
        plain["b"][1:4],
        plain["c"][:1],
        plain["a"][1:3],
    ]


def test_a_restored_request_continues_as_if_nothing_had_happened(engine: TargetEngine) -> None:
    tokens = some_tokens(25)
    plain = decode(engine, "plain", tokens, 6, sampling=COUPLED)
    engine.open(OpenRequest("a", 2, (*tokens, *plain[:3]), 25, COUPLED))
    open_items = [PrefillItem("a", 2, 10), PrefillItem("a", 2, 100)]
    assert step(engine, open_items[0])[0].status is VerifyStatus.PREFILLING
    (outcome,) = step(engine, open_items[1])
    assert outcome.token_ids == (plain[3],)
    assert step(engine, verify("a", 29, plain[4:5], epoch=2))[0].token_ids == tuple(plain[4:6])


def test_coupled_output_does_not_depend_on_the_drafts(engine: TargetEngine) -> None:
    tokens = some_tokens(12)
    plain = decode(engine, "plain", tokens, 6, sampling=COUPLED)
    start(engine, "a", tokens, sampling=COUPLED)
    output = plain[:1]
    while len(output) < 6:
        drafts = [plain[len(output)], 3] if len(output) < 5 else []
        output += step(engine, verify("a", 12 + len(output), drafts))[0].token_ids
    assert output[:6] == plain


def test_features_are_those_of_computed_and_committed_positions(
    engine: TargetEngine, tiny_llama: Path
) -> None:
    tokens = some_tokens(20)
    plain = decode(engine, "plain", tokens, 4)
    open_request(engine, "a", tokens)
    batches = engine.step([PrefillItem("a", 1, 12)])[1]
    batches += engine.step([PrefillItem("a", 1, 12)])[1]
    drafts = [plain[1], plain[2], (plain[3] + 1) % VOCAB]
    batches += engine.step([verify("a", 21, drafts)])[1]
    assert [(batch.start, len(batch.features)) for batch in batches] == [(0, 12), (12, 8), (20, 3)]
    _, states = stock(tiny_llama, torch.float32, [*tokens, *plain[:3]])
    expected = torch.cat([states[1], stock_last_layer(engine, [*tokens, *plain[:3]])], dim=-1)
    found = torch.cat([feature_rows(batch.features) for batch in batches])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def stock_last_layer(engine: TargetEngine, tokens: Sequence[int]) -> torch.Tensor:
    """The raw output of the last layer, in one pass (transformers only shows it normed)."""
    open_request(engine, "whole", tokens)
    (batch,) = engine.step([PrefillItem("whole", 1, len(tokens))])[1]
    return feature_rows(batch.features)[:, 64:]


def test_bfloat16_features_travel_as_their_words(tiny_llama: Path, cache_dir: Path) -> None:
    engine = load(tiny_llama, cache_dir, dtype="bfloat16")
    open_request(engine, "a", some_tokens(5))
    (batch,) = engine.step([PrefillItem("a", 1, 5)])[1]
    assert batch.features.dtype == np.uint16
    assert feature_rows(batch.features).dtype == torch.bfloat16
    assert batch.features.shape == (5, 128)


def test_features_come_with_the_token_ids_of_their_positions(engine: TargetEngine) -> None:
    tokens = some_tokens(18)
    plain = decode(engine, "plain", tokens, 3)
    open_request(engine, "a", tokens)
    seen: list[int] = []
    for item in (PrefillItem("a", 1, 7), PrefillItem("a", 1, 11), verify("a", 19, [plain[1], VOCAB - 1])):
        (batch,) = engine.step([item])[1]
        assert batch.start == len(seen)
        seen += batch.token_ids.tolist()
    # what is committed before the anchor, and no draft that was rejected
    assert seen == [*tokens, *plain[:2]]


def test_a_drafter_that_taps_no_layers_is_handed_token_ids(tiny_llama: Path, cache_dir: Path) -> None:
    engine = TargetEngine.load(
        tiny_llama, dtype="float32", target_layer_ids=(), cache_dir=cache_dir, measure=False
    )
    open_request(engine, "a", some_tokens(5))
    (batch,) = engine.step([PrefillItem("a", 1, 5)])[1]
    assert batch.token_ids.tolist() == some_tokens(5)
    assert batch.features.shape == (5, 0)


def test_an_engine_without_a_drafter_hands_out_no_features(tiny_llama: Path, cache_dir: Path) -> None:
    engine = TargetEngine.load(tiny_llama, dtype="float32", cache_dir=cache_dir, measure=False)
    open_request(engine, "a", some_tokens(5))
    assert engine.step([PrefillItem("a", 1, 5)])[1] == []


def test_an_empty_step_is_a_step_of_nothing(engine: TargetEngine) -> None:
    result, features = engine.step([])
    assert (result.outcomes, result.batch_tokens, features) == ((), 0, [])


def test_logprobs_are_given_when_asked_for(engine: TargetEngine, tiny_llama: Path) -> None:
    tokens = some_tokens(9)
    sampling = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY, num_logprobs=2)
    open_request(engine, "a", tokens, sampling=sampling)
    (outcome,) = step(engine, PrefillItem("a", 1, 9))
    expected = stock(tiny_llama, torch.float32, tokens)[0][-1].log_softmax(-1)
    assert outcome.logprobs[0].logprob == pytest.approx(float(expected.max()), abs=1e-4)
    assert outcome.logprobs[0].top_token_ids == tuple(expected.topk(2).indices.tolist())
