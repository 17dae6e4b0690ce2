"""The draft engine against the training forward, and its cache rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dspark.decoding.types import Acceptance, DraftRequest, SamplingParams
from dspark.engine.draft import DraftEngine
from dspark.engine.pages import PagePool
from dspark.models.drafter import DSparkDrafter
from dspark.training.attention import BlockAttention
from tests.feature_batches import feature_batch
from tests.tiny_drafters import TINY, random_drafter

GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
CONFIG = TINY


def make_drafter(seed: int = 0) -> DSparkDrafter:
    return random_drafter(CONFIG, torch.arange(8, 56), std=0.3, seed=seed)


def make_engine(num_pages: int = 64, seed: int = 0, *, refits: bool = False) -> DraftEngine:
    pool = PagePool(num_pages=num_pages, num_layers=2, num_kv_heads=2, head_dim=16, dtype=torch.float32)
    return DraftEngine(make_drafter(seed), pool, refits=refits)


def features(num_tokens: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_tokens, 64)).astype(np.float32)


def request(base: int, *, epoch: int = 1, name: str = "a", max_drafts: int = 4) -> DraftRequest:
    return DraftRequest(name, epoch, base, 17, GREEDY, max_drafts)


def dense_block(rows: np.ndarray, anchor: int, num_slots: int = CONFIG.gamma) -> list[int]:
    """Greedy drafts by the dense training attention, one slot at a time."""
    drafter = make_drafter()
    length = len(rows)
    with torch.inference_mode():
        fused = drafter.backbone.fuse(torch.from_numpy(rows))
        contexts = drafter.backbone.context_keys_values(fused, torch.arange(length))
        attend = BlockAttention(
            contexts, (0, length), (0, 1), torch.tensor([length]), num_slots, torch.float32
        )
        embeddings = drafter.block_embeddings(torch.tensor([anchor]))[0, :num_slots]
        hidden = drafter.backbone(embeddings, length + torch.arange(num_slots), attend)
        previous, drafts = torch.tensor(anchor), []
        for slot in range(num_slots):
            embedded = drafter.markov_head.embed(previous)
            logits = drafter.lm_head @ hidden[slot].float() + drafter.markov_head.bias(embedded)
            previous = drafter.d2t[logits.argmax()]
            drafts.append(int(previous))
    return drafts


def test_a_block_drafted_over_pages_is_the_block_of_the_dense_training_forward() -> None:
    engine = make_engine()
    rows = features(37)
    engine.push(feature_batch("a", 1, 0, rows))
    (block,) = engine.draft([request(38)])
    assert list(block.token_ids) == dense_block(rows, 17)
    assert block.confidence.shape == (4,)
    assert ((block.confidence > 0) & (block.confidence < 1)).all()


def test_features_that_arrive_in_pieces_give_the_same_block() -> None:
    rows = features(40)
    whole, pieces = make_engine(), make_engine()
    whole.push(feature_batch("a", 1, 0, rows))
    for start, stop in ((0, 17), (17, 18), (18, 40)):
        pieces.push(feature_batch("a", 1, start, rows[start:stop]))
        pieces.draft([request(stop + 1)])
    assert list(whole.draft([request(41)])[0].token_ids) == list(pieces.draft([request(41)])[0].token_ids)


def test_requests_drafted_together_get_the_blocks_they_get_alone() -> None:
    together = make_engine()
    alone = {}
    for number, length in enumerate((5, 16, 33)):
        rows = features(length, seed=number)
        together.push(feature_batch(str(number), 1, 0, rows))
        single = make_engine()
        single.push(feature_batch(str(number), 1, 0, rows))
        alone[str(number)] = list(single.draft([request(length + 1, name=str(number))])[0].token_ids)
    blocks = together.draft([request(n + 1, name=str(i)) for i, n in enumerate((5, 16, 33))])
    assert {block.request_id: list(block.token_ids) for block in blocks} == alone


def test_features_absorbed_before_a_draft_give_the_block_they_give_at_the_draft() -> None:
    rows = features(40)
    early, late = make_engine(), make_engine()
    for engine in (early, late):
        engine.push(feature_batch("a", 1, 0, rows[:17]))
        engine.draft([request(18)])
        engine.push(feature_batch("a", 1, 17, rows[17:]))
    early.absorb()
    assert early._contexts.held()[0].num_pending == 0
    assert late._contexts.held()[0].num_pending == 23
    (mine,), (other,) = early.draft([request(41)]), late.draft([request(41)])
    assert list(mine.token_ids) == list(other.token_ids)


def test_nothing_is_absorbed_for_requests_that_are_not_drafted_for() -> None:
    engine, rows = make_engine(), features(40)
    engine.push(feature_batch("a", 1, 0, rows[:17]))
    engine.absorb()
    assert engine._contexts.held()[0].num_pending == 17
    engine.draft([request(18)])
    for start in (17, 20):
        engine.push(feature_batch("a", 1, start, rows[start : start + 3]))
        engine.absorb()
    assert engine._contexts.held()[0].num_pending == 3


def test_features_that_find_no_free_page_wait_for_the_draft_that_may_evict() -> None:
    engine, rows = make_engine(num_pages=4), features(40)
    for name in ("idle", "b"):
        engine.push(feature_batch(name, 1, 0, rows[:20]))
        engine.draft([request(21, name=name)])
    engine.push(feature_batch("b", 1, 20, rows[20:]))
    engine.absorb()
    assert engine.is_ready(request(21, name="idle"))
    assert len(engine.draft([request(41, name="b")])) == 1
    assert not engine.is_ready(request(21, name="idle"))


def test_a_request_whose_features_are_missing_is_left_out() -> None:
    engine = make_engine()
    engine.push(feature_batch("a", 1, 0, features(10)))
    assert engine.is_ready(request(11))
    assert not engine.is_ready(request(12))
    assert engine.draft([request(12), request(11, name="b")]) == []


def test_a_stale_epoch_is_dropped_and_a_newer_one_starts_anew() -> None:
    engine = make_engine()
    engine.push(feature_batch("a", 2, 0, features(10)))
    engine.push(feature_batch("a", 1, 10, features(3)))
    assert engine.is_ready(request(11, epoch=2))
    engine.push(feature_batch("a", 3, 4, features(2)))
    assert engine.is_ready(request(7, epoch=3))


def test_features_computed_again_replace_those_from_their_position_on() -> None:
    rows = features(20)
    engine, plain = make_engine(), make_engine()
    engine.push(feature_batch("a", 1, 0, rows[:16]))
    engine.draft([request(17)])
    engine.push(feature_batch("a", 1, 12, rows[12:20]))
    plain.push(feature_batch("a", 1, 0, rows))
    assert list(engine.draft([request(21)])[0].token_ids) == list(plain.draft([request(21)])[0].token_ids)


def test_a_context_knows_the_token_ids_before_the_anchor() -> None:
    engine, rows = make_engine(), features(20)
    engine.push(feature_batch("a", 1, 2, rows[:14]))
    engine.draft([request(17)])
    engine.push(feature_batch("a", 1, 16, rows[14:]))
    engine.push(feature_batch("a", 1, 12, rows[10:11]))
    (context,) = engine._contexts.held()
    assert context.token_ids == list(range(2, 13))
    assert (context.start, context.end) == (2, 13)


def test_a_context_that_starts_late_still_drafts() -> None:
    engine = make_engine()
    engine.push(feature_batch("a", 1, 30, features(6)))
    assert len(engine.draft([request(37)])) == 1


def test_pages_come_back_after_close() -> None:
    engine = make_engine()
    free = engine.num_free_pages
    engine.push(feature_batch("a", 1, 0, features(40)))
    engine.draft([request(41)])
    assert engine.num_free_pages < free
    engine.close(["a", "unknown"])
    assert engine.num_free_pages == free


def test_idle_contexts_make_room_for_a_request_that_drafts() -> None:
    engine = make_engine(num_pages=4)
    engine.push(feature_batch("idle", 1, 0, features(30)))
    assert len(engine.draft([request(31, name="idle")])) == 1
    engine.push(feature_batch("b", 1, 0, features(40)))
    assert len(engine.draft([request(41, name="b")])) == 1
    assert not engine.is_ready(request(31, name="idle"))


@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_a_request_that_asks_for_fewer_drafts_gets_a_block_of_so_many_slots(num_slots: int) -> None:
    engine = make_engine()
    rows = features(9)
    engine.push(feature_batch("a", 1, 0, rows))
    (block,) = engine.draft([request(10, max_drafts=num_slots)])
    assert list(block.token_ids) == dense_block(rows, 17, num_slots)
    assert block.confidence.shape == (num_slots,)


def test_blocks_of_different_lengths_drafted_together_are_those_drafted_alone() -> None:
    together, rows = make_engine(), [features(20, seed=seed) for seed in range(4)]
    asked = [request(21, name=str(number), max_drafts=number + 1) for number in range(4)]
    alone = []
    for number, one in enumerate(asked):
        together.push(feature_batch(str(number), 1, 0, rows[number]))
        engine = make_engine()
        engine.push(feature_batch(str(number), 1, 0, rows[number]))
        alone += engine.draft([one])
    for block, single in zip(together.draft(asked), alone, strict=True):
        assert list(block.token_ids) == list(single.token_ids)
        np.testing.assert_allclose(block.confidence, single.confidence, rtol=1e-5)


@pytest.mark.parametrize("acceptance", [Acceptance.REJECTION, Acceptance.COUPLED])
def test_sampled_blocks_carry_their_distribution_only_for_rejection(acceptance: Acceptance) -> None:
    engine = make_engine()
    engine.push(feature_batch("a", 1, 0, features(9)))
    sampling = SamplingParams(temperature=1.0, seed=3, acceptance=acceptance)
    (block,) = engine.draft([DraftRequest("a", 1, 10, 17, sampling, 4)])
    assert len(block.probs) == (4 if acceptance is Acceptance.REJECTION else 0)
    for token_id, probs in zip(block.token_ids, block.probs, strict=False):
        assert token_id in probs.token_ids


def test_confidences_follow_what_becomes_of_the_blocks_and_drafts_do_not() -> None:
    fixed, following = make_engine(), make_engine(refits=True)
    rows = features(400)
    confidences: list[list[float]] = []
    for engine in (fixed, following):
        engine.push(feature_batch("a", 1, 0, rows[:9]))
        for base in range(10, 110):
            # Every round one draft is verified and rejected.
            (block,) = engine.draft([replace(request(base), num_verified=1)])
            engine.push(feature_batch("a", 1, base - 1, rows[base - 1 : base]))
            engine.absorb()
        confidences.append(block.confidence.tolist())
        assert list(block.token_ids) == dense_block(rows[:108], 17)
    assert confidences[1][0] < confidences[0][0]
    assert confidences[1][1:] == confidences[0][1:], "of which nothing was verified"
    assert following.calibration_errors()["greedy"][0] > 0
    assert fixed.calibration_errors() == {}
