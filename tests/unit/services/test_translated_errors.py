"""What a failed call is to its caller."""

from __future__ import annotations

import grpc
import pytest

from dspark.errors import EngineError, ServiceUnavailableError
from services.runtime.status import translated_errors


def rpc_error(details: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, details)


def test_a_message_that_met_a_stream_just_ended_by_its_peer_says_that_the_peer_is_away():
    with (
        pytest.raises(ServiceUnavailableError, match="verifier: the call has ended"),
        translated_errors("verifier"),
    ):
        raise rpc_error("Internal error from Core")


def test_an_internal_error_of_the_peer_stays_an_engine_error():
    with pytest.raises(EngineError, match="verifier: boom"), translated_errors("verifier"):
        raise rpc_error("boom")
