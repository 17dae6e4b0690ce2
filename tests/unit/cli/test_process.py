import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from supervised import HAS_A_CHILD, IGNORES_SIGTERM, SERVES, script_spec

from dspark.cli.child_log import ChildLog
from dspark.cli.process import ChildProcess


@pytest.fixture
def log(tmp_path: Path):
    with ChildLog(tmp_path / "child.log") as log:
        yield log


async def test_a_child_is_ready_once_it_prints_its_ready_line(log):
    child = ChildProcess.start(script_spec(SERVES), log)
    await child.wait_ready()
    assert child.ready_match is not None
    assert child.ready_match.group(1) == "now"
    assert await child.stop() == -signal.SIGTERM


async def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(log):
    child = ChildProcess.start(script_spec(IGNORES_SIGTERM, grace_s=0.05), log)
    await child.wait_ready()
    assert await child.stop() == -signal.SIGKILL


async def test_stopping_a_child_also_ends_what_it_started(log, tmp_path):
    with _listen(tmp_path / "s") as listener:
        child = ChildProcess.start(script_spec(HAS_A_CHILD, tmp_path / "s"), log)
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        with connection:
            await child.wait_ready()
            await child.stop()
            assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""


async def test_the_output_of_a_child_is_kept_up_to_its_last_line(log):
    child = ChildProcess.start(script_spec("print('one'); print('two', end='')"), log)
    assert await child.wait() == 0
    assert log.tail() == ["one", "two"]
    assert log.path.read_text() == "one\ntwo"


async def test_a_program_that_does_not_exist_raises_and_leaks_no_descriptor(log, tmp_path):
    spec = script_spec("")
    spec = type(spec)(spec.name, (str(tmp_path / "missing"),), spec.ready)
    num_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        ChildProcess.start(spec, log)
    assert len(os.listdir("/proc/self/fd")) == num_open


async def test_a_killed_parent_takes_its_children_along(tmp_path):
    parent = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from supervised import script_spec
from dspark.cli.child_log import ChildLog
from dspark.cli.process import ChildProcess
CHILD = '''
import signal, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print("ready now", flush=True)
signal.pause()
'''
async def main():
    child = ChildProcess.start(script_spec(CHILD, sys.argv[1]), ChildLog(Path(sys.argv[2])))
    await child.wait()
asyncio.run(main())
"""
    with _listen(tmp_path / "s") as listener:
        argv = [sys.executable, "-c", parent, str(tmp_path / "s"), str(tmp_path / "child.log")]
        with subprocess.Popen(argv) as process:  # noqa: ASYNC220 -- returns at once
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            process.kill()
            with connection:
                assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)
    return listener
