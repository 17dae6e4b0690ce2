"""The services of `dspark up` as child processes, and a client that asks their scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dspark.cache import default_cache_dir
from dspark.cli.bench_report import progress
from dspark.cli.options import UpOptions
from dspark.cli.plan import Layout, service_specs
from dspark.cli.runtime_dir import runtime_dir
from dspark.cli.supervisor import Supervisor
from dspark.decoding.types import Acceptance, FinishReason, GenerationRequest, RoundStats, TokenDelta
from dspark.errors import EngineError, ServiceUnavailableError

if TYPE_CHECKING:
    import grpc

    from dspark.api.v1 import scheduler_pb2
    from dspark.api.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub
    from dspark.cli.bench_options import Models

_READY_WAIT_S = 120.0
_POLL_S = 0.2


class ProgressReporter:
    """Says on standard error what happens to the processes."""

    def ready(self, name: str, seconds: float) -> None:
        """A process is ready."""
        progress(f"{name} ready after {seconds:.1f} s")

    def died(self, name: str, how: str, delay_s: float) -> None:
        """A process ended; figures of this run are worth nothing."""
        progress(f"{name} {how}; starting it again in {delay_s:.1f} s")

    def gave_up(self, name: str, why: str) -> None:
        """A process stays away."""
        progress(f"{name} stays down: {why}")


@asynccontextmanager
async def served(
    models: Models, *, policy: str, threads: int, pool_tokens: int
) -> AsyncIterator[SessionClient]:
    """Run drafter, verifier and scheduler on unix sockets; yields a client of the scheduler.

    Raises:
        ProcessFailedError: a process cannot be started.
        ServiceUnavailableError: they do not find each other in time.
    """
    import grpc

    engine = {"THREADS": str(threads), "POOL_TOKENS": str(pool_tokens)}
    options = UpOptions(
        target=models.target,
        drafter=models.drafter,
        redis_url="",
        policy=policy,
        settings={"drafter": engine, "verifier": engine},
    )
    with runtime_dir() as runtime:
        layout = Layout(runtime, default_cache_dir(), models.target)
        async with Supervisor(runtime, reporter=ProgressReporter()) as supervisor:
            supervisor.launch([spec for spec in service_specs(options, layout) if spec.name != "gateway"])
            await supervisor.wait_ready()
            async with grpc.aio.insecure_channel(layout.address("scheduler")) as channel:
                client = SessionClient(channel)
                await client.wait_ready(needs_drafter=models.drafter is not None)
                yield client


class SessionClient:
    """Asks the scheduler over one stream per group of requests. Knows only the wire."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        from dspark.api.v1 import scheduler_pb2_grpc

        self._stub: SchedulerServiceAsyncStub = scheduler_pb2_grpc.SchedulerServiceStub(channel)

    async def wait_ready(self, *, needs_drafter: bool) -> None:
        """Wait until the scheduler has found its peers.

        Raises:
            ServiceUnavailableError: it did not in two minutes.
        """
        from dspark.api.v1 import scheduler_pb2

        try:
            async with asyncio.timeout(_READY_WAIT_S):
                while True:
                    info = await self._stub.GetSchedulerInfo(scheduler_pb2.GetSchedulerInfoRequest())
                    if info.is_verifier_ready and (info.is_drafter_ready or not needs_drafter):
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise ServiceUnavailableError(
                f"the services did not find each other in {_READY_WAIT_S:g} s"
            ) from error

    async def generate(self, requests: Sequence[GenerationRequest]) -> dict[str, list[TokenDelta]]:
        """The deltas of all requests, by id.

        Raises:
            EngineError: one of them failed.
        """
        from dspark.api.v1 import scheduler_pb2

        call = self._stub.GenerateSession()
        for request in requests:
            await call.write(scheduler_pb2.GenerateSessionRequest(start=_message(request)))
        deltas: dict[str, list[TokenDelta]] = {request.request_id: [] for request in requests}
        num_running = len(requests)
        async for response in call:
            for failure in response.failures:
                raise EngineError(f"request {failure.request_id} failed: {failure.message}")
            for delta in _deltas(response.deltas):
                deltas[delta.request_id].append(delta)
                num_running -= delta.finish_reason is not None
            if num_running == 0:
                break
        await call.done_writing()
        return deltas


def _message(request: GenerationRequest) -> scheduler_pb2.GenerateRequest:
    """A greedy request on the wire."""
    from dspark.api.v1 import common_pb2, scheduler_pb2

    assert request.sampling.acceptance is Acceptance.GREEDY, request.sampling
    return scheduler_pb2.GenerateRequest(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling=common_pb2.SamplingParams(top_p=1.0, acceptance=common_pb2.ACCEPTANCE_GREEDY),
        max_new_tokens=request.stop.max_new_tokens,
        stop_token_ids=sorted(request.stop.stop_token_ids),
    )


def _deltas(messages: Iterable[scheduler_pb2.RequestDelta]) -> Iterable[TokenDelta]:
    from dspark.api.v1 import common_pb2

    reasons = {
        common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
        common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
        common_pb2.FINISH_REASON_ABORT: FinishReason.ABORT,
    }
    for message in messages:
        delta = message.delta
        yield TokenDelta(
            request_id=message.request_id,
            start=delta.start,
            token_ids=tuple(delta.token_ids),
            round=RoundStats(delta.num_drafted, delta.num_scheduled, delta.num_accepted),
            finish_reason=reasons.get(delta.finish_reason),
        )
