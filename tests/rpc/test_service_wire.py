"""Every message survives the wire: domain to bytes to domain."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from dspark.api.v1 import common_pb2, drafter_pb2, scheduler_pb2, verifier_pb2
from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.types import (
    Acceptance,
    DraftBlock,
    DrafterInfo,
    DraftRequest,
    FinishReason,
    GenerationRequest,
    OpenRequest,
    PrefillItem,
    RoundStats,
    SamplingParams,
    SparseProbs,
    StepCost,
    StepResult,
    StopParams,
    TokenDelta,
    TokenLogprobs,
    VerifierInfo,
    VerifyItem,
    VerifyOutcome,
    VerifyStatus,
)
from dspark.errors import InvalidRequestError
from services.drafter import wire as drafter_wire
from services.runtime import wire
from services.scheduler import wire as scheduler_wire
from services.scheduler.info import SchedulerInfo, SpeculationCounters
from services.verifier import wire as verifier_wire
from tests.feature_batches import feature_batch


def given(*strategies):
    """Without hypothesis's deadline: on a busy machine it measures the machine."""
    return lambda test: settings(deadline=None)(hypothesis_given(*strategies)(test))


U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TOKEN = st.integers(0, 2**31 - 1)
# -1 is the embedding
LAYER = st.integers(-1, 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
TOKENS = st.lists(TOKEN, max_size=6).map(tuple)
F32 = st.floats(width=32, allow_nan=False)
F64 = st.floats(allow_nan=False)
COSTS = st.lists(st.tuples(U32, F64), max_size=3).map(tuple)


def token_array(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


ADJUSTMENTS = st.builds(
    LogitAdjustments,
    st.floats(1e-6, 1e6),
    F64,
    F64,
    st.dictionaries(TOKEN, F64, max_size=4).map(lambda biases: tuple(sorted(biases.items()))),
    U32,
    TOKENS,
)
SAMPLING = st.builds(
    SamplingParams,
    F64,
    F64,
    U32,
    F64,
    U64,
    st.sampled_from(Acceptance),
    st.none() | st.integers(0, 20),
    st.none() | ADJUSTMENTS,
)
SPARSE = st.lists(st.tuples(TOKEN, st.floats(2.0**-60, 1, width=32)), min_size=1, max_size=5).map(
    lambda pairs: SparseProbs(
        token_array([token for token, _ in pairs]), np.array([p for _, p in pairs], np.float32)
    )
)
LOGPROBS = st.builds(TokenLogprobs, F32, TOKENS, st.lists(F32, max_size=4).map(tuple))


@st.composite
def drafts(draw: st.DrawFn) -> tuple[np.ndarray, tuple[SparseProbs, ...]]:
    num_drafts = draw(st.integers(0, 4))
    token_ids = draw(st.lists(TOKEN, min_size=num_drafts, max_size=num_drafts))
    has_probs = draw(st.booleans())
    probs = draw(st.lists(SPARSE, min_size=num_drafts, max_size=num_drafts)) if has_probs else []
    return token_array(token_ids), tuple(probs)


def same(left: object, right: object) -> bool:
    """Equality that looks into arrays, types included."""
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.dtype == right.dtype and np.array_equal(left, right)
    if is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, each.name), getattr(right, each.name)) for each in fields(left)
        )
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def over_the_wire(message):
    return type(message).FromString(message.SerializeToString())


@given(SAMPLING)
def test_sampling(sampling: SamplingParams) -> None:
    assert wire.sampling_from_pb(over_the_wire(wire.sampling_to_pb(sampling))) == sampling


def test_adjustments_without_a_repetition_penalty_are_refused() -> None:
    message = wire.sampling_to_pb(SamplingParams(adjustments=LogitAdjustments(min_tokens=1)))
    message.adjustments.ClearField("repetition_penalty")
    with pytest.raises(InvalidRequestError, match="above 0") as caught:
        wire.sampling_from_pb(message)
    assert caught.value.field == "repetition_penalty"


@given(st.builds(DrafterInfo, TEXT, U32, st.lists(LAYER, max_size=4).map(tuple), U32, U32, COSTS))
def test_drafter_info(info: DrafterInfo) -> None:
    assert drafter_wire.info_from_pb(over_the_wire(drafter_wire.info_to_pb(info))) == info


@given(
    st.lists(
        st.builds(
            DraftRequest,
            NAME,
            U64,
            st.integers(1, 2**32 - 1),
            TOKEN,
            SAMPLING,
            st.integers(1, 9),
            st.integers(0, 9),
            st.integers(0, 15),
        )
    )
)
def test_draft_requests(requests: list[DraftRequest]) -> None:
    assert drafter_wire.requests_from_pb(over_the_wire(drafter_wire.requests_to_pb(requests))) == requests


