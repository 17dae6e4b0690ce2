"""What `dspark up` says: progress, the welcome with its copy-paste lines, failures."""

from __future__ import annotations

import json
import shlex
import sys

from dspark.cli.keeper import ProcessFailedError
from dspark.cli.options import UpOptions

_PROMPT = "Write a haiku about speculative decoding."


class ConsoleReporter:
    """Prints what happens to the processes, one line each."""

    def ready(self, name: str, seconds: float) -> None:
        """A process is ready."""
        print(f"  {name:<10} ready after {seconds:5.1f} s", flush=True)

    def died(self, name: str, how: str, delay_s: float) -> None:
        """A process ended and will be started again."""
        print(f"  {name:<10} {how}; starting it again in {delay_s:.1f} s", flush=True)

    def gave_up(self, name: str, why: str) -> None:
        """A process stays away."""
        print(f"  {name:<10} stays down: {why}", flush=True)


def welcome_lines(options: UpOptions) -> list[str]:
    """The URL and two commands that can be pasted."""
    url = f"http://127.0.0.1:{options.port}"
    body = {
        "model": options.model_name,
        "stream": True,
        "messages": [{"role": "user", "content": _PROMPT}],
    }
    curl = f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json'"
    chat_url = "" if options.port == 8000 else f" --url {url}"
    return [
        f"  {url}/v1",
        "",
        f"  {curl} -d {shlex.quote(json.dumps(body))}",
        f"  dspark chat{chat_url} {shlex.quote(_PROMPT)}",
    ]


def print_welcome(options: UpOptions, seconds: float) -> None:
    """Say that everything is ready."""
    lines = [f"ready after {seconds:.1f} s", "", *welcome_lines(options), "", "Ctrl-C stops everything."]
    print("\n".join(lines), flush=True)


def print_failure(error: ProcessFailedError) -> None:
    """One sentence, preceded by the log where the process did not name the cause itself."""
    if not error.is_configuration and error.tail:
        print("\n".join(f"  | {line}" for line in error.tail), file=sys.stderr)
    print(f"dspark up: {error}", file=sys.stderr, flush=True)
