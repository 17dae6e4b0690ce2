"""Errors to statuses and back."""

from __future__ import annotations

import grpc
import pytest

from dspark import errors
from dspark.errors import ContextTooLongError, DsparkError, InvalidRequestError, OverloadedError
from services.runtime.status import STATUS_BY_ERROR, details_of, error_of, status_of


def all_errors() -> list[type[DsparkError]]:
    found = [DsparkError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return [kind for kind in found if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_has_a_status_of_its_own_entry(kind: type[DsparkError]) -> None:
    assert kind in STATUS_BY_ERROR


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_comes_back_as_the_same_class_with_its_text(kind: type[DsparkError]) -> None:
    error = kind("déjà vu")
    back = error_of(status_of(error), str(error), details_of(error))
    assert type(back) is kind
    assert str(back) == "déjà vu"


def test_details_travel_with_the_error() -> None:
    invalid = ContextTooLongError("too long", "prömpt")
    back = error_of(status_of(invalid), "too long", details_of(invalid))
    assert isinstance(back, ContextTooLongError)
    assert back.field == "prömpt"
    busy = OverloadedError("full", retry_after_s=2.5)
    back = error_of(status_of(busy), "full", details_of(busy))
    assert isinstance(back, OverloadedError)
    assert back.retry_after_s == 2.5


def test_an_unknown_subclass_takes_the_status_of_its_parent() -> None:
    class OddFieldError(InvalidRequestError):
        """Not in the table."""

    error = OddFieldError("odd", "field")
    assert status_of(error) is grpc.StatusCode.INVALID_ARGUMENT
    assert type(error_of(status_of(error), "odd", details_of(error))) is InvalidRequestError


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_a_status_of_the_transport_becomes_one_of_our_errors(code: grpc.StatusCode) -> None:
    assert isinstance(error_of(code, "text"), DsparkError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.ServiceUnavailableError),
        (grpc.StatusCode.CANCELLED, errors.ServiceUnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineError),
        (grpc.StatusCode.INTERNAL, errors.EngineError),
        (grpc.StatusCode.UNKNOWN, errors.EngineError),
    ],
)
def test_the_loop_can_tell_a_lost_peer_from_a_failed_forward(
    code: grpc.StatusCode, kind: type[DsparkError]
) -> None:
    assert type(error_of(code, "text")) is kind


def test_broken_details_do_not_break_the_translation() -> None:
    metadata = [("dspark-error", "OverloadedError"), ("dspark-retry-after-s", "soon")]
    back = error_of(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", metadata)
    assert isinstance(back, OverloadedError)
    assert back.retry_after_s == 1.0
