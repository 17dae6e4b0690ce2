"""What a simulation is given: traces and curves, made up or read from files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dspark.decoding.types import StepCost
from dspark.errors import ConfigurationError
from dspark.evaluation.simulation.curves import MACHINES, Costs, machine_of
from dspark.evaluation.simulation.trace import TraceShape, read_trace, synthetic_trace, write_trace
from dspark.scheduling.surface import CapacitySurface, StepLoad


def test_a_trace_survives_its_file(tmp_path):
    trace = synthetic_trace(TraceShape(50, rate=3.0), seed=4)
    write_trace(trace, tmp_path / "trace.jsonl")
    assert read_trace(tmp_path / "trace.jsonl") == trace


def test_a_trace_is_a_function_of_its_seed():
    shape = TraceShape(20, rate=3.0)
    assert synthetic_trace(shape, 1) == synthetic_trace(shape, 1) != synthetic_trace(shape, 2)


def test_synthetic_requests_arrive_at_their_rate_and_have_the_lengths_asked_for():
    trace = synthetic_trace(TraceShape(4000, rate=20.0, prompt_len=300, output_len=80), seed=0)
    assert trace[-1].arrival_s == pytest.approx(4000 / 20.0, rel=0.1)
    assert np.median([one.prompt_len for one in trace]) == pytest.approx(300, rel=0.05)
    assert np.median([one.output_len for one in trace]) == pytest.approx(80, rel=0.05)
    assert {one.domain for one in trace} == {"math", "code", "chat"}


def test_lines_come_in_any_order_and_need_only_arrival_and_lengths(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [
        {"arrival_s": 2, "prompt_len": 3, "output_len": 4},
        {"arrival_s": 1, "prompt_len": 5, "output_len": 6},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    assert [(one.arrival_s, one.prompt_len, one.domain) for one in read_trace(path)] == [
        (1, 5, "chat"),
        (2, 3, "chat"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2: Expecting"),
        ("[1]", "line 2: "),
        ('{"arrival_s": 0, "prompt_len": 3}', "line 2: .*output_len"),
        ('{"arrival_s": -1, "prompt_len": 3, "output_len": 4}', "line 2: arrival_s is -1"),
        ('{"arrival_s": 0, "prompt_len": 0, "output_len": 4}', "line 2: prompt_len is 0"),
        ('{"arrival_s": 0, "prompt_len": 3, "output_len": 4.5}', "line 2: output_len is 4.5"),
        (
            '{"arrival_s": 0, "prompt_len": 3, "output_len": 4, "difficulty": NaN}',
            "line 2: difficulty is nan",
        ),
        (
            '{"arrival_s": 0, "prompt_len": 3, "output_len": 4, "domain": "law"}',
            "line 2: domain is 'law'; choose one",
        ),
        ('{"arrival_s": 0, "prompt_len": 3, "output_len": 4, "colour": 1}', "line 2: .*colour"),
    ],
)
def test_a_wrong_line_is_named_with_what_a_line_holds(tmp_path, line, reason):
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"arrival_s": 0, "prompt_len": 3, "output_len": 4}}\n{line}\n')
    with pytest.raises(ConfigurationError, match=reason) as caught:
        read_trace(path)
    assert 'a line is {"arrival_s"' in str(caught.value)


@pytest.mark.parametrize("name", MACHINES)
def test_a_synthetic_machine_never_gets_faster_with_more_rows(name):
    machine = MACHINES[name]()
    surface = CapacitySurface.from_points(machine.step_cost)
    assert (np.diff(surface.rows.steps_s(np.arange(1, 4097))) >= 0.0).all()
    surface.check_rises()


def test_the_staircase_is_flat_in_a_tile_and_jumps_behind_it():
    costs = Costs(machine_of("h100-like"))

    def step_s(rows: int) -> float:
        return costs.step_s(StepLoad(rows, 8192))

    assert step_s(128) < 1.1 * step_s(1)
    assert step_s(257) - step_s(256) > 30 * (step_s(256) - step_s(249)) + 0.003
    assert step_s(385) - step_s(257) == pytest.approx(3.15e-3 + 3e-6 * 128, rel=0.2)


def test_a_context_token_of_the_staircase_costs_its_bytes_however_many_rows_read_it():
    costs = Costs(machine_of("h100-like"))
    for num_scores in (0, 64_000):
        longer = costs.step_s(StepLoad(64, 3048, num_scores))
        assert longer - costs.step_s(StepLoad(64, 2048)) == pytest.approx(47e-6, rel=1e-6)


def test_a_measured_curve_is_read_as_the_engine_keeps_it_or_with_more(tmp_path):
    points = [[1, 0.013, 1, 256], [8, 0.025, 1, 256], [8, 0.029, 1, 2304]]
    (tmp_path / "steps.json").write_text(json.dumps(points))
    (tmp_path / "more.json").write_text(
        json.dumps({"name": "mine", "step_cost": points, "draft_cost": [[7, 0.003]], "prefill_tokens": 64})
    )
    steps, more = machine_of(str(tmp_path / "steps.json")), machine_of(str(tmp_path / "more.json"))
    assert steps.name == "steps"
    assert steps.step_cost == more.step_cost == tuple(StepCost(*point) for point in points)
    assert Costs(steps).step_s(StepLoad(8, 4352, 8 * 4352)) == pytest.approx(0.033)
    (tmp_path / "old.json").write_text("[[1, 0.013], [8, 0.025]]")
    old = Costs(machine_of(str(tmp_path / "old.json")))
    assert old.step_s(StepLoad(8, 4352, 8 * 4352)) == pytest.approx(0.025)
    assert (Costs(steps).draft_s(7), Costs(more).draft_s(7)) == (0.0, 0.003)
    assert (more.name, more.prefill_tokens, more.prefill_tokens_alone) == ("mine", 64, 512)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting"),
        ("7", "not iterable"),
        ("[]", "step_cost is empty"),
        ('{"draft_cost": [[1, 0.1]]}', "step_cost is missing"),
        ("[[1, -0.1]]", "positive"),
        ("[[1]]", "missing"),
        ("[[1, 0.1, -1, 3]]", "no negative"),
        ('{"step_cost": [[1, 0.1]], "speed": 3}', "speed: no such key"),
        ('{"step_cost": [[1, 0.1]], "prefill_tokens": 0}', "at least 1"),
        ("[[1, 0.1, 1, 256], [8, 0.1, 1, 2048]]", "longer contexts only"),
    ],
)
def test_a_curve_that_is_none_is_refused_with_the_form_it_takes(tmp_path, text, reason):
    path = tmp_path / "curve.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        machine_of(str(path))
    assert "--curve" in str(caught.value)
    assert '"step_cost"' in str(caught.value)
