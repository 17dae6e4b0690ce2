"""The engine under penalties, bias and minimum: the text of plain decoding, and that of transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_steps import COUPLED, GREEDY, decode, open_request, start, step, verify
from tiny_targets import VOCAB, some_tokens, stock
from transformers import AutoModelForCausalLM

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.types import OpenRequest, PrefillItem, SamplingParams
from dspark.engine.target import TargetEngine
from dspark.errors import InvalidRequestError
from dspark.models.target import quiet_transformers

EOS = 2
ADJUSTMENTS = LogitAdjustments(
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias=((5, 1.0), (EOS, 3.0)),
    min_tokens=4,
    ending_token_ids=(EOS,),
)
KINDS = pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])


def adjusted(sampling: SamplingParams, adjustments: LogitAdjustments = ADJUSTMENTS) -> SamplingParams:
    return replace(sampling, adjustments=adjustments)


@torch.inference_mode()
def generated(path: Path, tokens: list[int], count: int) -> list[int]:
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        output = model.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=5,
            repetition_penalty=1.4,
            sequence_bias=[[[EOS], 4.0], [[7], -2.0]],
            eos_token_id=EOS,
            pad_token_id=EOS,
        )
    return output[0, len(tokens) :].tolist()


def test_greedy_text_is_that_of_transformers_with_its_own_processors(
    engine: TargetEngine, tiny_llama: Path
) -> None:
    asked = LogitAdjustments(
        repetition_penalty=1.4, logit_bias=((EOS, 4.0), (7, -2.0)), min_tokens=5, ending_token_ids=(EOS,)
    )
    for seed in range(4):
        tokens = some_tokens(15, seed=seed)
        expected = generated(tiny_llama, tokens, 12)
        found = decode(engine, "a", tokens, len(expected), sampling=adjusted(GREEDY, asked))
        assert found == expected
        assert found != decode(engine, "b", tokens, len(expected))


@KINDS
def test_the_text_does_not_depend_on_the_drafts(engine: TargetEngine, sampling: SamplingParams) -> None:
    tokens, asked = some_tokens(12), adjusted(sampling)
    plain = decode(engine, "plain", tokens, 14, sampling=asked)
    # As many right drafts as fit, none, a wrong one at once, and wrong ones behind right ones.
    for num_right, num_wrong in ((6, 0), (0, 0), (0, 2), (2, 2), (3, 1)):
        start(engine, "a", tokens, sampling=asked)
        output = plain[:1]
        while len(output) < 10:
            place = len(output)
            right = plain[place : place + num_right]
            wrong = [(plain[place + len(right)] + 1) % VOCAB] * num_wrong
            (outcome,) = step(engine, verify("a", 12 + place, [*right, *wrong]))
            assert outcome.num_accepted == num_right
            output += outcome.token_ids
            if place + 2 * num_right + num_wrong + 2 > 14:
                break
        assert output == plain[: len(output)]
        engine.close(["a"])


@KINDS
def test_a_restored_request_counts_its_output_as_output(
    engine: TargetEngine, sampling: SamplingParams
) -> None:
    tokens, asked = some_tokens(25), adjusted(sampling)
    plain = decode(engine, "plain", tokens, 8, sampling=asked)
    engine.open(OpenRequest("a", 2, (*tokens, *plain[:3]), 25, asked))
    (outcome,) = step(engine, PrefillItem("a", 2, 100))
    assert outcome.token_ids == (plain[3],)
    assert step(engine, verify("a", 29, plain[4:7], epoch=2))[0].token_ids == tuple(plain[4:8])


def test_adjusted_requests_leave_their_neighbours_alone(engine: TargetEngine) -> None:
    tokens = some_tokens(20)
    plain, bent = decode(engine, "p", tokens, 6), decode(engine, "q", tokens, 6, sampling=adjusted(GREEDY))
    assert plain != bent
    start(engine, "a", tokens)
    start(engine, "b", tokens, sampling=adjusted(GREEDY))
    outcomes = step(engine, verify("b", 21, bent[1:4]), verify("a", 21, plain[1:4]))
    assert [list(outcome.token_ids) for outcome in outcomes] == [bent[1:5], plain[1:5]]


def test_reported_log_probabilities_are_those_of_the_raw_logits(
    engine: TargetEngine, tiny_llama: Path
) -> None:
    tokens = some_tokens(9)
    best = int(stock(tiny_llama, torch.float32, tokens)[0][-1].argmax())
    banned = LogitAdjustments(logit_bias=((best, -100.0),))
    open_request(engine, "a", tokens, sampling=replace(adjusted(GREEDY, banned), num_logprobs=1))
    (outcome,) = step(engine, PrefillItem("a", 1, 9))
    raw = stock(tiny_llama, torch.float32, tokens)[0][-1].log_softmax(-1)
    assert outcome.token_ids[0] != best
    assert outcome.logprobs[0].top_token_ids == (best,)
    assert outcome.logprobs[0].logprob == pytest.approx(float(raw[outcome.token_ids[0]]), abs=1e-4)


@pytest.mark.parametrize(
    ("adjustments", "field"),
    [
        (LogitAdjustments(logit_bias=((VOCAB, 1.0),)), "logit_bias"),
        (LogitAdjustments(min_tokens=1, ending_token_ids=(1, VOCAB)), "ending_token_ids"),
        (LogitAdjustments(min_tokens=1, ending_token_ids=tuple(range(VOCAB))), "min_tokens"),
    ],
)
def test_tokens_of_another_vocabulary_and_a_minimum_that_bans_all_are_refused(
    engine: TargetEngine, adjustments: LogitAdjustments, field: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        open_request(engine, "a", some_tokens(4), sampling=adjusted(GREEDY, adjustments))
    assert caught.value.field == field
