"""What a run says of itself: rate, time left, rows, curves."""

from __future__ import annotations

import builtins
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from dspark.errors import ConfigurationError
from dspark.evaluation.chart import svg
from dspark.evaluation.training_curves import panels
from dspark.training.metrics import MetricsLog, duration, read_metrics
from dspark.training.reporting import Reporter, Standing


class Run:
    """A run of 100 steps of 8 blocks; a step takes a second of training, and the clock two."""

    def __init__(self, directory: Path) -> None:
        self.step, self.now, self.said = 0, 1000.0, list[str]()
        self.reporter = Reporter(
            self.standing,
            lambda: {"held_out_loss": 2.5, "mean_committed_greedy": 1.5},
            MetricsLog(directory),
            self.said.append,
            lambda: self.now,
        )

    def standing(self) -> Standing:
        return Standing(self.step, 100, 8 * self.step, float(self.step), self.step / 100)

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            self.now += 2
            self.reporter.step_done(float(self.step), is_measured=self.reporter.is_held_out_due())


def test_progress_names_rate_loss_and_time_left(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.go(8)
    # the mean of the losses 1..8; 92 steps of two seconds are left
    assert run.said == ["step 8 of 100 (8%), 8.0 blocks/s, loss 4.500, 3 min left"]
    (row,) = read_metrics(tmp_path)
    assert row == {"step": 8, "blocks": 64, "hours": 8 / 3600, "loss": 4.5, "blocks_per_s": 8}


def test_held_out_figures_come_once_a_minute(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.go(70)
    rows = [row for row in read_metrics(tmp_path) if "held_out_loss" in row]
    assert [row["step"] for row in rows] == [31, 62]
    assert all(row["peak_memory_mib"] > 1 for row in rows)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.4, "0 s"), (59, "59 s"), (89, "1 min"), (3599, "1 h 00 min"), (7500, "2 h 05 min")],
)
def test_durations_are_told_in_the_units_that_matter(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_the_curves_show_every_kind_of_figure_the_rows_hold(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.go(40)
    run.reporter.held_out()
    drawn = panels(read_metrics(tmp_path))
    assert [panel.title for panel in drawn] == [
        "Loss",
        "Tokens committed per round, held out",
        "Speed",
        "Peak memory",
    ]
    assert [series.name for series in drawn[0].series] == ["training", "held out"]
    assert [series.name for series in drawn[1].series] == ["greedy"]
    ElementTree.fromstring(svg(drawn))


def test_tensorboard_gets_every_figure(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path, has_tensorboard=True)
    log.write({"step": 3.0, "loss": 2.5})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("loss")] == [(3, 2.5)]
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 3.0, "loss": 2.5}


def test_tensorboard_that_is_not_installed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if "tensorboard" in name:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"pip install 'dspark\[tensorboard\]'"):
        MetricsLog(tmp_path, has_tensorboard=True)