@given(NAME, U64, U32, drafts(), st.booleans(), st.data())
def test_draft_blocks(request_id, epoch, base, block, is_copied, data) -> None:
    token_ids, probs = block
    confidence = np.array(
        data.draw(st.lists(F32, min_size=len(token_ids), max_size=len(token_ids))), np.float32
    )
    sent = [DraftBlock(request_id, epoch, base, token_ids, confidence, probs, is_copied)]
    message = over_the_wire(drafter_wire.blocks_to_pb(sent, 123))
    assert message.draft_ns == 123
    assert same(drafter_wire.blocks_from_pb(message), sent)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, np.float16, np.float64, np.int32])
def test_features_keep_their_type_and_can_be_given_to_torch(dtype: type) -> None:
    sent = [feature_batch("r", 7, 3, np.arange(6).reshape(2, 3).astype(dtype))]
    back = drafter_wire.features_from_pb(over_the_wire(drafter_wire.features_to_pb(sent)))
    assert same(back, sent)
    assert back[0].features.flags.writeable


def test_token_ids_travel_where_no_layer_is_tapped() -> None:
    sent = [feature_batch("r", 7, 3, np.zeros((2, 0), np.uint16))]
    assert same(drafter_wire.features_from_pb(over_the_wire(drafter_wire.features_to_pb(sent))), sent)


@given(
    st.builds(
        VerifierInfo,
        name=TEXT,
        vocab_size=U32,
        max_context_len=U32,
        page_size=U32,
        num_pages=U32,
        eos_token_ids=TOKENS,
        step_cost=st.lists(st.builds(StepCost, U32, F64, U32, U32), max_size=3).map(tuple),
        dtype=TEXT,
        is_exact=st.booleans(),
        exact_reason=TEXT,
    )
)
def test_verifier_info(info: VerifierInfo) -> None:
    assert verifier_wire.info_from_pb(over_the_wire(verifier_wire.info_to_pb(info))) == info


def test_steps_of_a_verifier_that_keeps_no_contexts_are_read_as_those_of_any_context() -> None:
    message = verifier_pb2.GetVerifierInfoResponse(step_cost=[common_pb2.CostPoint(size=4, seconds=0.5)])
    assert verifier_wire.info_from_pb(over_the_wire(message)).step_cost == (StepCost(4, 0.5),)


