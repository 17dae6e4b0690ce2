"""The paper's figures from stored evaluations: which drafters are compared, and what is said of a shape."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from dspark.cli.main import main
from dspark.errors import ConfigurationError
from dspark.evaluation.head_latency import RoundLatency
from dspark.evaluation.offline.results import FILE, Pass, PassKind, Results, Rounds, results_text
from dspark.evaluation.page import Page, Section, html_of, markdown_of
from dspark.evaluation.paper.build import build_figures, notes_on
from dspark.evaluation.paper.collection import read_collection
from dspark.evaluation.paper.figure import Figure, label, macro
from dspark.evaluation.paper.report import page_of
from dspark.evaluation.paper.shapes import Shape

TASKS = ("gsm8k", "humaneval", "mt-bench")
ROUNDS_PER_PROMPT = 1500


def make_rounds(chances: list[float], seed: int) -> Rounds:
    """Rounds whose draft k is accepted with the k-th chance once those before were; logits know."""
    rng = np.random.Generator(np.random.PCG64(seed))
    gamma, count = len(chances), ROUNDS_PER_PROMPT * 2 * len(TASKS)
    is_right = rng.random((count, gamma)) < np.array(chances)
    accepted = np.cumprod(is_right, axis=1).sum(axis=1).astype(np.int32)
    logits = np.log(np.array(chances) / (1 - np.array(chances))) + rng.normal(0, 0.3, (count, gamma)) + 1.0
    return Rounds(
        prompt=np.repeat(np.arange(2 * len(TASKS)), ROUNDS_PER_PROMPT).astype(np.int32),
        start=np.ones(count, dtype=np.int32),
        scheduled=np.full(count, gamma, dtype=np.int32),
        accepted=accepted,
        committed=accepted + 1,
        logits=logits.astype(np.float32),
    )


def store(
    directory: Path, name: str, kind: str, chances: list[float], *, layers: int = 2, blocks: int | None = 1000
) -> None:
    """An evaluation of a drafter as `dspark evaluate --report` would have left it."""
    setup = {"target": "tiny", "kind": kind, "layers": layers, "tokens": 500}
    if blocks is not None:
        setup |= {"trained_blocks": blocks, "trained_hours": 0.5}
    results = Results(
        setup,
        len(chances),
        500,
        tuple(task for task in TASKS for _ in range(2)),
        (Pass(PassKind.FULL, 1.0, make_rounds(chances, seed=len(name))),),
    )
    (directory / name).mkdir(parents=True)
    (directory / name / FILE).write_text(results_text(results))


def store_speeds(directory: Path, **speeds: float) -> None:
    """One run of `dspark bench speed --drafter .../dspark --beside ...`; names as there."""
    by_system = {name: {"overall": speed} for name, speed in speeds.items()}
    document = {"setup": {"drafter": "dspark"}, "figures": {"tokens_per_second": by_system}}
    (directory / "speed.json").write_text(json.dumps(document))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Drafters that behave as the paper's: DFlash falls along the block, Eagle3 rises, DSpark stays level."""
    store(tmp_path, "dspark", "DSpark", [0.8] * 7)
    store(tmp_path, "dspark-l1", "DSpark", [0.7] * 7, layers=1)
    store(tmp_path, "dspark-g3", "DSpark", [0.8] * 3)
    store(tmp_path, "dflash", "DFlash", [0.7, 0.66, 0.62, 0.58, 0.54, 0.5, 0.46])
    store(tmp_path, "dflash-l3", "DFlash", [0.72, 0.68, 0.64, 0.6, 0.56, 0.52, 0.48], layers=3)
    store(tmp_path, "dflash-g3", "DFlash", [0.75, 0.7, 0.65])
    store(tmp_path, "eagle3", "Eagle3", [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8], layers=1)
    return tmp_path


def shapes_of(figures: list[Figure]) -> dict[str, Shape]:
    return {shape.statement: shape for figure in figures for shape in figure.shapes}


