"""`dspark up`: starts store, drafter, verifier, scheduler and gateway on this machine and keeps them up."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dspark import __version__
from dspark.cache import default_cache_dir
from dspark.cli.checks import check_startable
from dspark.cli.child_log import ChildLog
from dspark.cli.keeper import CONFIGURATION_EXIT_CODE, ProcessFailedError
from dspark.cli.machine import store_binary
from dspark.cli.options import UpOptions, add_up_options, read_options
from dspark.cli.plan import Layout, prepare_spec, service_specs, store_spec
from dspark.cli.process import ChildProcess
from dspark.cli.runtime_dir import runtime_dir
from dspark.cli.supervisor import Supervisor
from dspark.cli.up_output import ConsoleReporter, print_failure, print_welcome


def add_parser(subparsers: Any) -> None:
    """Add `dspark up`."""
    parser = subparsers.add_parser("up", help="start everything on this machine", description=__doc__)
    add_up_options(parser)
    parser.add_argument("--verbose", action="store_true", help="show what the processes log")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Start everything, stay until told to stop, leave nothing behind."""
    options = read_options(args)
    check_startable(options)
    with runtime_dir() as runtime:
        return asyncio.run(_Up(options, runtime, verbose=args.verbose).run())


# A step that takes longer says what it does.
_SILENCE_S = 1.5


class _Up:
    """One run of the command."""

    def __init__(self, options: UpOptions, runtime: Path, *, verbose: bool) -> None:
        self._options = options
        self._runtime = runtime
        self._verbose = verbose
        self._started = time.monotonic()
        self._stop = asyncio.Event()
        self._supervisor = Supervisor(runtime, reporter=ConsoleReporter(), echo_for=self._echo_for)

    async def run(self) -> int:
        self._catch_signals()
        print(f"dspark {__version__}: {self._options.model_name}, {self._drafter_sentence()}", flush=True)
        async with self._supervisor:
            serve = asyncio.create_task(self._serve())
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait([serve, stop], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            serve.cancel()
            try:
                await serve
            except asyncio.CancelledError:
                print("\nstopping", flush=True)
            except ProcessFailedError as error:
                print_failure(error)
                return CONFIGURATION_EXIT_CODE if error.is_configuration else 1
        return 0

    async def _serve(self) -> None:
        if self._options.redis_url is None:
            self._supervisor.launch([store_spec(store_binary(), self._runtime)])
        layout = Layout(self._runtime, default_cache_dir(), await self._prepare_target())
        self._supervisor.launch(service_specs(self._options, layout))
        await self._supervisor.wait_ready()
        print_welcome(self._options, time.monotonic() - self._started)
        await self._supervisor.wait(self._stop)

    async def _prepare_target(self) -> Path:
        spec = prepare_spec(self._options, self._runtime, default_cache_dir())
        started = time.monotonic()
        with ChildLog(self._runtime / "target.log", self._echo_for("target")) as log:
            child = ChildProcess.start(spec, log)
            try:
                code = await self._wait_patiently(child)
            finally:
                child.kill()
            if code != 0 or child.ready_match is None:
                tail = [line.removeprefix("dspark prepare: ") for line in log.tail()]
                message = f"target: {tail[-1] if tail else f'preparing it ended with exit code {code}'}"
                raise ProcessFailedError(message, is_configuration=code == CONFIGURATION_EXIT_CODE, tail=tail)
        ConsoleReporter().ready("target", time.monotonic() - started)
        return Path(child.ready_match.group(1))

    async def _wait_patiently(self, child: ChildProcess) -> int:
        ended = asyncio.create_task(child.wait())
        await asyncio.wait([ended], timeout=_SILENCE_S)
        if not ended.done():
            print(f"  {'target':<10} is being prepared, which happens once", flush=True)
        return await ended

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, self._on_signal)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._supervisor.kill()
        self._stop.set()

    def _drafter_sentence(self) -> str:
        drafter, note = self._options.drafter, self._options.drafter_note
        return f"no drafter ({note})" if drafter is None else f"drafter {drafter.name} ({note})"

    def _echo_for(self, name: str) -> Callable[[str], None] | None:
        if not self._verbose:
            return None
        return lambda line: print(f"[{name}] {line}", file=sys.stderr, flush=True)