@given(NAME, U64, TOKENS, SAMPLING)
def test_open_request(request_id, epoch, token_ids, sampling) -> None:
    sent = OpenRequest(request_id, epoch, token_ids, len(token_ids) // 2, sampling)
    assert verifier_wire.open_from_pb(over_the_wire(verifier_wire.open_to_pb(sent))) == sent


VERIFY = drafts().flatmap(
    lambda each: st.builds(VerifyItem, NAME, U64, U32, st.just(each[0]), st.just(each[1]))
)


@given(st.lists(st.builds(PrefillItem, NAME, U64, U32) | VERIFY, max_size=4))
def test_step_items(items) -> None:
    assert same(verifier_wire.items_from_pb(over_the_wire(verifier_wire.items_to_pb(items))), items)


OUTCOME = st.builds(
    VerifyOutcome,
    NAME,
    U64,
    U32,
    st.sampled_from(VerifyStatus),
    U32,
    TOKENS,
    st.lists(LOGPROBS, max_size=3).map(tuple),
    U32,
)


@given(st.builds(StepResult, st.lists(OUTCOME, max_size=3).map(tuple), U32, U64, U32))
def test_step_result(result: StepResult) -> None:
    assert verifier_wire.result_from_pb(over_the_wire(verifier_wire.result_to_pb(result))) == result


@given(NAME, TOKENS, SAMPLING, U32, st.frozensets(TOKEN, max_size=4))
def test_generation_request(request_id, prompt, sampling, limit, stops) -> None:
    sent = GenerationRequest(request_id, prompt, sampling, StopParams(limit, stops))
    assert scheduler_wire.request_from_pb(over_the_wire(scheduler_wire.request_to_pb(sent))) == sent


@given(
    st.builds(
        TokenDelta,
        NAME,
        U32,
        TOKENS,
        st.builds(RoundStats, U32, U32, U32),
        st.lists(LOGPROBS, max_size=3).map(tuple),
        st.none() | st.sampled_from(FinishReason),
    )
)
def test_token_delta(delta: TokenDelta) -> None:
    message = over_the_wire(scheduler_wire.delta_to_pb(delta))
    assert scheduler_wire.delta_from_pb(delta.request_id, message) == delta


COUNTERS = st.builds(
    SpeculationCounters,
    U64,
    U64,
    U64,
    st.lists(U64, max_size=8).map(tuple),
    U64,
    U64,
    U64,
    U64,
    U64,
    U64,
    U64,
)


@given(
    st.builds(
        SchedulerInfo,
        target_name=TEXT,
        drafter_name=TEXT,
        gamma=U32,
        max_context_len=U32,
        eos_token_ids=TOKENS,
        vocab_size=U32,
        is_verifier_ready=st.booleans(),
        is_drafter_ready=st.booleans(),
        is_store_healthy=st.booleans(),
        num_running=U32,
        num_waiting=U32,
        is_exact=st.booleans(),
        counters=COUNTERS,
    )
)
def test_scheduler_info(info: SchedulerInfo) -> None:
    assert scheduler_wire.info_from_pb(over_the_wire(scheduler_wire.info_to_pb(info))) == info


def probs_message(num_ids: int, num_probs: int) -> common_pb2.SparseProbs:
    return common_pb2.SparseProbs(token_ids=bytes(num_ids), probs=bytes(num_probs))


@pytest.mark.parametrize(
    ("read", "message", "field"),
    [
        (wire.sampling_from_pb, common_pb2.SamplingParams(), "sampling.acceptance"),
        (wire.tensor_from_pb, common_pb2.Tensor(dtype="int4"), "tensor.dtype"),
        (wire.tensor_from_pb, common_pb2.Tensor(dtype="int32", shape=[2], data=b"1234"), "tensor.data"),
        (wire.sparse_probs_from_pb, [probs_message(8, 4)], "probs"),
        (wire.sparse_probs_from_pb, [probs_message(0, 0)], "probs"),
        (wire.sparse_probs_from_pb, [probs_message(6, 6)], "probs"),
        (wire.token_ids_from_pb, [2**31], "token_ids"),
        (
            drafter_wire.requests_from_pb,
            drafter_pb2.DraftRequest(items=[drafter_pb2.DraftItem(request_id="r", max_drafts=1)]),
            "base_committed_len",
        ),
        (
            drafter_wire.requests_from_pb,
            drafter_pb2.DraftRequest(items=[drafter_pb2.DraftItem(request_id="r", base_committed_len=1)]),
            "max_drafts",
        ),
        (
            drafter_wire.blocks_from_pb,
            drafter_pb2.DraftResponse(blocks=[drafter_pb2.DraftBlock(token_ids=[1])]),
            "blocks",
        ),
        (
            drafter_wire.features_from_pb,
            drafter_pb2.PushFeaturesRequest(
                batches=[
                    drafter_pb2.FeatureBatch(
                        features=common_pb2.Tensor(dtype="int32", shape=[1], data=bytes(4))
                    )
                ]
            ),
            "features",
        ),
        (
            drafter_wire.features_from_pb,
            drafter_pb2.PushFeaturesRequest(
                batches=[
                    drafter_pb2.FeatureBatch(
                        token_ids=[1, 2],
                        features=common_pb2.Tensor(dtype="int32", shape=[1, 1], data=bytes(4)),
                    )
                ]
            ),
            "token_ids",
        ),
        (verifier_wire.open_from_pb, verifier_pb2.OpenRequest(), "request_id"),
        (verifier_wire.open_from_pb, verifier_pb2.OpenRequest(request_id="r", prompt_len=1), "prompt_len"),
        (
            verifier_wire.items_from_pb,
            verifier_pb2.VerifyRequest(items=[verifier_pb2.StepItem()]),
            "items",
        ),
        (
            verifier_wire.items_from_pb,
            verifier_pb2.VerifyRequest(
                items=[
                    verifier_pb2.StepItem(
                        verify=verifier_pb2.VerifyItem(
                            draft_token_ids=[1, 2], draft_probs=[probs_message(4, 4)]
                        )
                    )
                ]
            ),
            "draft_probs",
        ),
        (
            verifier_wire.result_from_pb,
            verifier_pb2.VerifyResponse(outcomes=[verifier_pb2.VerifyOutcome()]),
            "status",
        ),
        (scheduler_wire.request_from_pb, scheduler_pb2.GenerateRequest(), "request_id"),
    ],
)
def test_a_wrong_field_is_named(read, message, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(message)
    assert caught.value.field == field
