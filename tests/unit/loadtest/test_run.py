"""Whole runs against a small server, in processes of their own: importing Locust patches sockets."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadtest.__main__ import main

ANSWER = b"".join(
    b"data: " + json.dumps(event).encode() + b"\n\n"
    for event in [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"index": 0, "delta": {"content": "Hi"}}], "usage": {"completion_tokens": 1}},
        {
            "choices": [{"index": 0, "delta": {"content": " all"}, "finish_reason": "stop"}],
            "usage": {"completion_tokens": 3},
        },
    ]
)


class _Server(ThreadingHTTPServer):
    answer = ANSWER + b"data: [DONE]\n\n"
    status = 200


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._send(200, b"{}", len(b"{}"))

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        # A length that is never reached is how a cut stream looks.
        self._send(self.server.status, self.server.answer, len(ANSWER + b"data: [DONE]\n\n"))
        self.close_connection = len(self.server.answer) != len(ANSWER + b"data: [DONE]\n\n")

    def _send(self, status: int, body: bytes, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

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


def _run(server: _Server, tmp_path) -> tuple[int, dict[str, object]]:
    report = tmp_path / "report.json"
    sla = tmp_path / "sla.yaml"
    sla.write_text("ttft_p95_ms: 5000\nerror_rate: 0.0\nmin_samples: 3\n")
    command = [sys.executable, "-m", "loadtest", "--url", f"http://127.0.0.1:{server.server_port}"]
    command += [
        "--users",
        "2",
        "--duration",
        "2",
        "--warmup",
        "0",
        "--sla",
        str(sla),
        "--report",
        str(report),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert report.exists(), done.stderr
    return done.returncode, json.loads(report.read_text())


def test_a_run_against_a_good_server_passes(server, tmp_path):
    code, report = _run(server, tmp_path)
    assert (code, report["verdict"], report["reasons"]) == (0, "pass", [])
    assert report["figures"]["num_errors"] == 0
    assert report["figures"]["tokens_per_second"] > 0


def test_a_run_against_a_failing_server_misses_the_sla(server, tmp_path):
    server.status = 500
    code, report = _run(server, tmp_path)
    assert (code, report["verdict"]) == (1, "sla_miss")
    assert report["figures"]["error_rate"] == 1.0


def test_cut_streams_are_errors(server, tmp_path):
    server.answer = ANSWER
    code, report = _run(server, tmp_path)
    assert (code, report["figures"]["error_rate"]) == (1, 1.0)


def test_without_a_server_the_run_is_invalid(capsys):
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as closed:
        port = closed.server_port
    assert main(["--url", f"http://127.0.0.1:{port}"]) == 2
    assert "nobody answers" in capsys.readouterr().err


def test_a_wrong_sla_file_is_invalid_before_anything_runs(tmp_path, capsys):
    path = tmp_path / "sla.yaml"
    path.write_text("goodput: 1")
    assert main(["--url", "http://127.0.0.1:1", "--sla", str(path)]) == 2
    assert "min_goodput" in capsys.readouterr().err
