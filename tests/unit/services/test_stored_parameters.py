"""Parameters of a request, as they are stored: another scheduler reads what the first one wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.service import Service, ServiceTier, Sla
from dspark.decoding.types import Acceptance, GenerationRequest, SamplingParams, StopParams
from services.scheduler.store_schema import params_text, request_of

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
PROMISES = st.none() | st.floats(1e-3, 1e6)
TOKEN_IDS = st.integers(0, 2**31 - 1)
ADJUSTMENTS = st.builds(
    LogitAdjustments,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.dictionaries(TOKEN_IDS, NUMBERS, max_size=4).map(lambda biases: tuple(sorted(biases.items()))),
    st.integers(0, 2**32 - 1),
    st.lists(TOKEN_IDS, max_size=4).map(tuple),
)
REQUESTS = st.builds(
    GenerationRequest,
    st.just("r"),
    st.just((1, 2, 3)),
    st.builds(
        SamplingParams,
        NUMBERS,
        NUMBERS,
        st.integers(0, 99),
        NUMBERS,
        st.integers(0, 2**64 - 1),
        st.sampled_from(Acceptance),
        st.none() | st.integers(0, 20),
        st.none() | ADJUSTMENTS,
    ),
    st.builds(StopParams, st.integers(1, 99), st.frozensets(TOKEN_IDS, max_size=3)),
    st.builds(Service, st.sampled_from(ServiceTier), st.builds(Sla, PROMISES, PROMISES)),
)


@given(REQUESTS)
@settings(deadline=None)
def test_every_parameter_survives_the_store(request: GenerationRequest) -> None:
    assert request_of("r", params_text(request), request.prompt_token_ids) == request


def test_parameters_of_earlier_versions_lack_adjustments_and_tier_and_are_read() -> None:
    request = GenerationRequest("r", (1,), SamplingParams(seed=3), StopParams(9))
    fields = json.loads(params_text(request))
    del fields["adjustments"], fields["service"]
    assert request_of("r", json.dumps(fields), (1,)) == request


@pytest.mark.parametrize("service", [{}, {"tier": "gold", "tokens_per_s": None, "ttft_s": None}, 5])
def test_a_tier_that_cannot_be_read_is_of_another_version(service: object) -> None:
    fields = json.loads(params_text(GenerationRequest("r", (1,), SamplingParams(), StopParams(9))))
    with pytest.raises(ValueError, match=r"another version|gold"):
        request_of("r", json.dumps(fields | {"service": service}), (1,))


@pytest.mark.parametrize("adjustments", [{}, {"later": 1}, 5])
def test_adjustments_that_cannot_be_read_are_of_another_version(adjustments: object) -> None:
    fields = json.loads(params_text(GenerationRequest("r", (1,), SamplingParams(), StopParams(9))))
    with pytest.raises(ValueError, match="another version"):
        request_of("r", json.dumps(fields | {"adjustments": adjustments}), (1,))
