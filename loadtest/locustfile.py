"""The Locust side: a user that streams chat completions, and the verdict at the end of the run.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8000      (with Locust's page)
    python -m loadtest                                                 (without)

Closed loop: each user waits for its answer before it asks again, so a slow server lowers the arrival rate.
Locust comes first among the imports: it patches sockets for gevent.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import gevent
from locust import FastHttpUser, between, events, task
from locust.argument_parser import LocustArgumentParser

from loadtest.prompts import choose
from loadtest.report import report_dict, verdict_lines, write_report
from loadtest.samples import Sample, StreamMeter, in_window
from loadtest.sla import DEFAULT_SLA, Sla
from loadtest.sse import read_events
from loadtest.verdict import judge, measure

_PATH = "/v1/chat/completions"
_LAG_PROBE_S = 0.05


class Run:
    """Samples and lags of one run, kept on the Locust environment."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.samples: list[Sample] = []
        self.lags_s: list[float] = []
        self.ended_s: float | None = None

    def now_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.started

    def probe_lag(self) -> None:
        """Note again and again by how much a short sleep overslept: how late the generator is."""
        while True:
            before = time.perf_counter()
            gevent.sleep(_LAG_PROBE_S)
            self.lags_s.append(time.perf_counter() - before - _LAG_PROBE_S)


class ChatUser(FastHttpUser):
    """Asks, reads the answer to its end, thinks for a moment, asks again."""

    wait_time = between(0.0, 0.2)
    network_timeout = 120.0
    connection_timeout = 10.0
    # Users are told apart, so that each has its own repeatable choice of prompts.
    numbers = itertools.count()

    def on_start(self) -> None:
        """Choose this user's row of prompts; take the API key, if one is set."""
        self._rng = Random(next(self.numbers))
        key = os.environ.get("DSPARK_API_KEY")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    @task
    def ask(self) -> None:
        """One streamed chat completion."""
        run: Run = self.environment.dspark_run
        kind, prompt = choose(self._rng)
        meter = StreamMeter(kind, run.now_s())
        with self.client.post(
            _PATH,
            json=self._body(prompt),
            headers=self._headers,
            stream=True,
            catch_response=True,
            name=kind,
        ) as response:
            sample = _read_stream(response, meter, run)
            run.samples.append(sample)
            if sample.error:
                response.failure(sample.error)
            else:
                response.success()
        _show(self.environment, sample)

    def _body(self, prompt: str) -> dict[str, Any]:
        options = self.environment.parsed_options
        return {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_round_details": True,
        }


def _read_stream(response: Any, meter: StreamMeter, run: Run) -> Sample:
    if response.status_code != 200:
        text = response.error or f"HTTP status {response.status_code}"
        return Sample(meter.kind, meter.sent_s, error=str(text))
    lines = _lines(response.stream)
    error = ""
    try:
        for event in read_events(lines):
            meter.take(event, run.now_s())
    except (OSError, ValueError, gevent.Timeout) as problem:
        error = f"{type(problem).__name__}: {problem}"
    sample = meter.sample(run.now_s(), error)
    if not sample.error:
        # Read to the very end, so that the connection can be used again.
        with contextlib.suppress(OSError):
            collections.deque(lines, maxlen=0)
    return sample


class _EndAware:
    """A socket that raises at its end: geventhttpclient would go on reading a cut answer for ever."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def recv(self, size: int) -> bytes:
        """Receive at least one byte."""
        data: bytes = self._sock.recv(size)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def _lines(stream: Any) -> Iterator[bytes]:
    if stream._sock is not None and not isinstance(stream._sock, _EndAware):
        stream._sock = _EndAware(stream._sock)
    # Not `iter_content`: it waits until a whole piece is full and so hides when a token came.
    while line := stream.readline(b"\n"):
        yield line


def _show(environment: Any, sample: Sample) -> None:
    """Feed Locust's own page; our figures come from the samples."""
    if sample.error:
        return
    for name, seconds in (("TTFT", sample.ttft_s), ("TPOT", sample.tpot_s), ("E2E", sample.e2e_s)):
        if seconds is not None:
            environment.events.request.fire(
                request_type=name,
                name=sample.kind,
                response_time=seconds * 1e3,
                response_length=sample.num_tokens,
                exception=None,
                context={},
            )


def _add_options(parser: LocustArgumentParser) -> None:
    parser.add_argument("--sla", type=Path, default=DEFAULT_SLA, help="YAML file with the bounds")
    parser.add_argument("--warmup", type=float, default=5.0, metavar="S", help="seconds that do not count")
    parser.add_argument("--report", type=Path, default=None, metavar="FILE", help="write the run as JSON")
    parser.add_argument("--max-tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")


def _prepare(environment: Any, **_: object) -> None:
    environment.dspark_run = Run()
    environment.dspark_sla = Sla.read(environment.parsed_options.sla)


def _begin(environment: Any, **_: object) -> None:
    environment.dspark_run = Run()
    gevent.spawn(environment.dspark_run.probe_lag)


def _end(environment: Any, **_: object) -> None:
    environment.dspark_run.ended_s = environment.dspark_run.now_s()


def _conclude(environment: Any, **_: object) -> None:
    run: Run = environment.dspark_run
    sla: Sla = environment.dspark_sla
    options = environment.parsed_options
    window_s = max(0.0, (run.ended_s or run.now_s()) - options.warmup)
    samples = in_window(run.samples, options.warmup)
    figures = measure(samples, sla, window_s=window_s, lags_s=run.lags_s)
    verdict = judge(figures, sla)
    settings = {
        "host": environment.host,
        "num_users": options.num_users,
        "warmup_s": options.warmup,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "arrivals": "closed loop",
    }
    print("\n".join(verdict_lines(figures, verdict)))
    if options.report is not None:
        write_report(options.report, report_dict(figures, verdict, sla, settings))
    environment.process_exit_code = int(verdict.outcome)


_hooks: Any = events  # without types
_hooks.init_command_line_parser.add_listener(_add_options)
_hooks.init.add_listener(_prepare)
_hooks.test_start.add_listener(_begin)
_hooks.test_stopping.add_listener(_end)
_hooks.quitting.add_listener(_conclude)
