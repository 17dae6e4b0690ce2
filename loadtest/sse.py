"""Takes a server-sent stream apart by blank lines, never by the pieces in which it arrives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

DONE = "[DONE]"


def read_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any] | str]:
    """The JSON events of a stream, then `DONE` if the server sent it. Comments are skipped.

    Raises:
        ValueError: an event is not JSON.
    """
    data: list[str] = []
    for raw in lines:
        line = raw.decode("utf-8").rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        if line or not data:
            continue
        text = "\n".join(data)
        data = []
        if text == DONE:
            yield DONE
            return
        yield json.loads(text)