def test_the_main_members_are_one_of_each_kind_in_the_most_usual_shape(stored: Path) -> None:
    collection = read_collection(stored)
    assert collection.reference.name == "dspark"
    assert {one.name for one in collection.main} == {"dspark", "dflash", "eagle3"}
    assert [one.name for one in collection.by_depth("DFlash")] == ["dflash", "dflash-l3"]
    assert [one.name for one in collection.by_gamma("DSpark")] == ["dspark-g3", "dspark"]


def test_the_compared_drafter_is_the_one_where_depths_and_gammas_meet(tmp_path: Path) -> None:
    for kind in ("DSpark", "DFlash"):
        store(tmp_path, f"{kind}-a", kind, [0.7] * 7, layers=1)
        store(tmp_path, f"{kind}-b", kind, [0.7] * 7)
        store(tmp_path, f"{kind}-c", kind, [0.7] * 15)
    collection = read_collection(tmp_path)
    assert collection.reference.name == "DSpark-b"
    assert [one.name for one in collection.by_depth("DFlash")] == ["DFlash-a", "DFlash-b"]
    assert [one.name for one in collection.by_gamma("DFlash")] == ["DFlash-b", "DFlash-c"]


def test_legends_name_the_depth_where_it_is_compared(stored: Path) -> None:
    labels = {one.name: label(one) for one in read_collection(stored).members}
    assert (labels["dspark-l1"], labels["dspark"], labels["eagle3"]) == (
        "DSpark, 1 layer",
        "DSpark, 2 layers",
        "Eagle3",
    )


def test_of_two_drafters_of_one_shape_only_the_compared_one_is_a_depth_or_a_gamma(stored: Path) -> None:
    # the name comes before that of the other, its directory with it
    store(stored, "after-more-training", "DFlash", [0.9] * 7, layers=3)
    store(stored, "shipped", "DSpark", [0.9] * 7)
    collection = read_collection(stored)
    assert [one.name for one in collection.by_depth("DSpark")] == ["dspark-l1", "dspark"]
    assert [one.name for one in collection.by_gamma("DSpark")] == ["dspark-g3", "dspark"]
    assert [one.num_layers for one in collection.by_depth("DFlash")] == [2, 3]


def test_the_mean_over_tasks_is_that_of_their_accepted_lengths(stored: Path) -> None:
    results = read_collection(stored).reference.results
    rounds = results.passes[0].rounds
    lengths = [rounds.committed[np.isin(rounds.prompt, (2 * n, 2 * n + 1))].mean() for n in range(len(TASKS))]
    assert macro(read_collection(stored).reference) == pytest.approx(np.mean(lengths))


def test_drafters_that_behave_as_the_papers_have_its_shapes(stored: Path) -> None:
    found = shapes_of(build_figures(read_collection(stored)))
    assert [one.statement for one in found.values() if not one.holds] == []
    expected = (
        "DSpark above DFlash, T = 1",
        "chat: DSpark stays level along the block",
        "math: DFlash falls along the block",
        "code: Eagle3 rises along the block",
        "a DSpark drafter of 2 layers above a DFlash drafter of 3",
        "the gain over DFlash grows with gamma",
        "STS lowers the calibration error",
        "STS with an offset (ours) lowers it",
    )
    assert set(expected) <= found.keys()


def test_depths_and_gammas_have_a_row_for_each_drafter_with_its_size_and_length(stored: Path) -> None:
    collection = read_collection(stored)
    figures = {one.key: one for one in build_figures(collection)}
    for key, kinds, size in (
        ("fig3", collection.by_depth, "num_layers"),
        ("fig4", collection.by_gamma, "gamma"),
    ):
        drafters = [one for kind in ("DSpark", "DFlash") for one in kinds(kind)]
        expected = [(one.kind, str(getattr(one, size)), f"{macro(one):.2f}") for one in drafters]
        assert [row[:3] for row in figures[key].tables[0].rows] == expected
        assert len({row[1] for row in expected}) > 1


