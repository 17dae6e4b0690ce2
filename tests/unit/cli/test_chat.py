import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dspark.cli.chat_client import API_KEY_VARIABLE, ChatDelta, Piece, read_events, stream_chat
from dspark.cli.chat_output import Tally, paint, wants_colour
from dspark.cli.main import main
from dspark.errors import InvalidRequestError, ServiceUnavailableError

ROUND = {
    "choices": [
        {
            "index": 0,
            "delta": {"content": "Hello world"},
            "dspark": {
                "num_drafted": 7,
                "num_scheduled": 3,
                "num_accepted": 1,
                "tokens": ["Hello", " world"],
                "accepted": [True, False],
            },
        }
    ]
}
USAGE = {"choices": [], "usage": {"completion_tokens": 2}}


class _Server(HTTPServer):
    status = 200
    answer = b""
    seen: dict[str, object]
    authorization: str | None


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self):
        self.server.authorization = self.headers.get("Authorization")
        self.server.seen = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _url(server: _Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def _stream(*events: object) -> bytes:
    return (
        b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )


def test_events_end_at_blank_lines_and_comments_are_skipped():
    lines = [
        b": keep-alive\n",
        b"\n",
        b'data: {"a":\n',
        b"data: 1}\n",
        b"\n",
        b"data: [DONE]\n",
        b"\n",
        b"junk\n",
    ]
    assert list(read_events(lines)) == [{"a": 1}]


def test_an_answer_is_taken_apart_by_token(server):
    server.answer = _stream(ROUND, USAGE)
    deltas = list(stream_chat(_url(server) + "/v1", [{"role": "user", "content": "x"}], {"seed": 3}))
    assert deltas[0].pieces == (Piece("Hello", is_accepted=True), Piece(" world", is_accepted=False))
    assert (deltas[0].num_drafted, deltas[0].num_accepted) == (7, 1)
    assert deltas[1].num_tokens == 2
    assert server.seen["return_round_details"] is True
    assert server.seen["seed"] == 3


def test_the_api_key_of_the_environment_is_sent_and_none_where_there_is_none(server, monkeypatch):
    server.answer = _stream(USAGE)
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    list(stream_chat(_url(server), [], {}))
    assert server.authorization is None
    monkeypatch.setenv(API_KEY_VARIABLE, "sk-of-the-shop")
    list(stream_chat(_url(server), [], {}))
    assert server.authorization == "Bearer sk-of-the-shop"


def test_a_server_that_tells_no_rounds_is_shown_plainly(server):
    server.answer = _stream({"choices": [{"delta": {"content": "Hi"}}]})
    (delta,) = stream_chat(_url(server), [], {})
    assert delta == ChatDelta(pieces=(Piece("Hi", is_accepted=False),))


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, InvalidRequestError), (429, ServiceUnavailableError), (503, ServiceUnavailableError)],
)
def test_an_error_is_told_in_the_words_of_the_server(server, status, error):
    server.status = status
    server.answer = json.dumps({"error": {"message": "max_tokens: too many"}}).encode()
    with pytest.raises(error, match=r"^max_tokens: too many$"):
        list(stream_chat(_url(server), [], {}))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://x:port"])
def test_a_wrong_url_is_told(url):
    with pytest.raises(InvalidRequestError, match="--url"):
        list(stream_chat(url, [], {}))


def test_nobody_answering_is_one_sentence_and_a_failure(capsys):
    with HTTPServer(("127.0.0.1", 0), _Handler) as taken:
        port = taken.server_port
    assert main(["chat", "hi", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert capsys.readouterr().err.startswith("dspark chat: nobody answers at")


def test_a_pipe_gets_the_answer_alone(server, capsys):
    server.answer = _stream(ROUND, USAGE)
    assert main(["chat", "hi", "--url", _url(server)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "Hello world\n"
    assert printed.err.startswith("2 tokens · ")
    assert "2.00 committed per drafted round" in printed.err


def test_accepted_drafts_are_green_and_underlined_line_by_line():
    assert paint(Piece("a\n\nb", is_accepted=True), colour=True) == "\x1b[32;4ma\x1b[0m\n\n\x1b[32;4mb\x1b[0m"
    assert paint(Piece("a", is_accepted=False), colour=True) == "a"
    assert paint(Piece("a", is_accepted=True), colour=False) == "a"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_need_a_terminal_and_no_objection():
    assert wants_colour(_Terminal(), {"TERM": "xterm"})
    assert not wants_colour(io.StringIO(), {})
    assert not wants_colour(_Terminal(), {"NO_COLOR": "1"})
    assert not wants_colour(_Terminal(), {"TERM": "dumb"})


def test_speed_counts_from_the_first_token():
    tally = Tally()
    tally.add(ChatDelta(num_drafted=7, num_accepted=2))
    tally.add(ChatDelta(num_tokens=11))
    assert (
        tally.sentence(1.0, 3.0)
        == "11 tokens · 5.0 tok/s · first after 1.00 s · 3.00 committed per drafted round"
    )
    assert Tally(num_tokens=1).sentence(1.0, 1.0) == "1 tokens · first after 1.00 s · no drafts"
