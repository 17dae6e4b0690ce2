"""What is drawn: well-formed, to scale, and nothing from elsewhere."""

from xml.etree import ElementTree

import pytest

from dspark.evaluation.chart import STYLE, Panel, Series, bar, drawing, svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*panels):
    return ElementTree.fromstring(svg(panels))


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def circles(root):
    return [(float(one.get("cx")), float(one.get("cy"))) for one in root.iter(f"{SVG}circle")]


def test_points_lie_where_their_values_say():
    root = drawn(Panel("t", "x", "y", [Series("a", [(0, 0), (5, 50), (10, 100)])]))
    (x0, y0), (x1, y1), (x2, y2) = circles(root)
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(y1 - y2)
    assert x2 > x0
    assert y2 < y0, "up is more"


def test_a_logarithmic_axis_gives_every_doubling_the_same_width_and_ticks_at_powers_of_two():
    root = drawn(Panel("t", "x", "y", [Series("a", [(1, 1), (2, 1), (4, 1), (256, 1)])], is_x_log=True))
    xs = [x for x, _ in circles(root)]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert xs[3] - xs[0] == pytest.approx(8 * (xs[1] - xs[0]), abs=0.5)
    assert [text for text in texts(root) if text.isdigit()][-9:] == [str(2**power) for power in range(9)]


@pytest.mark.parametrize("high", [0.0, 0.0007, 1.0, 9.9, 10.0, 100.1, 596.27, 1e6])
def test_ticks_are_few_and_reach_beyond_the_highest_value(high):
    root = drawn(Panel("t", "x", "y", [Series("a", [(1, high)])], is_x_log=True))
    ticks = [float(one.text) for one in root.iter(f"{SVG}text") if one.get("text-anchor") == "end"]
    assert 2 <= len(ticks) <= 11
    assert ticks[0] == 0.0
    assert ticks[-1] >= high
    assert circles(root)[0][1] >= 50, "inside the axes"


def test_several_series_are_named_and_one_is_not():
    two = [Series("curve", [(1, 1)]), Series("measured", [(1, 2)], has_line=False)]
    root = drawn(Panel("t", "x", "y", two))
    assert {"curve", "measured"} <= set(texts(root))
    assert len(list(root.iter(f"{SVG}polyline"))) == 1
    assert "curve" not in texts(drawn(Panel("t", "x", "y", two[:1])))


def test_bars_stand_over_their_categories_and_are_as_high_as_their_values():
    series = [Series("a", [(0, 1.0), (1, 2.0)]), Series("b", [(0, 4.0), (1, 3.0)])]
    root = drawn(Panel("t", "x", "y", series, categories=["one", "two"]))
    bars = [one for one in root.iter(f"{SVG}rect") if one.find(f"{SVG}title") is not None]
    heights = [float(one.get("height")) for one in bars]
    assert heights == pytest.approx([heights[0] * times for times in (1, 2, 4, 3)], abs=0.3)
    lefts = [float(one.get("x")) for one in bars]
    assert lefts[0] < lefts[2] < lefts[1] < lefts[3]
    assert {"one", "two", "a", "b"} <= set(texts(root))


def test_axes_may_be_given_an_end_and_a_guide_is_neither_marked_nor_named():
    guide = Series("even", [(0, 0), (1, 1)], is_guide=True)
    root = drawn(Panel("t", "x", "y", [guide, Series("a", [(0.2, 0.5)])], x_ticks=(0, 0.5, 1), y_high=1.0))
    assert len(circles(root)) == 1
    assert "even" not in texts(root)
    (dashed,) = [one for one in root.iter(f"{SVG}polyline") if one.get("stroke-dasharray")]
    start, end = (tuple(map(float, place.split(","))) for place in dashed.get("points").split())
    ((x, y),) = circles(root)
    assert (x - start[0]) / (end[0] - start[0]) == pytest.approx(0.2, abs=0.01)
    assert (y - start[1]) / (end[1] - start[1]) == pytest.approx(0.5, abs=0.01)


def test_a_chart_follows_the_scheme_of_its_reader_and_one_of_a_page_leaves_the_rules_to_it():
    panel = Panel("t", "x", "y", [Series("a", [(1, 1)])])
    assert STYLE in svg([panel])
    assert "prefers-color-scheme: dark" in STYLE
    inline = drawing(panel, width=300, height=200)
    assert "<style" not in inline
    assert 'viewBox="0 0 300 200"' in inline


def test_panels_stand_below_each_other_and_words_are_escaped():
    root = drawn(
        Panel("a & <b>", "x", "y", [Series("s", [(1, 1)])]), Panel("c", "x", "y", [Series("<", [(1, 1)])])
    )
    assert [group.get("transform") for group in root.iter(f"{SVG}g")] == [
        "translate(0 0)",
        "translate(0 320)",
    ]
    assert {"a & <b>", "c"} <= set(texts(root))
    assert "href" not in svg([Panel("t", "x", "y", [Series("s", [(1, 1)])])]), "it needs no other file"


@pytest.mark.parametrize(
    ("share", "drawn_as"), [(0.0, ""), (0.5, "████"), (1.0, "████████"), (7 / 64, "▉"), (2.0, "████████")]
)
def test_a_bar_is_as_long_as_its_share(share, drawn_as):
    assert bar(share, 8) == drawn_as


def test_values_stand_above_bars_only_where_they_have_room():
    series = [Series(name, [(place, 1.5) for place in range(8)]) for name in "abc"]
    panel = Panel("t", "x", "y", series, categories=[f"task {place}" for place in range(8)])
    narrow, wide = (ElementTree.fromstring(drawing(panel, width=width)) for width in (550, 1134))
    values = [[one for one in root.iter("text") if one.text == "1.50"] for root in (narrow, wide)]
    assert [len(found) for found in values] == [0, 24]
    assert len(list(narrow.iter("title"))) == 1 + 24, "the pointer tells them all the same"