def test_drafters_that_behave_otherwise_are_said_to_differ(tmp_path: Path) -> None:
    store(tmp_path, "dspark", "DSpark", [0.8, 0.7, 0.6, 0.5])
    store(tmp_path, "dflash", "DFlash", [0.9] * 4)
    found = shapes_of(build_figures(read_collection(tmp_path)))
    assert not found["DSpark above DFlash, T = 1"].holds
    assert not found["math: DSpark stays level along the block"].holds
    assert not found["math: DFlash falls along the block"].holds


def test_a_position_that_was_judged_too_seldom_supports_no_shape(tmp_path: Path) -> None:
    # after the first draft hardly anything is judged
    store(tmp_path, "dspark", "DSpark", [0.0003, 0.9, 0.9])
    assert "math: DSpark stays level along the block" not in shapes_of(
        build_figures(read_collection(tmp_path))
    )


def test_a_position_that_was_hardly_judged_is_not_drawn(tmp_path: Path) -> None:
    store(tmp_path, "dspark", "DSpark", [0.5, 0.0015, 0.9])
    (figure,) = [one for one in build_figures(read_collection(tmp_path)) if one.key == "fig2"]
    drawn = [[place for place, _ in one.points] for panel in figure.panels for one in panel.series]
    assert drawn == [[1, 2]] * 3


def test_tables_of_many_tasks_are_drawn_over_the_whole_width(stored: Path) -> None:
    figures = build_figures(read_collection(stored))
    (table1,) = [one for one in figures if one.key == "table1"]
    panel = table1.panels[0]
    many = replace(panel, categories=[f"task {place}" for place in range(5)])
    pages = [
        html_of(Page("t", "", [Section("s", (one,))], ()))
        for one in (replace(panel, categories=panel.categories[:3]), many)
    ]
    widths = [int(re.findall(r'<svg class="chart".*? width="(\d+)"', page)[0]) for page in pages]
    assert widths[0] < 600 < 1100 < widths[1]


def test_unequal_and_unknown_budgets_are_named(tmp_path: Path) -> None:
    store(tmp_path, "dspark", "DSpark", [0.8] * 3, blocks=3000)
    store(tmp_path, "dflash", "DFlash", [0.5] * 3, blocks=1000)
    store(tmp_path, "eagle3", "Eagle3", [0.5] * 3, blocks=None)
    notes = notes_on(read_collection(tmp_path))
    assert any("dspark 3000" in note and "dflash 1000" in note for note in notes)
    assert any("Nothing is recorded of the training of eagle3" in note for note in notes)


def test_the_command_judges_lengths_speeds_and_budgets(stored: Path, tmp_path: Path) -> None:
    store_speeds(stored, plain=50.0, dspark=90.0, dflash=85.0, eagle3=75.0)
    report = tmp_path / "report"
    options = ["--results", str(stored), "--report", str(report), "--json", str(tmp_path / "f.json")]
    assert main(["bench", "figures", *options]) == 1  # 90 is not 12 % above 85
    checks = {one["name"]: one["is_met"] for one in json.loads((tmp_path / "f.json").read_text())["checks"]}
    assert checks == {
        "accept_len over DFlash": True,
        "speed over DFlash": False,
        "accept_len over Eagle3": True,
        "speed over Eagle3": True,
        "smallest over largest budget, blocks": True,
    }
    store_speeds(stored, plain=50.0, dspark=90.0, dflash=75.0, eagle3=75.0)
    assert main(["bench", "figures", *options]) == 0
    assert "<svg" in (report / "figures.html").read_text()


def test_speeds_are_those_over_plain_decoding_by_the_name_of_the_drafter(stored: Path) -> None:
    store_speeds(stored, plain=50.0, dspark=90.0, dflash=75.0, transformers=10.0)
    speeds = {one.name: one.speed for one in read_collection(stored).members}
    assert (speeds["dspark"], speeds["dflash"], speeds["eagle3"]) == (1.8, 1.5, None)


def test_a_file_of_speeds_that_is_none_is_named(stored: Path) -> None:
    (stored / "speed.json").write_text('{"figures": {"tokens_per_second": {"dspark": 3}}}')
    with pytest.raises(
        ConfigurationError, match=r"speed\.json is not what `dspark bench speed --json` writes"
    ):
        read_collection(stored)


