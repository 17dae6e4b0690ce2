"""`dspark export` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspark.cli.main import main
from dspark.models.calibration import Calibration
from dspark.models.checkpoint import load_drafter
from tests.deepspec_files import GAMMA, qwen3_config, qwen3_target, random_tensors, write_drafter


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A drafter with its calibration, and its target."""
    root = tmp_path_factory.mktemp("pair")
    qwen3_target(root / "target")
    config = qwen3_config()
    drafter = write_drafter(root / "drafter", config, random_tensors(config, root / "target"))
    Calibration.identity(GAMMA).write(drafter)
    return drafter, root / "target"


def export(pair: tuple[Path, Path], out: Path, *options: str) -> int:
    drafter, target = pair
    return main(["export", "--drafter", str(drafter), "--target", str(target), "--out", str(out), *options])


@pytest.mark.parametrize("kind", ["deepspec", "speculators"])
def test_what_is_written_is_a_drafter_with_its_calibration(
    kind: str, pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(pair, tmp_path / "out", "--format", kind) == 0
    assert f"({kind}), read back bit for bit" in capsys.readouterr().out
    drafter, target = pair
    assert load_drafter(tmp_path / "out", target).config == load_drafter(drafter, target).config
    assert (tmp_path / "out/calibration.json").read_bytes() == (drafter / "calibration.json").read_bytes()


def test_the_target_is_named_by_its_directory_or_as_asked(pair: tuple[Path, Path], tmp_path: Path) -> None:
    names = []
    for options in ((), ("--verifier", "an/owner")):
        assert export(pair, tmp_path, "--format", "speculators", *options) == 0
        config = json.loads((tmp_path / "config.json").read_text())
        names.append(config["speculators_config"]["verifier"]["name_or_path"])
    assert names == ["target", "an/owner"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--format", "deepspec", "--verifier", "an/owner"), "--verifier is for --format speculators"),
        (("--format", "speculators", "--full-vocabulary"), "--full-vocabulary is for --format deepspec"),
    ],
)
def test_options_of_the_other_format_are_refused(
    options: tuple[str, ...],
    message: str,
    pair: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert export(pair, tmp_path / "out", *options) != 0
    assert message in capsys.readouterr().err


def test_a_drafter_is_not_written_over_itself(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(pair, pair[0], "--format", "speculators") != 0
    assert "is the drafter itself" in capsys.readouterr().err
