"""Messages shared by the services, to and from domain values. Arrays travel as little-endian bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dspark.api.v1 import common_pb2
from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.types import Acceptance, FinishReason, SamplingParams, SparseProbs, TokenLogprobs
from dspark.errors import InvalidRequestError

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    _SparseField = RepeatedCompositeFieldContainer[common_pb2.SparseProbs]

_ACCEPTANCE_TO_PB = {
    Acceptance.GREEDY: common_pb2.ACCEPTANCE_GREEDY,
    Acceptance.REJECTION: common_pb2.ACCEPTANCE_REJECTION,
    Acceptance.COUPLED: common_pb2.ACCEPTANCE_COUPLED,
}
_ACCEPTANCE_FROM_PB = {value: key for key, value in _ACCEPTANCE_TO_PB.items()}

_FINISH_TO_PB = {
    None: common_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
}
_FINISH_FROM_PB = {value: key for key, value in _FINISH_TO_PB.items()}

# bfloat16 has no numpy type: its 16-bit words travel under its own name.
_DTYPES: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype("<u2"),
    "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "int32": np.dtype("<i4"),
    "uint32": np.dtype("<u4"),
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


def sampling_to_pb(sampling: SamplingParams) -> common_pb2.SamplingParams:
    """Sampling of a request as a message."""
    return common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        acceptance=_ACCEPTANCE_TO_PB[sampling.acceptance],
        num_logprobs=sampling.num_logprobs,
        adjustments=None if sampling.adjustments is None else _adjustments_to_pb(sampling.adjustments),
    )


def _adjustments_to_pb(adjustments: LogitAdjustments) -> common_pb2.LogitAdjustments:
    return common_pb2.LogitAdjustments(
        repetition_penalty=adjustments.repetition_penalty,
        presence_penalty=adjustments.presence_penalty,
        frequency_penalty=adjustments.frequency_penalty,
        logit_bias=dict(adjustments.logit_bias),
        min_tokens=adjustments.min_tokens,
        ending_token_ids=adjustments.ending_token_ids,
    )


def sampling_from_pb(message: common_pb2.SamplingParams) -> SamplingParams:
    """The inverse.

    Raises:
        InvalidRequestError: no acceptance rule is set, or adjustments without a repetition penalty above 0.
    """
    acceptance = _ACCEPTANCE_FROM_PB.get(message.acceptance)
    if acceptance is None:
        raise InvalidRequestError(
            "sampling.acceptance is not set; choose greedy, rejection or coupled", "sampling.acceptance"
        )
    return SamplingParams(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        acceptance=acceptance,
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        adjustments=_adjustments_from_pb(message.adjustments) if message.HasField("adjustments") else None,
    )


def _adjustments_from_pb(message: common_pb2.LogitAdjustments) -> LogitAdjustments:
    if not message.repetition_penalty > 0.0:
        raise InvalidRequestError(
            f"repetition_penalty is {message.repetition_penalty:g}; send a number above 0, 1 to leave it out",
            "repetition_penalty",
        )
    return LogitAdjustments(
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        min_tokens=message.min_tokens,
        ending_token_ids=tuple(message.ending_token_ids),
    )


def finish_reason_to_pb(reason: FinishReason | None) -> common_pb2.FinishReason.ValueType:
    """Why a request ended; unspecified while it runs."""
    return _FINISH_TO_PB[reason]


def finish_reason_from_pb(value: common_pb2.FinishReason.ValueType) -> FinishReason | None:
    """The inverse."""
    return _FINISH_FROM_PB.get(value)


def write_sparse_probs(probs: Iterable[SparseProbs], field: _SparseField) -> None:
    """Append draft distributions to a repeated field.

    In place, because a message that is given to the constructor of another is copied at every level.
    """
    for each in probs:
        field.add(
            token_ids=each.token_ids.astype(_INT32, copy=False).tobytes(),
            probs=each.probs.astype(_FLOAT32, copy=False).tobytes(),
        )


def sparse_probs_from_pb(messages: Iterable[common_pb2.SparseProbs]) -> tuple[SparseProbs, ...]:
    """The inverse; the arrays are read-only views of the messages.

    Raises:
        InvalidRequestError: ids and probabilities do not pair up.
    """
    return tuple(_sparse_from_pb(message) for message in messages)


def _sparse_from_pb(message: common_pb2.SparseProbs) -> SparseProbs:
    token_ids, probs = message.token_ids, message.probs
    if not token_ids or len(token_ids) != len(probs) or len(token_ids) % 4:
        raise InvalidRequestError(
            f"a draft distribution has {len(token_ids)} bytes of token_ids and {len(probs)} of probs; "
            "send 4 of each for every token",
            "probs",
        )
    return SparseProbs(np.frombuffer(token_ids, _INT32), np.frombuffer(probs, _FLOAT32))


def logprobs_to_pb(logprobs: Iterable[TokenLogprobs]) -> list[common_pb2.TokenLogprobs]:
    """Log-probabilities of committed tokens as messages."""
    return [
        common_pb2.TokenLogprobs(
            logprob=each.logprob, top_token_ids=each.top_token_ids, top_logprobs=each.top_logprobs
        )
        for each in logprobs
    ]


def logprobs_from_pb(messages: Iterable[common_pb2.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    """The inverse."""
    return tuple(
        TokenLogprobs(message.logprob, tuple(message.top_token_ids), tuple(message.top_logprobs))
        for message in messages
    )


def write_tensor(array: npt.NDArray[np.generic], message: common_pb2.Tensor) -> None:
    """Fill a message with an array, in place; uint16 words are taken as bfloat16."""
    dtype = array.dtype.newbyteorder("<")
    message.dtype = _DTYPE_NAMES[dtype]
    message.shape.extend(array.shape)
    message.data = array.astype(dtype, copy=False).tobytes()


def tensor_from_pb(message: common_pb2.Tensor) -> npt.NDArray[np.generic]:
    """The inverse; a read-only view of the message.

    Raises:
        InvalidRequestError: unknown dtype, or data that does not fill the shape.
    """
    dtype = _DTYPES.get(message.dtype)
    if dtype is None:
        raise InvalidRequestError(
            f"tensor.dtype is {message.dtype!r}; use one of {', '.join(_DTYPES)}", "tensor.dtype"
        )
    shape = tuple(message.shape)
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if num_bytes != len(message.data):
        raise InvalidRequestError(
            f"tensor.data has {len(message.data)} bytes; shape {shape} of {message.dtype} needs {num_bytes}",
            "tensor.data",
        )
    array: npt.NDArray[np.generic] = np.frombuffer(message.data, dtype).reshape(shape)
    return array


def costs_to_pb(costs: Iterable[tuple[int, float]]) -> list[common_pb2.CostPoint]:
    """Measured costs as messages."""
    return [common_pb2.CostPoint(size=size, seconds=seconds) for size, seconds in costs]


def costs_from_pb(messages: Iterable[common_pb2.CostPoint]) -> tuple[tuple[int, float], ...]:
    """The inverse."""
    return tuple((message.size, message.seconds) for message in messages)


def token_ids_from_pb(token_ids: Sequence[int]) -> npt.NDArray[np.int32]:
    """Repeated token ids as an array.

    Raises:
        InvalidRequestError: an id no vocabulary holds.
    """
    try:
        return np.fromiter(token_ids, np.int32, len(token_ids))
    except OverflowError as error:
        raise InvalidRequestError(
            "token_ids holds an id of 2**31 or more; send ids of the vocabulary", "token_ids"
        ) from error
