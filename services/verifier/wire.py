"""Messages of the verifier, to and from domain values."""

from __future__ import annotations

from collections.abc import Iterable

from dspark.api.v1 import common_pb2, verifier_pb2
from dspark.decoding.types import (
    OpenRequest,
    PrefillItem,
    StepCost,
    StepResult,
    VerifierInfo,
    VerifyItem,
    VerifyOutcome,
    VerifyStatus,
)
from dspark.errors import InvalidRequestError
from services.runtime.wire import (
    logprobs_from_pb,
    logprobs_to_pb,
    sampling_from_pb,
    sampling_to_pb,
    sparse_probs_from_pb,
    token_ids_from_pb,
    write_sparse_probs,
)

StepItem = PrefillItem | VerifyItem

_STATUS_TO_PB = {
    VerifyStatus.COMMITTED: verifier_pb2.VERIFY_STATUS_COMMITTED,
    VerifyStatus.PREFILLING: verifier_pb2.VERIFY_STATUS_PREFILLING,
    VerifyStatus.STALE: verifier_pb2.VERIFY_STATUS_STALE,
    VerifyStatus.UNKNOWN: verifier_pb2.VERIFY_STATUS_UNKNOWN,
    VerifyStatus.OUT_OF_PAGES: verifier_pb2.VERIFY_STATUS_OUT_OF_PAGES,
}
_STATUS_FROM_PB = {value: key for key, value in _STATUS_TO_PB.items()}


def info_to_pb(info: VerifierInfo) -> verifier_pb2.GetVerifierInfoResponse:
    """The loaded target as a message."""
    return verifier_pb2.GetVerifierInfoResponse(
        name=info.name,
        vocab_size=info.vocab_size,
        max_context_len=info.max_context_len,
        page_size=info.page_size,
        num_pages=info.num_pages,
        eos_token_ids=info.eos_token_ids,
        step_cost=[
            common_pb2.CostPoint(
                size=one.batch_tokens,
                seconds=one.seconds,
                num_requests=one.num_requests,
                context_len=one.context_len,
            )
            for one in info.step_cost
        ],
        dtype=info.dtype,
        is_exact=info.is_exact,
        exact_reason=info.exact_reason,
    )


def info_from_pb(message: verifier_pb2.GetVerifierInfoResponse) -> VerifierInfo:
    """The inverse."""
    return VerifierInfo(
        name=message.name,
        vocab_size=message.vocab_size,
        max_context_len=message.max_context_len,
        page_size=message.page_size,
        num_pages=message.num_pages,
        eos_token_ids=tuple(message.eos_token_ids),
        step_cost=tuple(
            StepCost(one.size, one.seconds, one.num_requests, one.context_len) for one in message.step_cost
        ),
        dtype=message.dtype,
        is_exact=message.is_exact,
        exact_reason=message.exact_reason,
    )


def open_to_pb(request: OpenRequest) -> verifier_pb2.OpenRequest:
    """A request to hold as a message."""
    return verifier_pb2.OpenRequest(
        request_id=request.request_id,
        epoch=request.epoch,
        token_ids=request.token_ids,
        prompt_len=request.prompt_len,
        sampling=sampling_to_pb(request.sampling),
    )


def open_from_pb(message: verifier_pb2.OpenRequest) -> OpenRequest:
    """The inverse.

    Raises:
        InvalidRequestError: a field is wrong.
    """
    if not message.request_id:
        raise InvalidRequestError("request_id is empty; give the request a unique one", "request_id")
    if message.prompt_len > len(message.token_ids):
        raise InvalidRequestError(
            f"prompt_len is {message.prompt_len} of {len(message.token_ids)} token_ids; count the first",
            "prompt_len",
        )
    return OpenRequest(
        request_id=message.request_id,
        epoch=message.epoch,
        token_ids=tuple(message.token_ids),
        prompt_len=message.prompt_len,
        sampling=sampling_from_pb(message.sampling),
    )


