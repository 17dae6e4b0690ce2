"""Penalties, bias and minimum inside the block: the output is that of plain decoding, by enumeration."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from dspark.decoding.acceptance import Judgement, accept_batch
from dspark.decoding.adjustment import LogitAdjuster
from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.race import race_winners
from dspark.decoding.types import Acceptance, SamplingParams
from dspark.evaluation.lossless.enumeration import largest_gap, target_distribution
from dspark.evaluation.lossless.mutations import ForgetfulTables
from dspark.evaluation.lossless.policies import early_stop, fixed
from dspark.evaluation.lossless.statistics import ERROR_RATE
from dspark.evaluation.lossless.table_checks import EXACT, enumeration_gap, sampling_p_value
from dspark.evaluation.lossless.tables import Tables, random_tables
from dspark.evaluation.threads import one_thread
from dspark.scheduling.capacity import CapacityCurve

ADJUSTMENTS = {
    "repetition": LogitAdjustments(repetition_penalty=1.8),
    "repetition below one": LogitAdjustments(repetition_penalty=0.6),
    "presence": LogitAdjustments(presence_penalty=1.2),
    "frequency": LogitAdjustments(frequency_penalty=0.8),
    "bias": LogitAdjustments(logit_bias=((0, 1.5), (1, -100.0))),
    "minimum": LogitAdjustments(min_tokens=2, ending_token_ids=(2,)),
    "all": LogitAdjustments(1.4, -0.5, 0.7, ((1, 0.9),), min_tokens=2, ending_token_ids=(2,)),
}
POLICIES = {
    **{f"fixed {length}": fixed(length) for length in range(4)},
    "early stop": early_stop(CapacityCurve.from_points([(1, 1.0), (4, 1.9)])),
}
SAMPLING = SamplingParams(temperature=0.8, top_k=3, top_p=0.95, min_p=0.02)
EACH = pytest.mark.parametrize("adjustments", ADJUSTMENTS.values(), ids=ADJUSTMENTS.keys())


def tables_with(adjustments: LogitAdjustments | None, sampling: SamplingParams = SAMPLING) -> Tables:
    return random_tables(5, replace(sampling, adjustments=adjustments), vocab_size=3, gamma=3)


@EACH
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_under_rejection_every_sequence_has_exactly_its_probability_in_plain_decoding(adjustments, policy):
    assert enumeration_gap(tables_with(adjustments), policy, 3) < EXACT


@EACH
def test_the_adjustments_of_these_tests_change_the_distribution(adjustments):
    plain = target_distribution(tables_with(None), 4)
    assert largest_gap(target_distribution(tables_with(adjustments), 4), plain) > 0.01


def test_penalties_that_forget_the_drafts_of_the_block_are_caught():
    right = tables_with(ADJUSTMENTS["frequency"])
    assert enumeration_gap(right, fixed(3), 3) < EXACT
    assert enumeration_gap(ForgetfulTables.of(right), fixed(3), 3) > 0.01


def plain_choice(tables: Tables, output: tuple[int, ...]) -> int:
    """The next token by definition: the best of the adjusted logits, or the winner of the race."""
    probs, sampling = tables.target_probs(output), tables.sampling
    if sampling.acceptance is Acceptance.GREEDY:
        return int(probs.argmax())
    return int(race_winners(probs[None], [sampling.seed], [len(output)])[0])


def judged(tables: Tables, output: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    """What a step commits behind an output when this block is verified."""
    rows = torch.stack([tables.target_logits(output + block[:k]) for k in range(len(block) + 1)])
    drafts = np.array(block, dtype=np.int32)
    judgement = Judgement(0, len(output), drafts, (), tables.sampling, tables.adjuster(output))
    return accept_batch(rows, [judgement])[0].token_ids


def assert_all_blocks_lead_to_plain(tables: Tables, num_tokens: int) -> None:
    """Every block of up to three drafts, behind every output that any of them leads to."""
    plain: tuple[int, ...] = ()
    while len(plain) < num_tokens + 4:
        plain += (plain_choice(tables, plain),)
    for length in range(num_tokens):
        for num_drafts in range(4):
            for block in product(range(tables.vocab_size), repeat=num_drafts):
                committed = judged(tables, plain[:length], block)
                assert committed == plain[length : length + len(committed)], (length, block)
    assert judged(tables, (), plain[:3]) == plain[:4]


@EACH
def test_greedy_output_is_that_of_plain_decoding_whatever_blocks_are_verified(adjustments):
    greedy = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
    assert_all_blocks_lead_to_plain(tables_with(adjustments, greedy), 5)


@EACH
@pytest.mark.parametrize("seed", range(4))
def test_coupled_output_is_that_of_plain_decoding_whatever_blocks_are_verified(adjustments, seed):
    coupled = replace(SAMPLING, seed=seed, acceptance=Acceptance.COUPLED)
    with one_thread():
        assert_all_blocks_lead_to_plain(tables_with(adjustments, coupled), 4)


@pytest.mark.parametrize("acceptance", [Acceptance.REJECTION, Acceptance.COUPLED])
def test_sampled_outputs_have_the_distribution_of_plain_decoding(acceptance):
    with one_thread():
        p_value = sampling_p_value(tables_with(ADJUSTMENTS["all"]), fixed(3), 2, 600, acceptance)
    assert p_value > ERROR_RATE


def test_adjusted_and_plain_requests_of_one_step_do_not_touch_each_other():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(64, 40, generator=generator).bfloat16()
    judgements, row = [], 0
    for index in range(16):
        adjustments = ADJUSTMENTS["all"] if index % 2 else None
        acceptance = [Acceptance.GREEDY, Acceptance.COUPLED][index // 4 % 2]
        sampling = SamplingParams(
            seed=index, acceptance=acceptance, num_logprobs=index % 3 or None, adjustments=adjustments
        )
        adjuster = LogitAdjuster(adjustments, (1, 2), (5, 5)) if adjustments else None
        drafts = logits[row : row + index % 4].argmax(-1).numpy().astype(np.int32)
        judgements.append(Judgement(row, 4, drafts, (), sampling, adjuster))
        row += len(drafts) + 1
    before = logits.clone()
    together = accept_batch(logits[:row], judgements)
    assert together == [accept_batch(logits, [judgement])[0] for judgement in judgements]
    assert torch.equal(logits, before)
    assert any(verdict.num_accepted > 1 for verdict in together[::2])
