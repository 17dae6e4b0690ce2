from pathlib import Path

import pytest

from dspark.cache import default_cache_dir
from dspark.cli.main import main
from dspark.engine.kernels.build import build_kernels

pytestmark = pytest.mark.timeout(120)


def _directory(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "model.safetensors").write_bytes(b"")
    return path


def test_preparing_compiles_the_kernels_and_says_where_the_target_lies(tmp_path, capsys):
    target = _directory(tmp_path / "model")
    assert main(["prepare", "--target", str(target), "--cache-dir", str(tmp_path / "cache")]) == 0
    assert capsys.readouterr().out == f"prepared {target}\n"
    compiled = list((tmp_path / "cache" / "kernels").glob("*"))
    assert compiled == [build_kernels(tmp_path / "cache")]


def test_what_cannot_be_prepared_is_one_sentence_and_a_failure(tmp_path, capsys):
    assert main(["prepare", "--target", str(tmp_path / "none"), "--cache-dir", str(tmp_path)]) == 78
    assert capsys.readouterr().err.startswith("dspark prepare: target ")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DSPARK_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/dspark")),
        ({}, Path.home() / ".cache" / "dspark"),
    ],
)
def test_everything_is_kept_where_the_environment_says(environ, expected):
    assert default_cache_dir(environ) == expected
