"""What requests say about their last blocks."""

from __future__ import annotations

import numpy as np

from dspark.decoding.types import Acceptance, DraftRequest, SamplingParams
from dspark.engine.past_blocks import OnlineCalibration, PastBlock
from dspark.models.calibration import Calibration

GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
SAMPLED = SamplingParams(acceptance=Acceptance.REJECTION)
# The head is sure of drafts that are rejected.
SURE = PastBlock(10, np.full(4, 2.0, dtype=np.float32))


def request(base: int, num_verified: int, sampling: SamplingParams = GREEDY) -> DraftRequest:
    return DraftRequest("a", 1, base, 17, sampling, 4, num_verified)


def test_confidences_fall_where_sure_drafts_keep_being_rejected():
    online = OnlineCalibration(Calibration.identity(4))
    for _ in range(31):
        online.note(request(11, 3), SURE)
    assert online.learn() is None, "too few"
    online.note(request(11, 3), SURE)
    learnt = online.learn()
    assert learnt is not None
    assert learnt.greedy.apply(SURE.logits)[0] < 0.75 < 0.88
    assert learnt.greedy.apply(SURE.logits)[1] == Calibration.identity(4).greedy.apply(SURE.logits)[1]
    assert learnt.sampling == Calibration.identity(4).sampling
    assert online.errors()["greedy"][0] > 0.5
    assert online.learn() is None, "nothing new"


def test_greedy_and_sampled_requests_are_told_apart():
    online = OnlineCalibration(Calibration.identity(4))
    for _ in range(32):
        online.note(request(15, 4, SAMPLED), SURE)
    learnt = online.learn()
    assert learnt is not None
    assert learnt.greedy == Calibration.identity(4).greedy
    assert (learnt.sampling.apply(SURE.logits) > Calibration.identity(4).sampling.apply(SURE.logits)).all()


def test_what_cannot_be_about_the_remembered_block_is_ignored():
    online = OnlineCalibration(Calibration.identity(4))
    for _ in range(40):
        online.note(request(11, 3), None)
        online.note(request(11, 0), SURE)
        online.note(request(15, 3), SURE)  # more accepted than verified
        online.note(request(10, 3), SURE)  # nothing committed since
        online.note(request(12, 5), SURE)  # more verified than drafted
    assert online.learn() is None
