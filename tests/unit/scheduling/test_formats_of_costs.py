"""Cost tables for other engines: what is written obeys their loaders, and what is read is what was written.

The rules of the loaders are written out here, from the sources that `dspark.scheduling.formats` names.
"""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.errors import ConfigurationError
from dspark.scheduling.formats import sglang, tensorrt_llm
from dspark.scheduling.formats.costs import RoundCosts

GAMMA = 7
COSTS = RoundCosts(
    ((1, 0.0134), (2, 0.0141), (8, 0.0254), (64, 0.161)), ((1, 0.003), (4, 0.007), (16, 0.02), (48, 0.055))
)
PLAIN = RoundCosts(COSTS.step_cost)


def on_disk(document):
    """As a reader finds it."""
    return json.loads(json.dumps(document))


def is_list_of(kind, values):
    return isinstance(values, list) and all(type(value) is kind for value in values)


def rises(values):
    return all(left < right for left, right in itertools.pairwise(values))


def assert_same(found, wanted):
    for own, other in ((found.step_cost, wanted.step_cost), (found.draft_cost, wanted.draft_cost)):
        assert [size for size, _ in own] == [size for size, _ in other]
        assert [seconds for _, seconds in own] == pytest.approx([seconds for _, seconds in other], rel=1e-12)


@st.composite
def any_costs(draw):
    def points(least):
        sizes = draw(st.lists(st.integers(1, 4096), min_size=least, max_size=12, unique=True))
        seconds = draw(st.lists(st.floats(1e-5, 5.0), min_size=len(sizes), max_size=len(sizes), unique=True))
        return tuple(zip(sorted(sizes), sorted(seconds), strict=True))

    return RoundCosts(points(2), points(0))


@pytest.mark.parametrize("costs", [COSTS, PLAIN], ids=["with drafts", "without"])
def test_the_additive_table_obeys_the_rules_of_sglang(costs):
    table = on_disk(sglang.additive_table(costs))
    assert table.keys() == {"bias_seconds", "bs_probes", "alpha_seconds", "m_probes", "theta_seconds"}
    assert type(table["bias_seconds"]) is float
    assert table["bias_seconds"] > 0
    for probes, values in (("bs_probes", "alpha_seconds"), ("m_probes", "theta_seconds")):
        assert is_list_of(int, table[probes])
        assert is_list_of(float, table[values])
        assert len(table[probes]) == len(table[values]) > 0
        assert rises(table[probes])


@pytest.mark.parametrize(("requests", "tokens"), [(1, 1), (1, 5), (3, 20), (16, 64), (60, 100)])
def test_the_formula_of_sglang_gives_the_round_that_was_measured(requests, tokens):
    table = sglang.additive_table(COSTS)
    alpha = np.interp(requests, table["bs_probes"], table["alpha_seconds"])
    theta = np.interp(tokens, table["m_probes"], table["theta_seconds"])
    wanted = COSTS.draft_s(requests) + COSTS.step_s(tokens)
    assert table["bias_seconds"] + alpha + theta == pytest.approx(wanted, rel=1e-12)


def test_the_table_by_tokens_obeys_the_rules_of_sglang():
    table = on_disk(sglang.sps_table(COSTS, GAMMA))
    assert table.keys() == {"sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens"}
    assert is_list_of(int, table["sample_batch_tokens"])
    assert is_list_of(float, table["sample_steps_per_sec"])
    assert len(table["sample_batch_tokens"]) == len(table["sample_steps_per_sec"]) > 1
    assert rises(table["sample_batch_tokens"])
    assert type(table["max_batch_tokens"]) is int
    assert table["max_batch_tokens"] >= table["sample_batch_tokens"][-1]
    # Its loader tells the tables apart by this word anywhere in the text.
    assert "bias_seconds" not in json.dumps(table)


