"""Stored rounds, and the report made of them."""

import json
from html.parser import HTMLParser

import pytest

from dspark.errors import ConfigurationError
from dspark.evaluation.offline.figures import figures_of
from dspark.evaluation.offline.report import page_of
from dspark.evaluation.offline.results import Pass, PassKind, read_results, results_text
from dspark.evaluation.offline.tables import accept_table, quality_table, sweep_table, tables_of
from dspark.evaluation.page import html_of, markdown_of
from dspark.scheduling.calibration import SequentialScaling
from tests.unit.evaluation.rounds_of_blocks import full_pass, random_rounds, results, rounds

GAMMA = 4


@pytest.fixture(scope="module")
def stored():
    passes = [
        full_pass(random_rounds(900, GAMMA)),
        Pass(PassKind.DENSE, 0.0, random_rounds(900, GAMMA)),
        full_pass(random_rounds(300, GAMMA, seed=1), 1.0),
        Pass(PassKind.COUPLED, 1.0, rounds((0, 1, 4, 1, 2), (2, 1, 4, 0, 1))),
    ]
    shipped = {"greedy": SequentialScaling((1.5,) * GAMMA, (0.25,) * GAMMA)}
    return results(passes, shipped=shipped, has_confidence_head=False)


def test_figures_of_a_file_are_those_of_what_was_written(stored, tmp_path):
    path = tmp_path / "rounds.json"
    path.write_text(results_text(stored))
    read = read_results(path)
    assert read.tasks == stored.tasks
    assert read.shipped == stored.shipped
    assert not read.has_confidence_head
    assert [one.kind for one in read.passes] == [one.kind for one in stored.passes]
    assert (read.passes[0].rounds.logits == stored.passes[0].rounds.logits).all()
    assert figures_of(read).as_dict() == figures_of(stored).as_dict()
    assert read.passes[3].rounds.logits is None


def test_drafts_that_were_not_made_stay_so_in_the_file(tmp_path):
    short = rounds((0, 1, 1, 1, 2), logits=[[0.5, float("nan"), float("nan"), float("nan")]])
    path = tmp_path / "rounds.json"
    path.write_text(results_text(results([full_pass(short)])))
    assert json.loads(path.read_text())["passes"][0]["rounds"]["logits"] == [[0.5]]
    (one,) = read_results(path).passes
    assert [value == value for value in one.rounds.logits[0].tolist()] == [True, False, False, False]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "not the rounds.json"),
        ('{"format": "other"}', "not the rounds.json"),
        ('{"format": "dspark-evaluation", "version": 9}', "version is 9"),
        ('{"format": "dspark-evaluation", "version": 1}', "damaged"),
    ],
)
def test_other_files_are_refused_with_the_reason(text, told, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=told):
        read_results(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_results(tmp_path / "missing")


def test_domains_pool_their_rounds_and_means_give_each_task_the_same_weight():
    own = rounds((0, 1, 4, 4, 5), (0, 6, 4, 4, 5), (0, 11, 4, 4, 5), (1, 1, 4, 0, 1), (2, 1, 4, 1, 2))
    figures = figures_of(results([full_pass(own)], tasks=("gsm8k", "aime25", "mine")))
    found = {(one.group.level, one.group.name): one for one in figures.groups}
    assert [name for _, name in found] == ["gsm8k", "aime25", "mine", "math", "mine", "all"]
    assert found["domain", "math"].full.accept_len == pytest.approx(16 / 4)
    assert found["domain", "math"].task_mean_accept_len == pytest.approx((5 + 1) / 2)
    assert found["all", "all"].task_mean_accept_len == pytest.approx((5 + 1 + 2) / 3)


def test_metrics_hold_everything_and_no_number_that_json_lacks(stored):
    document = json.loads(json.dumps(figures_of(stored).as_dict(), allow_nan=False))
    assert set(document) == {"groups", "sweeps", "confidence", "fits"}
    (whole,) = [
        one
        for one in document["confidence"]
        if (one["level"], one["temperature"], one["calibration"]) == ("all", 0.0, "STS")
    ]
    assert len(whole["quality"]["positions"]) == GAMMA
    assert whole["quality"]["positions"][0]["bins"][0].keys() == {"low", "count", "predicted", "observed"}
    assert {one["half"] for one in document["fits"]} == {0, 1}
    assert document["sweeps"][0]["points"][0]["method"] == "walked"
    bare = figures_of(stored).as_dict(has_bins=False)
    assert all(not place["bins"] for one in bare["confidence"] for place in one["quality"]["positions"])


def test_tables_show_what_was_decoded_and_nothing_else(stored):
    figures = figures_of(stored)
    assert "coupled" in accept_table(figures, 1.0).head
    assert "coupled" not in accept_table(figures, 0.0).head
    assert "served: committed" not in accept_table(figures, 0.0).head
    assert {row[-1] for row in sweep_table(figures, 1.0).rows} == {"replayed"}
    assert [row[0] for row in quality_table(figures, 0.0, GAMMA).rows] == [
        "raw",
        "shipped",
        "STS",
        "STS+offset",
    ]
    assert all(len(row) == len(table.head) for table in tables_of(figures, stored) for row in table.rows)


class Balanced(HTMLParser):
    """Fails where an element is closed that is not open."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_needs_no_other_file_and_no_script(stored):
    page = html_of(page_of(stored, figures_of(stored)))
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    # Lengths; two of acceptance; four of thresholds; positions 1 to 4 and errors for each temperature.
    assert parser.seen.count("svg") == 1 + 2 + 4 + 2 * 5
    assert "script" not in parser.seen
    for outside in ("href", "src=", "url(", "@import", "http"):
        assert outside not in page
    assert "prefers-color-scheme:dark" in page.replace(" ", "")


def test_the_markdown_has_every_table_and_names_the_page(stored):
    figures = figures_of(stored)
    text = markdown_of(page_of(stored, figures), "report.html")
    assert "[report.html](report.html)" in text
    for table in tables_of(figures, stored):
        assert f"### {table.title}" in text
    assert "no confidence head" in text


def test_an_evaluation_of_little_says_why_there_is_no_refitted_calibration():
    own = results([full_pass(rounds((0, 1, 4, 1, 2), logits=[[1.0] * 4]))])
    figures = figures_of(own)
    assert figures.fits == ()
    assert any("fewer than 200 whole blocks" in note for note in figures.notes)
    assert html_of(page_of(own, figures)).count("<svg") > 2