def items_to_pb(items: Iterable[StepItem]) -> verifier_pb2.VerifyRequest:
    """The items of one step as a message."""
    request = verifier_pb2.VerifyRequest()
    for item in items:
        message = request.items.add()
        if isinstance(item, PrefillItem):
            message.prefill.request_id = item.request_id
            message.prefill.epoch = item.epoch
            message.prefill.num_tokens = item.num_tokens
        else:
            _write_verify(item, message.verify)
    return request


def _write_verify(item: VerifyItem, message: verifier_pb2.VerifyItem) -> None:
    message.request_id = item.request_id
    message.epoch = item.epoch
    message.base_committed_len = item.base_committed_len
    message.draft_token_ids.extend(item.draft_token_ids.tolist())
    write_sparse_probs(item.draft_probs, message.draft_probs)


def items_from_pb(message: verifier_pb2.VerifyRequest) -> list[StepItem]:
    """The inverse.

    Raises:
        InvalidRequestError: an item says nothing, or its distributions do not pair with its drafts.
    """
    return [_item_from_pb(item) for item in message.items]


def _item_from_pb(message: verifier_pb2.StepItem) -> StepItem:
    kind = message.WhichOneof("item")
    if kind == "prefill":
        prefill = message.prefill
        return PrefillItem(prefill.request_id, prefill.epoch, prefill.num_tokens)
    if kind is None:
        raise InvalidRequestError("an item of the step is empty; set prefill or verify", "items")
    verify = message.verify
    num_drafts = len(verify.draft_token_ids)
    if len(verify.draft_probs) not in (0, num_drafts):
        raise InvalidRequestError(
            f"{verify.request_id!r} has {num_drafts} drafts and {len(verify.draft_probs)} distributions; "
            "send one for each draft, or none",
            "draft_probs",
        )
    return VerifyItem(
        request_id=verify.request_id,
        epoch=verify.epoch,
        base_committed_len=verify.base_committed_len,
        draft_token_ids=token_ids_from_pb(verify.draft_token_ids),
        draft_probs=sparse_probs_from_pb(verify.draft_probs),
    )


def result_to_pb(result: StepResult) -> verifier_pb2.VerifyResponse:
    """The result of a step as a message."""
    return verifier_pb2.VerifyResponse(
        outcomes=[_outcome_to_pb(outcome) for outcome in result.outcomes],
        batch_tokens=result.batch_tokens,
        verify_ns=result.verify_ns,
        num_free_pages=result.num_free_pages,
    )


def _outcome_to_pb(outcome: VerifyOutcome) -> verifier_pb2.VerifyOutcome:
    return verifier_pb2.VerifyOutcome(
        request_id=outcome.request_id,
        epoch=outcome.epoch,
        base_committed_len=outcome.base_committed_len,
        status=_STATUS_TO_PB[outcome.status],
        num_accepted=outcome.num_accepted,
        token_ids=outcome.token_ids,
        logprobs=logprobs_to_pb(outcome.logprobs),
        num_near_ties=outcome.num_near_ties,
    )


def result_from_pb(message: verifier_pb2.VerifyResponse) -> StepResult:
    """The inverse.

    Raises:
        InvalidRequestError: an outcome without a status.
    """
    return StepResult(
        outcomes=tuple(_outcome_from_pb(outcome) for outcome in message.outcomes),
        batch_tokens=message.batch_tokens,
        verify_ns=message.verify_ns,
        num_free_pages=message.num_free_pages,
    )


def _outcome_from_pb(message: verifier_pb2.VerifyOutcome) -> VerifyOutcome:
    status = _STATUS_FROM_PB.get(message.status)
    if status is None:
        raise InvalidRequestError(
            f"outcome of {message.request_id!r} has status {message.status}; verifier and scheduler are of "
            "different versions",
            "status",
        )
    return VerifyOutcome(
        request_id=message.request_id,
        epoch=message.epoch,
        base_committed_len=message.base_committed_len,
        status=status,
        num_accepted=message.num_accepted,
        token_ids=tuple(message.token_ids),
        logprobs=logprobs_from_pb(message.logprobs),
        num_near_ties=message.num_near_ties,
    )
