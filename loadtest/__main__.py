"""`python -m loadtest`: a short headless run and its verdict, against a given server or one it starts.

Exit code 0: the SLA holds, 1: it does not, 2: the run proves nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtest.sla import DEFAULT_SLA, Sla, SlaError
from loadtest.verdict import Outcome

_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 60.0
_LOCUSTFILE = Path(__file__).parent / "locustfile.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load test; returns the verdict as exit code."""
    args, further = _parser().parse_known_args(argv)
    try:
        Sla.read(args.sla)
        with _server(args.url, start=args.start_server) as url:
            return subprocess.run(_locust_command(args, url, further), check=False).returncode
    except (SlaError, _NoServerError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return Outcome.INVALID


class _NoServerError(Exception):
    """There is no server to test; the message is one sentence."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest", description=__doc__, epilog="Further options go to Locust."
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="server to test, such as http://127.0.0.1:8000")
    where.add_argument("--start-server", action="store_true", help="start `dspark up` for the run")
    parser.add_argument("--users", type=int, default=4, help="concurrent streams (default: 4)")
    parser.add_argument("--duration", type=float, default=45.0, metavar="S", help="seconds (default: 45)")
    parser.add_argument("--warmup", type=float, default=5.0, metavar="S", help="not counted (default: 5)")
    parser.add_argument("--sla", type=Path, default=DEFAULT_SLA, help="bounds (default: loadtest/sla.yaml)")
    return parser


def _locust_command(args: argparse.Namespace, url: str, further: Sequence[str]) -> list[str]:
    return [
        *(sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE), "--headless", "--skip-log-setup"),
        *("--host", url, "--sla", str(args.sla), "--warmup", str(args.warmup)),
        *("-u", str(args.users), "-r", str(args.users), "-t", f"{args.duration:g}s", "--stop-timeout", "60"),
        *further,
    ]


@contextlib.contextmanager
def _server(url: str | None, *, start: bool) -> Iterator[str]:
    """The server's URL; one that was started here ends with the context."""
    if not start:
        assert url is not None
        if not _is_healthy(url):
            raise _NoServerError(f"nobody answers at {url}/health; start a server with dspark up")
        yield url.rstrip("/")
        return
    port = _free_port()
    command = [sys.executable, "-m", "dspark.cli.main", "up", "--port", str(port)]
    with subprocess.Popen(command) as process:
        try:
            yield _wait_healthy(process, f"http://127.0.0.1:{port}")
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT_S)
            process.kill()


def _wait_healthy(process: subprocess.Popen[bytes], url: str) -> str:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _NoServerError(f"dspark up ended with exit code {process.returncode}")
        if _is_healthy(url):
            return url
        time.sleep(0.2)
    raise _NoServerError(f"dspark up was not ready after {_START_TIMEOUT_S:.0f} s")


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, ValueError, urllib.error.URLError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
