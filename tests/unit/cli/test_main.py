import socket
import subprocess
import sys

import pytest

from dspark.cli.main import COMMANDS, main


def test_a_taken_port_is_one_sentence_and_a_failure(capsys):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert main(["up", "--port", str(port), "--no-redis"]) == 78
    printed = capsys.readouterr()
    assert printed.err == (
        f"dspark up: port {port} cannot be used (Address already in use); choose another with --port\n"
    )
    assert printed.out == ""


def test_a_store_that_does_not_answer_is_told_without_its_password(capsys):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"redis://:secret@127.0.0.1:{holder.getsockname()[1]}"
        assert main(["up", "--redis-url", url]) == 78
    error = capsys.readouterr().err
    assert "does not work" in error
    assert "secret" not in error


def test_the_doctor_fails_when_up_could_not_work(capsys):
    assert main(["doctor", "--target", "nowhere"]) == 1
    assert "! options     --target nowhere does not exist" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_without_loading_torch(command):
    code = f"import sys\nfrom dspark.cli.main import main\ntry: main([{command!r}, '--help'])\n"
    code += "except SystemExit as end: sys.exit(end.code or 7 * ('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"dspark {command}" in done.stdout


def test_an_unknown_command_names_the_known_ones(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["fly"])
    assert "doctor" in capsys.readouterr().err
