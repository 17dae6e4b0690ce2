"""Messages of the scheduler, to and from domain values."""

from __future__ import annotations

import math
from typing import Literal

from dspark.api.v1 import scheduler_pb2
from dspark.decoding.service import Service, ServiceTier, Sla
from dspark.decoding.types import GenerationRequest, RoundStats, StopParams, TokenDelta
from dspark.errors import DsparkError, EngineError, InvalidRequestError, OverloadedError
from services.runtime.status import class_named, make_error
from services.runtime.wire import (
    finish_reason_from_pb,
    finish_reason_to_pb,
    logprobs_from_pb,
    logprobs_to_pb,
    sampling_from_pb,
    sampling_to_pb,
)
from services.scheduler.info import SchedulerInfo, SpeculationCounters

_TIER_TO_PB = {
    ServiceTier.DEFAULT: scheduler_pb2.SERVICE_TIER_DEFAULT,
    ServiceTier.PRIORITY: scheduler_pb2.SERVICE_TIER_PRIORITY,
    ServiceTier.FLEX: scheduler_pb2.SERVICE_TIER_FLEX,
}
_TIER_FROM_PB = {
    scheduler_pb2.SERVICE_TIER_UNSPECIFIED: ServiceTier.DEFAULT,
    **{value: key for key, value in _TIER_TO_PB.items()},
}


def request_to_pb(request: GenerationRequest) -> scheduler_pb2.GenerateRequest:
    """A request as a message."""
    return scheduler_pb2.GenerateRequest(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling=sampling_to_pb(request.sampling),
        max_new_tokens=request.stop.max_new_tokens,
        stop_token_ids=sorted(request.stop.stop_token_ids),
        service=service_to_pb(request.service),
    )


def request_from_pb(message: scheduler_pb2.GenerateRequest) -> GenerationRequest:
    """The inverse.

    Raises:
        InvalidRequestError: a field is wrong.
    """
    if not message.request_id:
        raise InvalidRequestError("request_id is empty; give the request a unique one", "request_id")
    return GenerationRequest(
        request_id=message.request_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        sampling=sampling_from_pb(message.sampling),
        stop=StopParams(message.max_new_tokens, frozenset(message.stop_token_ids)),
        service=service_from_pb(message.service),
    )


def service_to_pb(service: Service) -> scheduler_pb2.Service:
    """Tier and promise of a request as a message."""
    return scheduler_pb2.Service(
        tier=_TIER_TO_PB[service.tier], tokens_per_s=service.sla.tokens_per_s, ttft_s=service.sla.ttft_s
    )


def service_from_pb(message: scheduler_pb2.Service) -> Service:
    """The inverse.

    Raises:
        InvalidRequestError: a tier of another version, or a promise that is not above 0.
    """
    tier = _TIER_FROM_PB.get(message.tier)
    if tier is None:
        raise InvalidRequestError(f"tier {message.tier} is unknown; update the scheduler", "service.tier")
    return Service(tier, Sla(_promise(message, "tokens_per_s"), _promise(message, "ttft_s")))


def _promise(message: scheduler_pb2.Service, name: Literal["tokens_per_s", "ttft_s"]) -> float | None:
    if not message.HasField(name):
        return None
    value: float = getattr(message, name)
    if not 0.0 < value < math.inf:
        raise InvalidRequestError(
            f"{name} is {value:g}; promise more than 0, and not infinity", f"service.{name}"
        )
    return value


def delta_to_pb(delta: TokenDelta) -> scheduler_pb2.GenerateResponse:
    """Committed tokens as a message."""
    return scheduler_pb2.GenerateResponse(
        start=delta.start,
        token_ids=delta.token_ids,
        logprobs=logprobs_to_pb(delta.logprobs),
        num_drafted=delta.round.num_drafted,
        num_scheduled=delta.round.num_scheduled,
        num_accepted=delta.round.num_accepted,
        finish_reason=finish_reason_to_pb(delta.finish_reason),
    )


def delta_from_pb(request_id: str, message: scheduler_pb2.GenerateResponse) -> TokenDelta:
    """The inverse; the stream knows whose tokens they are."""
    return TokenDelta(
        request_id=request_id,
        start=message.start,
        token_ids=tuple(message.token_ids),
        round=RoundStats(message.num_drafted, message.num_scheduled, message.num_accepted),
        logprobs=logprobs_from_pb(message.logprobs),
        finish_reason=finish_reason_from_pb(message.finish_reason),
    )


