"""Heads of all kinds in the engine: blocks of different lengths, and what a confidence may know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from dspark.decoding.types import Acceptance, DraftBlock, DraftRequest, SamplingParams
from dspark.engine.block_slots import BlockSlots
from dspark.engine.draft_heads import DraftHeads
from dspark.models.calibration import Calibration
from dspark.models.config import DrafterConfig
from dspark.models.heads import peak_logits
from dspark.scheduling.calibration import SequentialScaling
from tests.tiny_drafters import TINY, random_drafter

GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
BARE = {"has_confidence_head": False, "confidence_head_with_markov": False}
CONFIGS = {
    "vanilla": TINY,
    "gated": replace(TINY, markov_head_type="gated"),
    "rnn": replace(TINY, markov_head_type="rnn"),
    "confidence-of-hidden": replace(TINY, confidence_head_with_markov=False),
    "no-confidence-head": replace(TINY, **BARE),
    "rnn-no-confidence-head": replace(TINY, markov_head_type="rnn", **BARE),
    "dflash": replace(TINY, markov_rank=0, **BARE),
}
WITH_MARKOV = [name for name, config in CONFIGS.items() if config.markov_rank]


def make_heads(config: DrafterConfig, calibration: Calibration | None = None) -> DraftHeads:
    drafter = random_drafter(config, torch.arange(8, 56), std=0.3)
    return DraftHeads(drafter, calibration or Calibration.identity(config.gamma), None)


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, acceptance=Acceptance.REJECTION)


def draft(
    heads: DraftHeads,
    samplings: Sequence[SamplingParams],
    counts: Sequence[int],
    *,
    anchors_differ: bool = True,
) -> list[DraftBlock]:
    """Blocks over hidden states that depend on the place in the block alone."""
    slots = BlockSlots.of(list(counts))
    # small, so that no distribution is all on one token
    states = 0.2 * torch.randn(TINY.gamma, TINY.hidden_size, generator=torch.Generator().manual_seed(2))
    requests = [
        DraftRequest(str(number), 1, 20, 9 + number * anchors_differ, sampling, count)
        for number, (sampling, count) in enumerate(zip(samplings, counts, strict=True))
    ]
    with torch.inference_mode():
        return heads.draft(requests, slots, states[torch.from_numpy(slots.offset)])[0]


@pytest.mark.parametrize("kind", CONFIGS)
def test_blocks_of_different_lengths_drafted_together_are_prefixes_of_whole_ones(kind: str) -> None:
    heads = make_heads(CONFIGS[kind])
    samplings = [GREEDY, sampled(1), GREEDY, sampled(2), GREEDY]
    whole = draft(heads, samplings, [4] * 5)
    counts = [2, 4, 1, 3, 4]
    for block, full, count in zip(draft(heads, samplings, counts), whole, counts, strict=True):
        assert block.token_ids.tolist() == full.token_ids[:count].tolist()
        np.testing.assert_allclose(block.confidence, full.confidence[:count], rtol=1e-5)
        assert len(block.probs) == (0 if block.request_id in "024" else count)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_confidence_knows_the_drafts_before_its_own_and_nothing_else(kind: str) -> None:
    heads = make_heads(CONFIGS[kind])
    blocks = draft(heads, [sampled(seed) for seed in range(40)], [4] * 40, anchors_differ=False)
    by_past: dict[tuple[int, ...], set[float]] = {}
    for block in blocks:
        for place, confidence in enumerate(block.confidence.tolist()):
            by_past.setdefault(tuple(block.token_ids[:place].tolist()), set()).add(round(confidence, 5))
    assert len({int(block.token_ids[0]) for block in blocks}) > 3, "drafts differ at the first place"
    # the same past, many a draft: one confidence
    assert all(len(found) == 1 for found in by_past.values())
    assert 0 < min(map(min, by_past.values())) <= max(map(max, by_past.values())) < 1


@pytest.mark.parametrize("kind", ["vanilla", "rnn-no-confidence-head"])
def test_a_later_confidence_depends_on_an_earlier_draft(kind: str) -> None:
    heads = make_heads(CONFIGS[kind])
    blocks = draft(heads, [sampled(seed) for seed in range(20)], [4] * 20, anchors_differ=False)
    assert len({float(block.confidence[1]) for block in blocks}) > 3


@pytest.mark.parametrize("kind", WITH_MARKOV)
def test_the_anchor_biases_the_first_draft(kind: str) -> None:
    first, second = draft(make_heads(CONFIGS[kind]), [sampled(0)] * 2, [1, 1])
    assert first.probs[0].probs.tolist() != second.probs[0].probs.tolist()


def test_without_a_markov_head_no_draft_depends_on_another_or_on_the_anchor() -> None:
    heads = make_heads(CONFIGS["dflash"])
    blocks = [draft(heads, [sampled(0), sampled(seed)], [4, 4])[1] for seed in range(5)]
    for block in blocks[1:]:
        for mine, same in zip(block.probs, blocks[0].probs, strict=True):
            np.testing.assert_array_equal(mine.probs, same.probs)


def test_an_rnn_remembers_more_than_the_token_before() -> None:
    past: dict[str, dict[int, set[float]]] = {}
    for kind in ("vanilla", "rnn"):
        heads = make_heads(CONFIGS[kind])
        found = past.setdefault(kind, {})
        for block in draft(heads, [sampled(seed) for seed in range(60)], [3] * 60, anchors_differ=False):
            # what the third draft was drawn from, by the second
            found.setdefault(int(block.token_ids[1]), set()).add(round(float(block.probs[2].probs[0]), 4))
    assert all(len(one) == 1 for one in past["vanilla"].values())
    assert any(len(one) > 1 for one in past["rnn"].values())


def test_the_confidence_of_a_drafter_without_a_head_can_be_calibrated() -> None:
    scaling = SequentialScaling((2.0,) * 4, (-1.0,) * 4)
    plain = draft(make_heads(CONFIGS["dflash"]), [GREEDY], [4])[0].confidence
    scaled = draft(make_heads(CONFIGS["dflash"], Calibration(scaling, scaling)), [GREEDY], [4])[0].confidence
    logits = np.log(plain / (1 - plain))
    np.testing.assert_allclose(scaled, scaling.apply(logits[None])[0], rtol=1e-4)


def test_how_sure_a_distribution_is_stays_finite() -> None:
    logits = torch.tensor([[0.0, 0.0], [200.0, 0.0], [float("-inf"), 3.0]])
    peaks = peak_logits(logits)
    assert peaks.tolist() == pytest.approx([0.0, peaks[1].item(), peaks[1].item()])
    assert 10 < peaks[1] < 20