def test_the_table_by_tokens_counts_the_drafting_of_the_fewest_requests():
    table = sglang.sps_table(COSTS, GAMMA)
    speeds = dict(zip(table["sample_batch_tokens"], table["sample_steps_per_sec"], strict=True))
    assert 1 / speeds[1] == pytest.approx(0.0134 + 0.003)
    assert 1 / speeds[64] == pytest.approx(0.161 + COSTS.draft_s(8))


@pytest.mark.parametrize("costs", [COSTS, PLAIN], ids=["with drafts", "without"])
def test_the_table_obeys_the_rules_of_tensorrt_llm(costs):
    table = on_disk(tensorrt_llm.cost_table(costs))
    assert table.keys() <= {
        "token_counts",
        "step_time_ms",
        "fixed_overhead_ms",
        "batch_sizes",
        "batch_overhead_ms",
    }
    assert is_list_of(int, table["token_counts"])
    assert rises(table["token_counts"])
    assert len(table["token_counts"]) == len(table["step_time_ms"])
    assert all(math.isfinite(value) and value > 0 for value in table["step_time_ms"])
    assert len(set(table["step_time_ms"])) > 1, "a flat table makes its planner verify everything"
    assert table["fixed_overhead_ms"] >= 0
    assert is_list_of(int, table.get("batch_sizes", []))
    assert rises(table.get("batch_sizes", []))
    assert len(table.get("batch_sizes", [])) == len(table.get("batch_overhead_ms", []))
    assert all(math.isfinite(value) and value >= 0 for value in table.get("batch_overhead_ms", []))


@settings(max_examples=25)
@given(any_costs())
def test_what_was_written_is_read_back(costs):
    assert_same(sglang.read_costs(on_disk(sglang.additive_table(costs))), costs)
    assert_same(tensorrt_llm.read_costs(on_disk(tensorrt_llm.cost_table(costs))), costs)


@settings(max_examples=25)
@given(any_costs(), st.integers(1, 16))
def test_the_table_by_tokens_is_read_back_as_whole_rounds(costs, gamma):
    found = sglang.read_costs(on_disk(sglang.sps_table(costs, gamma)))
    rounds = [
        (size, seconds + costs.draft_s(max(1.0, size / (gamma + 1)))) for size, seconds in costs.step_cost
    ]
    assert_same(found, RoundCosts(tuple(rounds)))


def test_a_table_fitted_by_sglang_itself_is_read():
    fitted = {
        "bias_seconds": 0.1,
        "bs_probes": [128, 192, 256],
        "alpha_seconds": [0.0, 0.008, 0.016],
        "m_probes": [384, 512, 1024],
        "theta_seconds": [0.0, 0.02, 0.1],
    }
    costs = sglang.read_costs(fitted)
    assert costs.step_s(448) + costs.draft_s(160) == pytest.approx(0.1 + 0.004 + 0.01)


def test_a_table_of_tensorrt_llm_with_everything_in_it_is_read():
    costs = tensorrt_llm.read_costs(
        {
            "token_counts": [0, 128, 256],
            "step_time_ms": [2.0, 2.1, 4.0],
            "fixed_overhead_ms": 1.0,
            "batch_sizes": [1, 16],
            "batch_overhead_ms": [3.0, 5.0],
            "minimum_predicted_gain": 0.01,
            "_meta": {"encoding": "decomposed"},
        }
    )
    assert costs.step_s(192) == pytest.approx(4.05e-3)
    assert costs.draft_s(16) == pytest.approx(5e-3)