def request_delta_to_pb(request_id: str, delta: TokenDelta) -> scheduler_pb2.RequestDelta:
    """Committed tokens of one request of a session as a message."""
    return scheduler_pb2.RequestDelta(request_id=request_id, delta=delta_to_pb(delta))


def request_delta_from_pb(message: scheduler_pb2.RequestDelta) -> TokenDelta:
    """The inverse."""
    return delta_from_pb(message.request_id, message.delta)


def failure_to_pb(request_id: str, error: DsparkError) -> scheduler_pb2.RequestFailure:
    """Why one request of a session ended."""
    return scheduler_pb2.RequestFailure(
        request_id=request_id,
        error=type(error).__name__,
        message=str(error),
        field=error.field if isinstance(error, InvalidRequestError) else "",
        retry_after_s=error.retry_after_s if isinstance(error, OverloadedError) else 0.0,
    )


def failure_from_pb(message: scheduler_pb2.RequestFailure) -> DsparkError:
    """The inverse; a class we do not know is an engine error."""
    kind = class_named(message.error) or EngineError
    return make_error(kind, message.message, field=message.field, retry_after_s=message.retry_after_s)


def info_to_pb(info: SchedulerInfo) -> scheduler_pb2.GetSchedulerInfoResponse:
    """What is served as a message."""
    return scheduler_pb2.GetSchedulerInfoResponse(
        target_name=info.target_name,
        drafter_name=info.drafter_name,
        gamma=info.gamma,
        max_context_len=info.max_context_len,
        eos_token_ids=info.eos_token_ids,
        vocab_size=info.vocab_size,
        is_verifier_ready=info.is_verifier_ready,
        is_drafter_ready=info.is_drafter_ready,
        is_store_healthy=info.is_store_healthy,
        num_running=info.num_running,
        num_waiting=info.num_waiting,
        is_exact=info.is_exact,
        counters=_counters_to_pb(info.counters),
    )


def _counters_to_pb(counters: SpeculationCounters) -> scheduler_pb2.SpeculationCounters:
    return scheduler_pb2.SpeculationCounters(
        num_drafts=counters.num_drafts,
        num_draft_tokens=counters.num_draft_tokens,
        num_accepted_tokens=counters.num_accepted_tokens,
        num_accepted_tokens_per_pos=counters.num_accepted_tokens_per_pos,
        num_proposed_tokens=counters.num_proposed_tokens,
        num_committed_tokens=counters.num_committed_tokens,
        num_rounds=counters.num_rounds,
        num_free_pages=counters.num_free_pages,
        num_pages=counters.num_pages,
        num_preemptions=counters.num_preemptions,
        num_near_ties=counters.num_near_ties,
    )


def info_from_pb(message: scheduler_pb2.GetSchedulerInfoResponse) -> SchedulerInfo:
    """The inverse."""
    return SchedulerInfo(
        target_name=message.target_name,
        drafter_name=message.drafter_name,
        gamma=message.gamma,
        max_context_len=message.max_context_len,
        eos_token_ids=tuple(message.eos_token_ids),
        vocab_size=message.vocab_size,
        is_verifier_ready=message.is_verifier_ready,
        is_drafter_ready=message.is_drafter_ready,
        is_store_healthy=message.is_store_healthy,
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        is_exact=message.is_exact,
        counters=_counters_from_pb(message.counters),
    )


def _counters_from_pb(message: scheduler_pb2.SpeculationCounters) -> SpeculationCounters:
    return SpeculationCounters(
        num_drafts=message.num_drafts,
        num_draft_tokens=message.num_draft_tokens,
        num_accepted_tokens=message.num_accepted_tokens,
        num_accepted_tokens_per_pos=tuple(message.num_accepted_tokens_per_pos),
        num_proposed_tokens=message.num_proposed_tokens,
        num_committed_tokens=message.num_committed_tokens,
        num_rounds=message.num_rounds,
        num_free_pages=message.num_free_pages,
        num_pages=message.num_pages,
        num_preemptions=message.num_preemptions,
        num_near_ties=message.num_near_ties,
    )
