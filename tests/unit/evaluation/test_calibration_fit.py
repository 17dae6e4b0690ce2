"""Fitting on decoded rounds. The seed is fixed; the bounds would hold for nearly all others."""

import numpy as np
import pytest

from dspark.decoding.types import DraftBlock, DrafterInfo, FinishReason, RoundStats, TokenDelta
from dspark.errors import ConfigurationError
from dspark.evaluation.block_log import BlockLog
from dspark.evaluation.calibration_fit import DecodedBlocks, fit, fit_temperatures, raw_logits
from dspark.evaluation.generation import Generation
from dspark.scheduling.calibration import SequentialScaling

GAMMA = 3


class Blocks:
    """A drafter whose blocks are given."""

    def __init__(self, blocks):
        self._blocks = blocks

    async def get_info(self):
        return DrafterInfo("d", GAMMA, (0,), 8, 9)

    async def draft(self, requests):
        return self._blocks

    async def close(self, request_ids):
        assert request_ids == ["a"]


def block(base, *confidence):
    values = np.array(confidence, dtype=np.float32)
    return DraftBlock("a", 1, base, np.zeros(len(values), dtype=np.int32), values)


def delta(start, scheduled, accepted, reason=None):
    return TokenDelta(
        "a", start, (0,) * (accepted + 1), RoundStats(scheduled, scheduled, accepted), (), reason
    )


async def test_blocks_are_joined_with_their_rounds_and_parts_of_blocks_are_left_out():
    log = BlockLog(
        Blocks([block(5, 0.9, 0.8, 0.7), block(8, 0.5, 0.5, 0.5), block(9, 0.4, 0.3), block(11, 1, 1, 1)])
    )
    await log.draft([])
    await log.close(["a"])
    assert (await log.get_info()).gamma == GAMMA
    rounds = (
        TokenDelta("a", 0, (0,)),
        delta(1, 3, 2),  # base 5: whole
        delta(4, 3, 0),  # base 8: whole
        delta(5, 2, 1),  # base 9: a short block
        delta(7, 3, 3, FinishReason.LENGTH),  # the last
    )
    confidence, survived = log.outcomes([Generation("a", rounds)], [4], GAMMA)
    assert confidence == pytest.approx(np.array([[0.9, 0.8, 0.7], [0.5, 0.5, 0.5]]))
    assert survived.tolist() == [[1, 1, 0], [0, 0, 0]]


async def test_rounds_without_blocks_give_empty_arrays_of_the_right_width():
    confidence, survived = BlockLog(Blocks([])).outcomes([Generation("a", (delta(1, 0, 0),))], [4], GAMMA)
    assert confidence.shape == survived.shape == (0, GAMMA)


def test_the_scaling_in_use_is_taken_out_of_the_confidences():
    logits = np.array([[-3.0, 0.5, 4.0]], dtype=np.float32)
    in_use = SequentialScaling((0.5, 1.0, 2.0), (0.0, -0.4, 1.0))
    confidence = in_use.apply(logits).astype(np.float32)
    assert raw_logits(confidence, in_use) == pytest.approx(logits, abs=1e-2)


def overconfident_blocks(num_blocks):
    rng = np.random.default_rng(0)
    logits = rng.normal(0.5, 1.0, (num_blocks, GAMMA))
    survives = rng.random((num_blocks, GAMMA)) < 1 / (1 + np.exp(-logits))
    return DecodedBlocks((2.5 * logits).astype(np.float32), np.cumprod(survives, axis=1).astype(np.float32))


def test_a_fit_finds_the_temperature_and_lowers_the_error_on_held_out_blocks():
    fitted = fit(overconfident_blocks(6000), SequentialScaling.identity(GAMMA))
    assert fitted.num_blocks == 6000
    assert fitted.scaling.temperatures[0] == pytest.approx(2.5, rel=0.25)
    assert all(after < before for before, after in zip(fitted.before, fitted.after, strict=True))
    assert max(fitted.after) < 0.04


def test_too_few_blocks_are_refused_with_the_mend():
    with pytest.raises(ConfigurationError, match=r"only 10 whole blocks.*raise --limit"):
        fit(overconfident_blocks(10), SequentialScaling.identity(GAMMA))


def test_temperatures_alone_have_no_offsets_beside_them_and_lower_the_error_of_the_head():
    fitted = fit_temperatures(overconfident_blocks(6000), "these blocks")
    assert fitted.values[0] == pytest.approx(2.5, rel=0.25)
    assert (fitted.num_blocks, fitted.origin) == (6000, "these blocks")
    assert all(after < before for before, after in zip(fitted.before, fitted.after, strict=True))