def changed(document, **fields):
    return {name: value for name, value in {**document, **fields}.items() if value is not None}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bias_seconds": 0.0}, "bias_seconds of SGLang's additive SPS table must be above 0"),
        ({"bias_seconds": "1"}, "bias_seconds .* must be a finite number, not '1'"),
        ({"m_probes": [1, 1, 8, 64]}, "m_probes .* must rise strictly"),
        ({"m_probes": [1, 2.0, 8, 64]}, "m_probes .* whole numbers"),
        ({"m_probes": [True, 2, 8, 64]}, "m_probes .* whole numbers"),
        ({"theta_seconds": [0.0]}, "theta_seconds .* must hold 4 numbers and holds 1"),
        ({"alpha_seconds": [0.0, 1.0, float("nan"), 2.0]}, "alpha_seconds .* finite numbers"),
        ({"bs_probes": None}, "bs_probes .* must be a list, not None"),
        ({"theta_seconds": [0.0, 0.0, 0.0, 0.0]}, "step_cost is flat over the sizes"),
    ],
)
def test_an_additive_table_that_sglang_would_refuse_is_refused_by_field(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        sglang.read_costs(changed(sglang.additive_table(COSTS), **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"max_batch_tokens": 63},
            "max_batch_tokens of SGLang's SPS table must be a whole number of at least 64",
        ),
        ({"max_batch_tokens": None}, "max_batch_tokens .* not None"),
        ({"sample_steps_per_sec": [4.0, 3.0, 2.0, 0.0]}, "sample_steps_per_sec .* must be above 0"),
        ({"sample_batch_tokens": [64, 8, 2, 1]}, "sample_batch_tokens .* must rise strictly"),
        ({"sample_batch_tokens": [1], "sample_steps_per_sec": [1.0]}, "flat over the sizes"),
    ],
)
def test_a_table_by_tokens_that_sglang_would_refuse_is_refused_by_field(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        sglang.read_costs(changed(sglang.sps_table(COSTS, GAMMA), **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema_version": 2}, "schema_version of TensorRT-LLM's cost table belongs to schema 2"),
        ({"step_time_ms": [1.0, 2.0]}, "step_time_ms .* must hold 4 numbers"),
        ({"step_time_ms": [0.0, 1.0, 2.0, 3.0]}, "step_time_ms .* must be above 0"),
        ({"token_counts": [4, 3, 2, 1]}, "token_counts .* must rise strictly"),
        ({"fixed_overhead_ms": -1.0}, "fixed_overhead_ms .* must be at least 0"),
        ({"batch_overhead_ms": None}, "batch_overhead_ms .* must be a list"),
        ({"batch_overhead_ms": [1.0, 2.0, 3.0, -4.0]}, "batch_overhead_ms .* must be at least 0"),
    ],
)
def test_a_table_that_tensorrt_llm_would_refuse_is_refused_by_field(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        tensorrt_llm.read_costs(changed(tensorrt_llm.cost_table(COSTS), **fields))


@pytest.mark.parametrize("module", [sglang, tensorrt_llm])
def test_what_is_no_object_is_no_table(module):
    with pytest.raises(ConfigurationError, match="must be a JSON object, not list"):
        module.read_costs([[1, 0.01]])


def test_measured_points_are_smoothed_and_only_whole_blocks_count():
    costs = RoundCosts.of([(4, 0.03), (1, 0.02), (2, 0.01)], [(2, 0.002), (28, 0.009), (7, 0.003)], GAMMA)
    assert costs.step_cost == ((1, pytest.approx(0.015)), (2, pytest.approx(0.015)), (4, 0.03))
    assert costs.draft_cost == ((1, 0.003), (4, 0.009))


@pytest.mark.parametrize(
    ("steps", "drafts", "message"),
    [
        (((1, 0.01), (8, 0.01)), (), "step_cost is flat"),
        (((1, 0.01),), (), "step_cost is flat"),
        (((8, 0.01), (1, 0.02)), (), "sizes of step_cost .* rise strictly"),
        (((1, 0.01), (8, math.inf)), (), "seconds of step_cost"),
        (((1, 0.01), (8, 0.02)), ((4, 0.1), (4, 0.1)), "sizes of draft_cost"),
        (((1, 0.01), (8, 0.02)), ((4, -0.1),), "seconds of draft_cost"),
    ],
)
def test_costs_that_make_no_table_are_refused_by_name(steps, drafts, message):
    with pytest.raises(ConfigurationError, match=message):
        RoundCosts(steps, drafts)
