"""Adjusted logits of the rows of a block, against definitions written by others or without any cleverness."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from dspark.decoding.adjustment import LogitAdjuster, adjust_blocks
from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.token_counts import TokenCounts
from dspark.evaluation.lossless.definition import adjusted_by_definition

VOCAB_SIZE = 9
TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=12)
BIASES = st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.sampled_from([-100.0, -1.5, 0.3, 100.0]))
ADJUSTMENTS = st.builds(
    LogitAdjustments,
    st.sampled_from([0.5, 1.0, 1.3]),
    st.sampled_from([-1.1, 0.0, 0.7]),
    st.sampled_from([-0.3, 0.0, 0.9]),
    BIASES.map(lambda biases: tuple(sorted(biases.items()))),
    st.integers(0, 8),
    st.sampled_from([(), (3,), (0, 8)]),
)


def random_logits(num_rows: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return (4 * torch.randn(num_rows, VOCAB_SIZE, generator=generator, dtype=torch.float64)).to(dtype)


def adjusted_block(adjustments, prompt, output, drafts, logits):
    rows = logits.clone()
    adjust_blocks(rows, [(LogitAdjuster(adjustments, prompt, output), drafts)])
    return rows


@given(adjustments=ADJUSTMENTS, prompt=TOKENS, output=TOKENS, drafts=TOKENS)
@settings(max_examples=300, deadline=None)
def test_each_row_of_a_block_is_adjusted_for_the_drafts_in_front_of_it(adjustments, prompt, output, drafts):
    logits = random_logits(len(drafts) + 1)
    rows = adjusted_block(adjustments, prompt, output, drafts, logits)
    for place, row in enumerate(rows):
        expected = adjusted_by_definition(logits[place], adjustments, prompt, [*output, *drafts[:place]])
        torch.testing.assert_close(row, expected, rtol=0.0, atol=1e-12)


@given(adjustments=ADJUSTMENTS, prompt=TOKENS, output=TOKENS, drafts=TOKENS)
@settings(max_examples=200, deadline=None)
def test_a_row_inside_a_block_has_every_bit_of_the_same_row_in_plain_decoding(
    adjustments, prompt, output, drafts
):
    logits = random_logits(len(drafts) + 1, torch.float32)
    rows = adjusted_block(adjustments, prompt, output, drafts, logits)
    for place in range(len(drafts) + 1):
        before = [*output, *drafts[:place]]
        plain = adjusted_block(adjustments, prompt, before, [], logits[place : place + 1])
        assert torch.equal(rows[place], plain[0])


@given(adjustments=ADJUSTMENTS, prompt=TOKENS, rounds=st.lists(TOKENS, max_size=5))
@settings(max_examples=200, deadline=None)
def test_tokens_committed_round_by_round_count_as_those_a_request_is_restored_with(
    adjustments, prompt, rounds
):
    grown = LogitAdjuster(adjustments, prompt, ())
    for tokens in rounds:
        grown.commit(tokens)
    restored = LogitAdjuster(adjustments, prompt, [token for tokens in rounds for token in tokens])
    mine, other = random_logits(3), random_logits(3)
    adjust_blocks(mine, [(grown, [1, 1])])
    adjust_blocks(other, [(restored, [1, 1])])
    assert torch.equal(mine, other)


@pytest.mark.parametrize("num_before", [0, 1, 2, 5])
def test_repetition_bias_and_minimum_are_those_of_transformers(num_before):
    prompt, output, drafts = [1, 4, 4, 7], [2, 4, 2, 5, 6][:num_before], [2, 8, 0]
    adjustments = LogitAdjustments(
        repetition_penalty=1.7, logit_bias=((0, 2.5), (4, -3.0)), min_tokens=3, ending_token_ids=(5, 8)
    )
    logits = random_logits(len(drafts) + 1)
    rows = adjusted_block(adjustments, prompt, output, drafts, logits)
    processors = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor({(0,): 2.5, (4,): -3.0}),
            RepetitionPenaltyLogitsProcessor(1.7),
            MinNewTokensLengthLogitsProcessor(len(prompt), 3, [5, 8]),
        ]
    )
    for place, row in enumerate(rows):
        context = torch.tensor([[*prompt, *output, *drafts[:place]]])
        expected = processors(context, logits[place : place + 1].clone())[0]
        torch.testing.assert_close(row, expected, rtol=0.0, atol=1e-12)


def test_presence_and_frequency_are_subtracted_as_openai_writes_them():
    adjustments = LogitAdjustments(presence_penalty=0.5, frequency_penalty=0.25)
    prompt, output, drafts = [0, 1], [2, 2, 3], [2, 4]
    logits = random_logits(3)
    rows = adjusted_block(adjustments, prompt, output, drafts, logits)
    for place in range(3):
        counts = Counter([*output, *drafts[:place]])
        for token in range(VOCAB_SIZE):
            expected = float(logits[place, token]) - counts[token] * 0.25 - (counts[token] > 0) * 0.5
            assert float(rows[place, token]) == pytest.approx(expected, abs=1e-12)
    # What only the prompt holds is left alone.
    assert torch.equal(rows[:, :2], logits[:, :2])


def test_no_ending_token_can_be_chosen_before_the_minimum_however_large_its_bias():
    adjustments = LogitAdjustments(logit_bias=((3, 100.0),), min_tokens=3, ending_token_ids=(3,))
    rows = adjusted_block(adjustments, (3, 3), [1], [0, 0, 0], random_logits(4))
    assert (rows[:, 3] == -torch.inf).tolist() == [True, True, False, False]
    assert rows.argmax(-1).tolist()[2:] == [3, 3]


@given(prompt=TOKENS, rounds=st.lists(TOKENS, max_size=6))
@settings(max_examples=200, deadline=None)
def test_counts_that_grow_are_those_of_counting_anew(prompt, rounds):
    counts = TokenCounts.of(prompt, ())
    for tokens in rounds:
        counts = counts.extended(tokens)
    output = Counter(token for tokens in rounds for token in tokens)
    held = sorted({*prompt, *output})
    assert counts.token_ids.tolist() == held
    assert counts.in_output.tolist() == [output[token] for token in held]
    everything = np.arange(VOCAB_SIZE)
    assert counts.holds(everything).tolist() == [token in held for token in range(VOCAB_SIZE)]
    assert counts.in_output_of(everything).tolist() == [output[token] for token in range(VOCAB_SIZE)]
    rest = counts.without(np.array([0, 4, 8]))
    assert rest.token_ids.tolist() == [token for token in held if token % 4]
    assert rest.in_output.tolist() == [output[token] for token in held if token % 4]


def test_blocks_of_one_step_are_adjusted_as_each_alone():
    asked = [
        (LogitAdjustments(1.3, 0.2, 0.4, ((2, 1.0),), 2, (3,)), [1, 1, 2], [4], [5, 1, 5]),
        (LogitAdjustments(logit_bias=((0, -100.0),)), [1], [], []),
        (LogitAdjustments(frequency_penalty=-0.5), [], [], [2]),
        (LogitAdjustments(repetition_penalty=0.7), [8, 8], [0, 0, 1], []),
    ]
    together = random_logits(sum(len(drafts) + 1 for *_, drafts in asked), torch.float32)
    logits = together.clone()
    adjust_blocks(together, [(LogitAdjuster(*one[:3]), one[3]) for one in asked])
    first_row = 0
    for adjustments, prompt, output, drafts in asked:
        end = first_row + len(drafts) + 1
        alone = adjusted_block(adjustments, prompt, output, drafts, logits[first_row:end])
        assert torch.equal(together[first_row:end], alone)
        first_row = end
