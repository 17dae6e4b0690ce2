"""Acceptance, rule by rule: what is committed is what plain decoding would have committed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.decoding.acceptance import NEAR_TIE_MARGIN, Judgement, accept_batch, residual_probs
from dspark.decoding.rng import Purpose, uniforms
from dspark.decoding.sampling import draw, shaped_probs
from dspark.decoding.types import Acceptance, SamplingParams, SparseProbs
from dspark.errors import InvalidRequestError

VOCAB_SIZE = 7


def model_logits(prefix: tuple[int, ...]) -> torch.Tensor:
    """A target that is a pure function of the tokens so far, with ties now and then."""
    rng = np.random.default_rng([len(prefix), *prefix])
    return torch.from_numpy(rng.integers(-4, 5, VOCAB_SIZE) / 2.0)


def judge(prefix, drafts, sampling, draft_probs=()):
    rows = torch.stack([model_logits((*prefix, *drafts[:k])) for k in range(len(drafts) + 1)])
    judgement = Judgement(0, len(prefix), np.array(drafts, dtype=np.int32), tuple(draft_probs), sampling)
    return accept_batch(rows, [judgement])[0]


def decode(prompt, num_tokens, sampling, blocks=()):
    """Decode with the given drafts, block by block, then plainly."""
    tokens, blocks = list(prompt), list(blocks)
    while len(tokens) < len(prompt) + num_tokens:
        verdict = judge(tuple(tokens), tuple(blocks.pop(0)) if blocks else (), sampling)
        assert len(verdict.token_ids) == verdict.num_accepted + 1
        tokens.extend(verdict.token_ids)
    return tokens[: len(prompt) + num_tokens]


@given(
    blocks=st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=5), max_size=12),
    acceptance=st.sampled_from([Acceptance.GREEDY, Acceptance.COUPLED]),
    seed=st.integers(0, 2**64 - 1),
    num_right=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_greedy_and_coupled_output_is_that_of_plain_decoding_whatever_the_drafts(
    blocks, acceptance, seed, num_right
):
    sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=seed, acceptance=acceptance)
    plain = decode((1, 2), 12, sampling)
    assert decode((1, 2), 12, sampling, blocks) == plain
    # Drafts that are right for a while, so that acceptance is exercised as well as rejection.
    good = [[*plain[2 : 2 + num_right], *block] for block in blocks[:1]]
    assert decode((1, 2), 12, sampling, good) == plain


def test_right_drafts_are_all_accepted_and_a_bonus_token_follows():
    for acceptance in (Acceptance.GREEDY, Acceptance.COUPLED):
        sampling = SamplingParams(seed=5, acceptance=acceptance)
        plain = decode((1, 2), 6, sampling)
        verdict = judge((1, 2), plain[2:7], sampling)
        assert verdict.num_accepted == 5
        assert list(verdict.token_ids) == plain[2:8]


def test_a_rejected_draft_is_replaced_from_the_residual():
    sampling = SamplingParams(seed=3)
    target = shaped_probs(model_logits((1, 2)), sampling)
    worst = int(target.argmin())
    certain = SparseProbs(np.array([worst], dtype=np.int32), np.array([1.0], dtype=np.float32))
    verdict = judge((1, 2), (worst, 0), sampling, (certain, certain))
    assert verdict.num_accepted == 0
    goal = uniforms([3], [2], Purpose.RESIDUAL)
    assert verdict.token_ids == (int(draw(residual_probs(target, certain)[None], goal)[0]),)
    assert verdict.token_ids[0] != worst


def test_without_drafts_rejection_sampling_draws_from_the_target():
    sampling = SamplingParams(seed=3, temperature=0.6)
    target = shaped_probs(model_logits((1, 2)), sampling)
    assert judge((1, 2), (), sampling).token_ids == (
        int(draw(target[None], uniforms([3], [2], Purpose.BONUS))[0]),
    )


def test_the_residual_is_what_the_target_has_more_of():
    target = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    draft = SparseProbs(np.array([0, 2], dtype=np.int32), np.array([0.5, 1.5], dtype=np.float32))
    assert torch.allclose(
        residual_probs(target, draft), torch.tensor([0.25, 0.3, 0.0], dtype=torch.float64) / 0.55
    )


def test_where_draft_and_target_are_equal_the_residual_is_the_target():
    target = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    equal = SparseProbs(np.arange(3, dtype=np.int32), target.numpy().astype(np.float32))
    assert torch.equal(residual_probs(target, equal), target)


def test_requests_of_a_batch_do_not_touch_each_other():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 50, generator=generator)
    uniform = SparseProbs(np.arange(50, dtype=np.int32), np.full(50, 0.02, dtype=np.float32))
    judgements, row = [], 0
    for index in range(12):
        acceptance = list(Acceptance)[index % 3]
        num_drafts = index % 4
        probs = (uniform,) * num_drafts if acceptance is Acceptance.REJECTION else ()
        sampling = SamplingParams(
            seed=index,
            acceptance=acceptance,
            temperature=1 + index % 2,
            num_logprobs=2 if index % 5 == 0 else None,
        )
        drafts = logits[row : row + num_drafts].argmax(-1).numpy().astype(np.int32)
        judgements.append(Judgement(row, 10 + index, drafts, probs, sampling))
        row += num_drafts + 1
    together = accept_batch(logits[:row], judgements)
    assert together == [accept_batch(logits, [judgement])[0] for judgement in judgements]
    assert any(verdict.num_accepted > 1 for verdict in together)


def test_equal_logits_go_to_the_lowest_id_and_count_as_a_near_tie():
    logits = torch.tensor([[0.0, 2.0, 2.0], [0.0, 1.0, 3.0]], dtype=torch.bfloat16)
    sampling = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
    verdict = accept_batch(logits, [Judgement(0, 5, np.array([1], dtype=np.int32), (), sampling)])[0]
    assert verdict.token_ids == (1, 2)
    assert verdict.num_near_ties == 1


def test_near_ties_behind_a_rejection_do_not_count():
    best = 8.0
    logits = torch.tensor([[0.0, best], [best, best * (1 - NEAR_TIE_MARGIN / 2)]])
    sampling = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
    rejected = accept_batch(logits, [Judgement(0, 5, np.array([0], dtype=np.int32), (), sampling)])[0]
    accepted = accept_batch(logits, [Judgement(0, 5, np.array([1], dtype=np.int32), (), sampling)])[0]
    assert (rejected.num_near_ties, accepted.num_near_ties) == (0, 1)


@pytest.mark.parametrize("acceptance", list(Acceptance))
def test_logprobs_are_those_of_the_raw_target(acceptance):
    sampling = SamplingParams(temperature=0.5, top_k=1, acceptance=acceptance, num_logprobs=3)
    verdict = judge((1, 2), (), sampling)
    expected = torch.log_softmax(model_logits((1, 2)).float(), -1)
    assert verdict.logprobs[0].logprob == pytest.approx(float(expected[verdict.token_ids[0]]))
    assert verdict.logprobs[0].top_logprobs == pytest.approx(expected.topk(3).values.tolist())
    assert [float(expected[t]) for t in verdict.logprobs[0].top_token_ids] == pytest.approx(
        expected.topk(3).values.tolist()
    )


def test_logprobs_of_the_chosen_token_alone_come_without_top_tokens():
    verdict = judge((1, 2), (), SamplingParams(num_logprobs=0))
    assert verdict.logprobs[0].top_token_ids == verdict.logprobs[0].top_logprobs == ()


@pytest.mark.parametrize(
    ("draft_probs", "says"),
    [
        ((), "0 distributions for 1 drafts"),
        (
            (SparseProbs(np.array([0], dtype=np.int32), np.array([1.0], dtype=np.float32)),),
            "does not hold its token 4",
        ),
        (
            (SparseProbs(np.array([4], dtype=np.int32), np.array([0.0], dtype=np.float32)),),
            "does not hold its token 4",
        ),
    ],
)
def test_a_draft_without_the_distribution_it_came_from_is_refused(draft_probs, says):
    with pytest.raises(InvalidRequestError, match=says) as caught:
        judge((1, 2), (4,), SamplingParams(), draft_probs)
    assert caught.value.field == "draft_probs"
