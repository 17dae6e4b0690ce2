"""`dspark profile` on a tiny pair of models."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from dspark.cache import default_cache_dir
from dspark.cli.main import main
from dspark.engine.measurements import Measurements
from dspark.evaluation.lossless.tiny import write_tiny_pair
from dspark.evaluation.threads import one_thread
from dspark.scheduling.formats import sglang, tensorrt_llm

pytestmark = pytest.mark.timeout(120)
RISING = [[1, 0.010], [2, 0.014], [8, 0.026]]
FLAT = [[1, 0.010], [8, 0.010]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache without measurements, with the kernels that are built already."""
    kernels = default_cache_dir() / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "kernels").symlink_to(kernels)
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path / "cache"))
    with one_thread():
        yield tmp_path / "cache"


def record(target: Path, cache: Path, points: object) -> Measurements:
    """As a start before this one left it."""
    measurements = Measurements(target, cache)
    measurements.record("dtype", {"float32": 0.001, "bfloat16": 0.002})
    measurements.record("step-cost-float32", points)
    return measurements


def test_what_was_measured_before_is_printed_drawn_and_written(pair, cache, tmp_path, capsys):
    target, drafter = pair
    measurements = record(target, cache, RISING)
    arguments = ["profile", "--target", str(target), "--drafter", str(drafter)]
    files = {name: tmp_path / name for name in ("p.svg", "p.json", "additive", "by_tokens", "trt")}
    arguments += ["--plot", str(files["p.svg"]), "--json", str(files["p.json"])]
    arguments += ["--export", f"sglang={files['additive']}", "--export", f"sglang-1d={files['by_tokens']}"]
    assert main([*arguments, "--export", f"tensorrt-llm={files['trt']}"]) == 0
    printed = capsys.readouterr().out
    made_at = measurements.made_at("step-cost-float32")
    assert f"measured {made_at:%Y-%m-%d %H:%M} UTC" in printed
    assert f"(key {measurements.key})" in printed
    assert "            8        26.00     26.00               2.000     38.5     307.7" in printed
    assert "draft slots" in printed
    assert "refuse" not in printed
    drawing = ElementTree.parse(files["p.svg"])
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}g"))) == 3
    document = json.loads(files["p.json"].read_text())
    assert document["setup"]["step_cost"] == RISING
    assert document["setup"]["gamma"] == 4
    assert document["hardware"]["num_cores"] >= 1
    assert len(document["figures"]["drafts"]) == len(document["setup"]["draft_cost"])
    for read, name in ((sglang.read_costs, "additive"), (tensorrt_llm.read_costs, "trt")):
        costs = read(json.loads(files[name].read_text()))
        assert [seconds for _, seconds in costs.step_cost] == pytest.approx([0.010, 0.014, 0.026])
        assert [requests for requests, _ in costs.draft_cost] == [1, 4, 16, 48]
    assert len(json.loads(files["by_tokens"].read_text())["sample_batch_tokens"]) == 3


def test_a_flat_curve_is_told_why_adaptive_policies_would_refuse_it_and_is_not_exported(
    pair, cache, tmp_path, capsys
):
    target, _ = pair
    record(target, cache, FLAT)
    export = tmp_path / "table.json"
    assert main(["profile", "--target", str(target), "--export", f"sglang={export}"]) == 78
    printed = capsys.readouterr()
    assert "early-stop, barrier and retrospective would refuse to start: step_cost is flat" in printed.out
    assert "dspark profile: step_cost is flat over the sizes [1, 8]: other engines take" in printed.err
    assert not export.exists()


def test_fresh_measures_anew_and_keeps_it(pair, cache, tmp_path, capsys):
    target, _ = pair
    measurements = record(target, cache, RISING)
    path = tmp_path / "p.json"
    assert main(["profile", "--target", str(target), "--fresh", "--json", str(path)]) == 0
    assert "measured just now" in capsys.readouterr().out
    document = json.loads(path.read_text())
    sizes = [size for size, _ in document["setup"]["step_cost"]]
    assert sizes[:7] == [1, 2, 3, 4, 6, 8, 12]
    assert measurements.recall("step-cost-float32") == document["setup"]["step_cost"]
    assert document["setup"]["num_threads"] == torch.get_num_threads()
    assert document["figures"]["drafts"] == [], "no drafter was named for this target"


@pytest.mark.parametrize("text", ["sglang", "vllm=x.json", "sglang="])
def test_an_export_needs_a_known_format_and_a_file(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["profile", "--export", text])
    assert (
        "is not FORMAT=FILE with one of the formats sglang, sglang-1d, tensorrt-llm"
        in capsys.readouterr().err
    )
