"""The drafter's native calls against its modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.sampling import argmax_with_margin
from dspark.decoding.types import Acceptance, DraftBlock, DraftRequest, SamplingParams
from dspark.engine.block_slots import BlockSlots
from dspark.engine.draft import DraftEngine
from dspark.engine.draft_heads import DraftHeads
from dspark.engine.linear import open_arena
from dspark.engine.pages import PagePool
from dspark.models.calibration import Calibration
from dspark.models.drafter import DSparkDrafter
from tests.feature_batches import feature_batch
from tests.tiny_drafters import TINY, random_drafter

GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
SAMPLED = SamplingParams(temperature=1.0, seed=5, acceptance=Acceptance.REJECTION)
# multiples of 32, as the kernels need them
CONFIG = replace(
    TINY, vocab_size=96, hidden_size=64, intermediate_size=96, markov_rank=32, draft_vocab_size=70
)


@pytest.fixture(autouse=True)
def _needs_the_kernels(cache_dir: Path) -> None:
    if open_arena(cache_dir) is None:
        pytest.skip("this CPU or its compiler has no bfloat16 matmul of ours")


def make_drafter() -> DSparkDrafter:
    return random_drafter(CONFIG, torch.arange(13, 83), std=0.2).to(torch.bfloat16)


def request(base: int, *, name: str, max_drafts: int, sampling: SamplingParams = GREEDY) -> DraftRequest:
    return DraftRequest(name, 1, base, 17, sampling, max_drafts)


def hidden_of(cache_dir: Path, *, use_kernels: bool, allows_int8: bool = False) -> torch.Tensor:
    pool = PagePool(
        num_pages=64,
        num_layers=2,
        num_kv_heads=2,
        head_dim=16,
        dtype=torch.bfloat16,
        use_kernels=use_kernels,
        cache_dir=cache_dir,
    )
    engine = DraftEngine(make_drafter(), pool, cache_dir=cache_dir, allows_int8=allows_int8)
    assert (engine._native is not None) == use_kernels
    rng = np.random.default_rng(1)
    asked = [request(38, name="a", max_drafts=4), request(24, name="b", max_drafts=3)]
    for one, start, length in zip(asked, (0, 3), (37, 20), strict=True):
        rows = rng.normal(size=(length, 128)).astype(np.float32)
        engine.push(feature_batch(one.request_id, 1, start, rows))
    engine.draft(asked)
    contexts = [context for one in asked if (context := engine._contexts.ready(one)) is not None]
    with torch.inference_mode():
        return engine._run_blocks(asked, contexts, BlockSlots.of([4, 3])).float()


def test_the_native_backbone_gives_the_hidden_states_of_the_modules(cache_dir: Path) -> None:
    native = hidden_of(cache_dir, use_kernels=True)
    modules = hidden_of(cache_dir, use_kernels=False)
    assert native.shape == (7, 64)
    assert (native - modules).abs().max() < 0.05 * modules.abs().max()


def test_weights_of_8_bits_give_hidden_states_near_those_of_bfloat16(cache_dir: Path) -> None:
    arena = open_arena(cache_dir, prefers_int8=True)
    if arena is None or not arena.kernels.has_int8:
        pytest.skip("this CPU gains nothing from weights of 8 bits")
    rounded, exact = (hidden_of(cache_dir, use_kernels=True, allows_int8=one) for one in (True, False))
    assert not torch.equal(rounded, exact)
    assert (rounded - exact).norm() < 0.05 * exact.norm()


def engine_of(cache_dir: Path, *, allows_int8: bool) -> DraftEngine:
    pool = PagePool(
        num_pages=4096, num_layers=2, num_kv_heads=2, head_dim=16, dtype=torch.bfloat16, cache_dir=cache_dir
    )
    return DraftEngine(make_drafter(), pool, cache_dir=cache_dir, allows_int8=allows_int8)


@pytest.mark.parametrize("is_int8", [False, True], ids=["bfloat16", "8 bits"])
@pytest.mark.parametrize("lengths", [(37,), (5, 20), tuple(range(1, 41))], ids=["one", "two", "forty"])
def test_a_draft_in_one_call_is_the_one_of_its_parts(
    cache_dir: Path, lengths: Sequence[int], is_int8: bool
) -> None:
    whole, parts = (engine_of(cache_dir, allows_int8=is_int8) for _ in range(2))
    assert whole._whole is not None
    parts._whole = None
    rng = np.random.default_rng(2)
    asked = []
    for number, length in enumerate(lengths):
        rows, start = rng.normal(size=(length, 128)).astype(np.float32), number % 3
        asked.append(request(start + length + 1, name=str(number), max_drafts=1 + number % 4))
        for engine in (whole, parts):
            engine.push(feature_batch(str(number), 1, start, rows))
    for mine, other in zip(whole.draft(asked), parts.draft(asked), strict=True):
        assert mine.request_id == other.request_id
        assert list(mine.token_ids) == list(other.token_ids)
        assert list(mine.confidence) == list(other.confidence)


def test_a_draft_in_one_call_makes_room_for_more_requests_and_longer_contexts_than_the_last(
    cache_dir: Path,
) -> None:
    whole, parts = (engine_of(cache_dir, allows_int8=False) for _ in range(2))
    parts._whole = None
    rng = np.random.default_rng(3)
    for number, length in enumerate((3, 90, 2, 240, 9)):
        rows = rng.normal(size=(length, 128)).astype(np.float32)
        names = [f"{number}-{copy}" for copy in range(1 + 25 * number)]
        asked = [request(length + 1, name=name, max_drafts=4) for name in names]
        for engine in (whole, parts):
            for name in names:
                engine.push(feature_batch(name, 1, 0, rows))
        found, wanted = whole.draft(asked), parts.draft(asked)
        assert len(found) == len(names)
        assert [list(one.token_ids) for one in found] == [list(one.token_ids) for one in wanted]
        for engine in (whole, parts):
            engine.close(names)


def test_a_draft_goes_by_its_parts_where_a_request_wants_something_between_them(cache_dir: Path) -> None:
    engine = engine_of(cache_dir, allows_int8=False)
    rows = np.random.default_rng(4).normal(size=(9, 128)).astype(np.float32)
    kinds = {"greedy": GREEDY, "sampled": SAMPLED, "biased": biased(GREEDY, (40, 100.0))}
    for name in kinds:
        engine.push(feature_batch(name, 1, 0, rows))
    asked = [request(10, name=name, max_drafts=3, sampling=kind) for name, kind in kinds.items()]
    greedy, sampled, with_bias = engine.draft(asked)
    assert list(greedy.token_ids) == list(engine.draft(asked[:1])[0].token_ids)
    assert len(sampled.probs) == 3
    assert set(with_bias.token_ids.tolist()) == {40}


def blocks_of(
    cache_dir: Path,
    requests: Sequence[DraftRequest],
    *,
    is_native: bool,
    seed: int = 0,
    is_int8: bool = False,
) -> list[DraftBlock]:
    arena = open_arena(cache_dir, prefers_int8=is_int8)
    heads = DraftHeads(make_drafter(), Calibration.identity(4), arena)
    assert heads._native is not None
    if not is_native:
        heads._native = None
    slots = BlockSlots.of([one.max_drafts for one in requests])
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(int(slots.first[-1]), 64, generator=generator).bfloat16()
    with torch.inference_mode():
        return heads.draft(requests, slots, hidden)[0]


@pytest.mark.parametrize("is_int8", [False, True], ids=["bfloat16", "8 bits"])
@pytest.mark.parametrize("seed", range(8))
def test_greedy_drafts_of_one_native_call_are_those_made_step_by_step(
    cache_dir: Path, seed: int, is_int8: bool
) -> None:
    asked = [request(20 + n, name=str(n), max_drafts=1 + (n + seed) % 4) for n in range(5)]
    native, stepped = (
        blocks_of(cache_dir, asked, is_native=one, seed=seed, is_int8=is_int8) for one in (True, False)
    )
    for mine, other in zip(native, stepped, strict=True):
        assert list(mine.token_ids) == list(other.token_ids)
        # the module rounds its logit to bfloat16
        np.testing.assert_allclose(mine.confidence, other.confidence, atol=0.01)
        assert set(mine.token_ids) <= set(range(13, 83))


@pytest.mark.parametrize("seed", range(4))
def test_a_drafter_without_heads_finds_the_same_tokens_natively(cache_dir: Path, seed: int) -> None:
    config = replace(CONFIG, markov_rank=0, has_confidence_head=False, confidence_head_with_markov=False)
    drafter = random_drafter(config, torch.arange(13, 83), std=0.2).to(torch.bfloat16)
    heads = DraftHeads(drafter, Calibration.identity(4), open_arena(cache_dir))
    asked = [request(20 + n, name=str(n), max_drafts=1 + (n + seed) % 4) for n in range(5)]
    slots = BlockSlots.of([one.max_drafts for one in asked])
    generator = torch.Generator().manual_seed(seed)
    # Few values: ties go to the lowest id.
    hidden = torch.randint(-1, 2, (int(slots.first[-1]), 64), generator=generator).bfloat16()
    with torch.inference_mode():
        native = heads.draft(asked, slots, hidden)[0]
        assert heads._find_best is not argmax_with_margin
        heads._find_best = argmax_with_margin
        stepped = heads.draft(asked, slots, hidden)[0]
    for mine, other in zip(native, stepped, strict=True):
        assert list(mine.token_ids) == list(other.token_ids)
        assert list(mine.confidence) == list(other.confidence)


def test_greedy_and_sampled_requests_side_by_side_get_the_drafts_they_get_alone(cache_dir: Path) -> None:
    kinds = (SAMPLED, GREEDY, SAMPLED, GREEDY)
    asked = [
        request(20 + n, name=str(n), max_drafts=4 - n % 3, sampling=kind) for n, kind in enumerate(kinds)
    ]
    mixed = blocks_of(cache_dir, asked, is_native=True)
    for mine, other in zip(mixed, blocks_of(cache_dir, asked, is_native=False), strict=True):
        assert list(mine.token_ids) == list(other.token_ids)
        assert len(mine.probs) == len(other.probs)
        for probs, same in zip(mine.probs, other.probs, strict=True):
            np.testing.assert_array_equal(probs.token_ids, same.token_ids)
            np.testing.assert_array_equal(probs.probs, same.probs)
    assert [len(block.probs) for block in mixed] == [4, 0, 2, 0]


def biased(sampling: SamplingParams, *biases: tuple[int, float]) -> SamplingParams:
    return replace(sampling, adjustments=LogitAdjustments(logit_bias=biases))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_logit_bias_acts_on_the_drafts_of_its_request_alone(
    cache_dir: Path, sampling: SamplingParams
) -> None:
    free = [request(20 + n, name=str(n), max_drafts=3, sampling=sampling) for n in range(3)]
    (_, plain, _) = unbiased = blocks_of(cache_dir, free, is_native=True)
    first = int(plain.token_ids[0])
    # Token 2 is not in the draft vocabulary.
    asked = [free[0], replace(free[1], sampling=biased(sampling, (2, 100.0), (first, -100.0))), free[2]]
    blocks = blocks_of(cache_dir, asked, is_native=True)
    assert first not in blocks[1].token_ids
    for one, same in ((blocks[0], unbiased[0]), (blocks[2], unbiased[2])):
        assert list(one.token_ids) == list(same.token_ids)
    asked[1] = replace(free[1], sampling=biased(sampling, (40, 100.0)))
    assert set(blocks_of(cache_dir, asked, is_native=True)[1].token_ids.tolist()) == {40}
