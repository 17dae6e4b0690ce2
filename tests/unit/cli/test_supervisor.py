import asyncio
import os
import signal

import pytest
from supervised import NOTES_ITS_STOP, SERVES, RecordingReporter, script_spec

from dspark.cli.keeper import ProcessFailedError, RestartPolicy
from dspark.cli.supervisor import Supervisor

QUICK = RestartPolicy(first_delay_s=0.01, longest_delay_s=0.02)


def _supervisor(tmp_path, reporter=None):
    return Supervisor(tmp_path, reporter=reporter or RecordingReporter(), policy=QUICK)


async def test_a_killed_process_is_started_again(tmp_path):
    reporter = RecordingReporter()
    async with _supervisor(tmp_path, reporter) as supervisor:
        supervisor.launch([script_spec(SERVES)])
        await supervisor.wait_ready()
        first = supervisor.pid_of("child")
        os.kill(first, signal.SIGKILL)
        await reporter.wait_for(("ready", "child"), count=2)
        assert supervisor.pid_of("child") not in (None, first)
    assert ("died", "child", "killed by signal 9") in reporter.events


async def test_processes_stop_in_the_reverse_of_their_order(tmp_path):
    note = tmp_path / "stops"
    async with _supervisor(tmp_path) as supervisor:
        supervisor.launch([script_spec(NOTES_ITS_STOP, note, name, name=name) for name in ("a", "b", "c")])
        await supervisor.wait_ready()
    assert note.read_text().split() == ["c", "b", "a"]


async def test_no_process_is_left_after_the_context(tmp_path):
    async with _supervisor(tmp_path) as supervisor:
        supervisor.launch([script_spec(SERVES, name=name) for name in ("a", "b")])
        await supervisor.wait_ready()
        pids = [supervisor.pid_of("a"), supervisor.pid_of("b")]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_leaving_while_processes_still_start_ends_them(tmp_path):
    async with _supervisor(tmp_path) as supervisor:
        supervisor.launch([script_spec("import signal; signal.pause()")])
        await asyncio.sleep(0)  # lets the launched task run up to its first wait
        pid = supervisor.pid_of("child")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_configuration_error_is_told_in_the_words_of_the_process_and_not_tried_again(tmp_path):
    starts = tmp_path / "starts"
    code = """
import sys
open(sys.argv[1], "a").write("x")
print("the drafter was made for another target", file=sys.stderr)
sys.exit(78)
"""
    async with _supervisor(tmp_path) as supervisor:
        supervisor.launch([script_spec(SERVES, name="other"), script_spec(code, starts)])
        with pytest.raises(
            ProcessFailedError, match=r"^child: the drafter was made for another target$"
        ) as caught:
            await supervisor.wait_ready()
    assert caught.value.is_configuration
    assert starts.read_text() == "x"


async def test_a_process_that_never_gets_ready_is_given_up_with_its_last_lines(tmp_path):
    async with _supervisor(tmp_path) as supervisor:
        supervisor.launch([script_spec("print('boom'); raise SystemExit(3)")])
        with pytest.raises(ProcessFailedError, match="ended with exit code 3") as caught:
            await supervisor.wait_ready()
    assert not caught.value.is_configuration
    assert caught.value.tail == ["boom"]


FAILS_THE_SECOND_TIME = """
import os, signal, sys
if os.path.exists(sys.argv[1]):
    print("the checkpoint is gone")
    sys.exit(78)
open(sys.argv[1], "w").close()
print("ready now", flush=True)
signal.pause()
"""


async def test_a_process_we_can_do_without_may_stay_down(tmp_path):
    reporter = RecordingReporter()
    async with _supervisor(tmp_path, reporter) as supervisor:
        spec = script_spec(FAILS_THE_SECOND_TIME, tmp_path / "once", name="drafter", is_essential=False)
        supervisor.launch([spec, script_spec(SERVES, name="gateway")])
        await supervisor.wait_ready()
        os.kill(supervisor.pid_of("drafter"), signal.SIGKILL)
        await reporter.wait_for(("gave_up", "drafter", "the checkpoint is gone"))
        assert supervisor.pid_of("drafter") is None
        assert supervisor.pid_of("gateway") is not None
        stop = asyncio.Event()
        stop.set()
        await supervisor.wait(stop)


async def test_an_essential_process_that_stays_down_ends_the_system(tmp_path):
    async with _supervisor(tmp_path) as supervisor:
        supervisor.launch([script_spec(FAILS_THE_SECOND_TIME, tmp_path / "once")])
        await supervisor.wait_ready()
        os.kill(supervisor.pid_of("child"), signal.SIGKILL)
        with pytest.raises(ProcessFailedError, match="the checkpoint is gone"):
            await supervisor.wait(asyncio.Event())


def test_the_wait_before_a_restart_doubles_up_to_its_limit():
    policy = RestartPolicy(first_delay_s=0.5, longest_delay_s=3.0)
    assert [policy.delay_s(n) for n in (1, 2, 3, 4, 10_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]
