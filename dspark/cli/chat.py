"""`dspark chat`: asks a running server and shows which tokens were accepted drafts."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from dspark.cli.chat_client import API_KEY_VARIABLE, stream_chat
from dspark.cli.chat_output import Tally, dim, paint, wants_colour
from dspark.errors import DsparkError, InvalidRequestError

_EPILOG = f"A server that asks for an API key gets the one in {API_KEY_VARIABLE}."
Messages = list[dict[str, str]]


def add_parser(subparsers: Any) -> None:
    """Add `dspark chat`."""
    parser = subparsers.add_parser("chat", help="ask a running server", description=__doc__, epilog=_EPILOG)
    parser.add_argument("prompt", nargs="?", help="the question (default: standard input, or a conversation)")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="server (default: %(default)s)")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", default=512, help="longest answer (default: 512)"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", default=0.0, help="0, the default, is greedy"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="makes a sampled answer repeatable")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask once, or talk until the end of input."""
    if args.prompt is not None:
        _answer(args, [{"role": "user", "content": args.prompt}])
    elif sys.stdin.isatty():
        _converse(args)
    else:
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise InvalidRequestError("standard input is empty; give a question", "prompt")
        _answer(args, [{"role": "user", "content": prompt}])
    return 0


def _converse(args: argparse.Namespace) -> None:
    import readline  # noqa: F401 -- gives `input` line editing and a history

    messages: Messages = []
    print(dim("Ctrl-D ends the conversation.", colour=wants_colour(sys.stdout, os.environ)))
    while True:
        try:
            prompt = input("> ").strip()
        except EOFError:
            print()
            return
        if not prompt:
            continue
        messages.append({"role": "user", "content": prompt})
        try:
            messages.append({"role": "assistant", "content": _answer(args, messages)})
        except DsparkError as error:
            print(f"dspark chat: {error}", file=sys.stderr)
            messages.pop()


def _answer(args: argparse.Namespace, messages: Messages) -> str:
    colour = wants_colour(sys.stdout, os.environ)
    sampling = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    if args.seed is not None:
        sampling["seed"] = args.seed
    started = time.monotonic()
    first_s = last_s = 0.0
    tally = Tally()
    text: list[str] = []
    for delta in stream_chat(args.url, messages, sampling):
        tally.add(delta)
        if not delta.pieces:
            continue
        last_s = time.monotonic() - started
        first_s = first_s or last_s
        text += [piece.text for piece in delta.pieces]
        print("".join(paint(piece, colour=colour) for piece in delta.pieces), end="", flush=True)
    print()
    # Figures go to standard error: the output of a pipe is the answer alone.
    print(dim(tally.sentence(first_s, last_s), colour=colour), file=sys.stderr)
    return "".join(text)
