"""Prompt lookup in the place of a model, where it was worth more."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from lookup_steps import GREEDY, ask, committed

from dspark.decoding.types import DraftBlock, DrafterInfo, DraftRequest, FeatureBatch
from dspark.engine.assisted import AssistedDraftEngine
from dspark.engine.lookup import Lookup

PERIOD = [3, 1, 4, 1, 5]


class Model:
    """A model that is always ready; its first draft is that of a text, the others are wrong."""

    def __init__(self, text: Sequence[int] = ()) -> None:
        self.text = text
        self.info = DrafterInfo("model", 4, (0,), 8, 10)
        self.asked: list[DraftRequest] = []
        self.pushed: list[FeatureBatch] = []
        self.closed: list[str] = []

    def push(self, batch: FeatureBatch) -> None:
        self.pushed.append(batch)

    def absorb(self) -> None:
        pass

    def is_ready(self, request: DraftRequest) -> bool:
        return True

    def draft(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        self.asked += requests
        return [self._block(one) for one in requests]

    def _block(self, one: DraftRequest) -> DraftBlock:
        base = one.base_committed_len
        drafts = np.array([*self.text[base : base + 1], 9, 9, 9, 9][:4], dtype=np.int32)
        return DraftBlock(one.request_id, one.epoch, base, drafts, np.full(4, 0.5, np.float32))

    def close(self, request_ids: Sequence[str]) -> None:
        self.closed += request_ids

    def calibration_errors(self) -> dict[str, Sequence[float]]:
        return {"greedy": [0.0] * 4}


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def engine(model: Model) -> AssistedDraftEngine:
    return AssistedDraftEngine(model, Lookup(6, 10_000))


def rounds(engine: AssistedDraftEngine, truth: Sequence[int], first: int, count: int) -> list[DraftBlock]:
    """Decode greedily along a text that is given, every draft verified; returns the blocks."""
    engine.push(committed(truth[: first - 1], width=1))
    blocks, length, num_verified = [], first, 0
    for _ in range(count):
        (block,) = engine.draft([ask(truth[:length], num_verified=num_verified)])
        drafts = block.token_ids.tolist()
        right = [mine == its for mine, its in zip(drafts, truth[length:], strict=False)]
        num_committed = (right.index(False) if False in right else len(drafts)) + 1
        engine.push(committed(truth[length - 1 : length - 1 + num_committed], length - 1, width=1))
        blocks.append(block)
        length, num_verified = length + num_committed, len(drafts)
    return blocks


def test_copies_take_over_where_the_model_is_wrong_and_the_text_repeats(engine, model) -> None:
    blocks = rounds(engine, PERIOD * 60, 12, 40)
    assert len(model.asked) < 10
    assert blocks[-1].token_ids.tolist() != [9] * 4
    # the features of all tokens have reached the model all the same
    assert [batch.start for batch in model.pushed] == sorted(batch.start for batch in model.pushed)
    assert model.pushed[0].features.shape[1] == 1


def test_the_model_drafts_where_nothing_repeats(engine, model) -> None:
    rounds(engine, list(range(100, 200)), 12, 40)
    assert len(model.asked) == 40


def test_the_model_drafts_where_copies_have_been_wrong(engine, model) -> None:
    # the token 0 comes again and again, each time with another one behind it
    truth = [token for number in range(100, 200) for token in (0, number)]
    model.text = truth
    rounds(engine, truth, 21, 60)
    assert len(model.asked) > 55


def test_the_model_is_told_the_outcomes_of_its_own_blocks_only(engine, model) -> None:
    rounds(engine, [7, *range(20, 28), *(PERIOD * 60)], 4, 60)
    own = [one.num_verified for one in model.asked]
    assert set(own) == {0, 4}
    # After a copy the drafts that were verified were none of the model's.
    bases = [one.base_committed_len for one in model.asked]
    followed = [later - earlier == 1 for earlier, later in itertools.pairwise(bases)]
    assert own[1:] == [4 if is_next else 0 for is_next in followed]


def test_the_worth_of_the_model_is_tried_again_now_and_then(engine, model) -> None:
    rounds(engine, PERIOD * 200, 12, 40)
    before = len(model.asked)
    rounds_later = rounds_again(engine, 40)
    assert 1 <= len(model.asked) - before <= 4
    assert len(rounds_later) == 40


def rounds_again(engine: AssistedDraftEngine, count: int) -> list[DraftBlock]:
    engine.close(["a"])
    return rounds(engine, PERIOD * 200, 12, count)


def test_requests_of_both_kinds_share_a_draft_and_close_reaches_both(engine, model) -> None:
    rounds(engine, PERIOD * 60, 12, 40)
    engine.push(committed([1, 2], name="b"))
    engine.push(committed((PERIOD * 4)[:-1], name="c"))
    asked = [ask([1, 2, 3], name="b"), ask(PERIOD * 4, name="c")]
    assert {block.request_id for block in engine.draft(asked)} == {"b", "c"}
    assert model.asked[-1].request_id == "b"
    engine.close(["a", "b", "c"])
    assert model.closed == ["a", "b", "c"]
    assert not engine._lookup.is_ready(ask([1, 2, 3], name="b"))
    assert set(engine.calibration_errors()) == {"greedy", "greedy, lookup", "sampling, lookup"}
    assert engine.is_ready(ask([1, 2, 3], sampling=GREEDY))


def test_a_copy_may_be_longer_than_what_is_asked_of_the_model_and_than_its_blocks(
    engine: AssistedDraftEngine, model: Model
) -> None:
    assert engine.info.gamma == 6
    rounds(engine, PERIOD * 60, 12, 40)
    text = PERIOD * 8
    engine.push(committed(text[:29], name="b", width=1))
    blocks = [
        engine.draft([ask(text[:30], name="b", max_drafts=2, max_copied=most)])[0] for most in (0, 5, 9)
    ]
    assert [len(one.token_ids) for one in blocks if one.is_copied] == [2, 5, 6]
