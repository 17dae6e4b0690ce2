"""A scheduler that takes an adjusted request over counts its tokens as the lost one did."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.types import Acceptance, GenerationRequest, SamplingParams, StopParams
from dspark.evaluation.generation import LocalDecoder
from dspark.evaluation.lossless.tiny import load_tiny_engines
from dspark.evaluation.threads import one_thread
from dspark.rounds.local import LocalDrafter, LocalVerifier
from dspark.rounds.loop import RoundLoop
from dspark.rounds.planner import planner_of
from services.scheduler.store_schema import params_text, request_of
from tests.fakes import FakeStore

PROMPT = (1, 3, 0, 2, 3)
ADJUSTMENTS = LogitAdjustments(1.3, 0.6, 0.8, ((1, 0.7),), min_tokens=9, ending_token_ids=(4,))
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY, adjustments=ADJUSTMENTS),
    "coupled": SamplingParams(seed=3, acceptance=Acceptance.COUPLED, adjustments=ADJUSTMENTS),
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    with one_thread():
        engines = load_tiny_engines(tmp_path_factory.mktemp("tiny"), seed=2)
        yield engines
        engines.worker.shutdown()


@pytest.mark.parametrize("num_kept", [0, 4, 9, 17])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
async def test_the_rest_of_the_output_is_what_it_would_have_been(engines, sampling, num_kept):
    request = GenerationRequest("r", PROMPT, sampling, StopParams(24))
    async with LocalDecoder(engines, policy="fixed") as decoder:
        (whole,) = await decoder.generate([request])
        (free,) = await decoder.generate([replace(request, sampling=replace(sampling, adjustments=None))])
    assert whole.token_ids != free.token_ids
    assert 4 not in whole.token_ids[:9]
    kept = whole.token_ids[:num_kept]
    store = FakeStore()
    # As it comes out of the store.
    store.create(request_of("r", params_text(request), PROMPT), 1, kept)
    worker = engines.worker
    drafter = LocalDrafter(engines.drafter, worker)
    verifier = LocalVerifier(engines.target, drafter, worker=worker)
    loop = RoundLoop(drafter, verifier, planner=planner_of("fixed", fixed_len=3), store=store, epoch=1 << 20)
    running = asyncio.create_task(loop.run())
    await loop.wait_until_ready()
    rest = [token async for delta in loop.resume("r", kept) for token in delta.token_ids]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (*kept, *rest) == whole.token_ids
