import os
import subprocess
import sys

import pytest

from dspark.cli.runtime_dir import runtime_dir
from dspark.errors import ConfigurationError


def test_the_directory_is_private_and_gone_afterwards(tmp_path):
    with runtime_dir(tmp_path) as path:
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "socket").touch()
    assert list(tmp_path.iterdir()) == []


def test_the_directory_of_a_killed_owner_is_removed_by_the_next(tmp_path):
    code = f"""
import os, pathlib, signal
from dspark.cli.runtime_dir import runtime_dir
with runtime_dir(pathlib.Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    (left,) = tmp_path.iterdir()
    with runtime_dir(tmp_path) as path:
        assert not left.exists()
        assert path.exists()


def test_the_directory_of_a_living_owner_stays(tmp_path):
    with runtime_dir(tmp_path) as first, runtime_dir(tmp_path) as second:
        assert first.exists()
        assert first != second


def test_a_path_too_long_for_sockets_is_told(tmp_path):
    parent = tmp_path / ("x" * 80)
    parent.mkdir()
    with pytest.raises(ConfigurationError, match="TMPDIR"), runtime_dir(parent):
        pass
    assert os.listdir(parent) == []


def test_a_parent_that_does_not_exist_is_told(tmp_path):
    with (
        pytest.raises(ConfigurationError, match="no directory can be made"),
        runtime_dir(tmp_path / "missing"),
    ):
        pass