def test_the_page_shows_latencies_and_remarks(stored: Path) -> None:
    rounds = [RoundLatency(gamma, 0.002, 0.0021 + gamma / 1e5, 0.02) for gamma in (3, 15)]
    (stored / "latency.json").write_text(json.dumps({"setup": {}, "rounds": [asdict(one) for one in rounds]}))
    (stored / "remarks.json").write_text(json.dumps({"fig4": "Drafters of a <small> target."}))
    collection = read_collection(stored)
    figures = build_figures(collection)
    page = page_of(figures, notes_on(collection), collection.remarks, "tiny")
    html, text = html_of(page), markdown_of(page, "figures.html")
    assert "Drafters of a &lt;small&gt; target." in html
    assert "Drafters of a <small> target." in text
    assert f"| 15 | 2.00 | 2.25 | 20.00 | {100 * rounds[1].head_share:.1f} |" in text
    assert shapes_of(figures)["the head adds little to a round at any gamma"].holds


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("no dspark", "no evaluation of a DSpark drafter"),
        ("no kind", "the setup lacks kind"),
        ("latency", "latency.json: not JSON"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, damage: str, told: str) -> None:
    store(tmp_path, "one", "DFlash" if damage == "no dspark" else "DSpark", [0.5])
    if damage == "no kind":
        path = tmp_path / "one" / FILE
        path.write_text(path.read_text().replace('"kind":"DSpark",', ""))
    if damage == "latency":
        (tmp_path / "latency.json").write_text("{")
    with pytest.raises(ConfigurationError, match=told):
        read_collection(tmp_path)


def store_curve(directory: Path, name: str, points: list[tuple[float, float, float]]) -> None:
    rows = [
        {"step": number, "blocks": blocks, "hours": hours, "mean_committed_greedy": committed}
        for number, (blocks, hours, committed) in enumerate(points)
    ]
    # between two of them others without held-out figures
    rows.insert(1, {"step": 0.5, "blocks": 1.0, "hours": 0.01, "loss": 9.0})
    (directory / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_learning_curves_say_what_the_last_doubling_brought(stored: Path) -> None:
    store_curve(stored, "dspark", [(0, 0.0, 1.0), (500, 0.25, 1.5), (1000, 0.5, 1.8)])
    store_curve(stored, "eagle3", [(0, 0.0, 1.0), (900, 0.4, 1.2)])
    (figure,) = [one for one in build_figures(read_collection(stored)) if one.key == "learning"]
    assert figure.tables[0].rows == (
        ("dspark", "1000", "0.50", "-", "1.50", "1.50", "1.80", "+20.0%"),
        ("eagle3", "900", "0.40", "-", "-", "-", "1.20", "-"),
    )
    by_blocks, by_time = figure.panels
    assert [one.name for one in by_blocks.series] == ["dspark", "eagle3"]
    assert by_blocks.series[0].points == [(0, 1.0), (0.5, 1.5), (1.0, 1.8)]
    assert by_time.series[1].points == [(0.0, 1.0), (0.4, 1.2)]


def test_metrics_that_are_none_are_refused_by_their_file(stored: Path) -> None:
    (stored / "dspark" / "metrics.jsonl").write_text('{"step": 1, "mean_committed_greedy": 2}\n')
    with pytest.raises(ConfigurationError, match=r"dspark.metrics\.jsonl: not the metrics of a run"):
        read_collection(stored)


def test_budgets_that_are_equal_in_hours_are_said_to_be(tmp_path: Path) -> None:
    store(tmp_path, "dspark", "DSpark", [0.8], blocks=1000)
    store(tmp_path, "eagle3", "Eagle3", [0.8], blocks=2000)
    told = [note for note in notes_on(read_collection(tmp_path)) if "same time" in note]
    assert told == [
        "All were trained for the same time, 0.50 to 0.50 hours; blocks: dspark 1000, eagle3 2000."
    ]
