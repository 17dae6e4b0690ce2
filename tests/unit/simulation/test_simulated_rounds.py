"""The round loop over simulated engines: what every policy must give, and which one is best where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dspark.errors import ConfigurationError
from dspark.evaluation.simulation.curves import Machine, machine_of
from dspark.evaluation.simulation.figures import figures_of
from dspark.evaluation.simulation.luck import Luck
from dspark.evaluation.simulation.runner import MTP_1, Scenario, simulate
from dspark.evaluation.simulation.trace import TraceRequest, TraceShape, synthetic_trace
from dspark.rounds.policies import POLICIES
from tests.fakes import step_costs

ALL = (*POLICIES, MTP_1)
GAMMA = 4
# Rows cost next to nothing, and so do drafts.
ROOMY = Machine("roomy", "test", step_costs((1, 0.010), (1000, 0.0101)))
# Four rows are as cheap as one; the fifth costs more than any number of drafts could bring, up to eight.
STAIRS = Machine("stairs", "test", step_costs((1, 0.010), (4, 0.01001), (5, 0.100), (8, 0.1001), (64, 0.800)))
# Each row costs as much as the first.
STEEP = Machine("steep", "test", step_costs((1, 0.010), (100, 1.000)), draft_cost=((1, 0.010), (2, 0.0101)))


def scenario(machine: Machine = ROOMY, *, count: int = 8, output_len: int = 24, **options) -> Scenario:
    trace = [TraceRequest(0.01 * number, 3 + number, output_len + number) for number in range(count)]
    return Scenario(machine, Luck(trace, seed=5, gamma=GAMMA, **options))


def outputs(observed) -> dict[int, tuple[int, ...]]:
    return {one.index: one.token_ids for one in observed.served if one.is_complete}


def test_every_policy_gives_every_request_the_same_text_to_its_last_token():
    study = scenario()
    expected = {
        index: tuple(study.luck.story(index).text[: one.output_len].tolist())
        for index, one in enumerate(study.luck.trace)
    }
    for policy in ALL:
        assert outputs(simulate(study, policy, None)) == expected, policy


def test_with_streams_kept_busy_every_request_of_the_trace_still_gets_exactly_its_length():
    study = scenario()
    for policy in ALL:
        observed = simulate(study, policy, 3)
        complete = [one for one in observed.served if one.is_complete]
        assert {one.index for one in complete} == set(range(8)), policy
        for one in complete:
            assert len(one.token_ids) == study.luck.trace[one.index].output_len
        for one in observed.served:
            starts = [each.delta.start for each in one.deltas]
            lengths = [len(each.delta.token_ids) for each in one.deltas]
            assert starts == np.cumsum([0, *lengths[:-1]]).tolist() or not starts


def test_how_many_drafts_a_position_accepts_does_not_depend_on_policy_or_load():
    study, seen = scenario(), {}
    for policy, concurrency in (
        ("fixed", None),
        ("fixed", 2),
        ("early-stop", 4),
        ("barrier", 1),
        ("threshold", 3),
    ):
        for one in simulate(study, policy, concurrency).served:
            for each in one.deltas:
                scheduled, accepted = each.delta.round.num_scheduled, each.delta.round.num_accepted
                if accepted < scheduled:  # the draft behind them was judged and refused
                    key = one.index, each.delta.start
                    assert seen.setdefault(key, accepted) == accepted
                    assert accepted == study.luck.story(one.index).num_right[each.delta.start]
    assert len(seen) > 20


def test_a_run_is_a_function_of_its_input():
    for policy in ("early-stop", "barrier"):
        first, second = (simulate(scenario(), policy, 3) for _ in range(2))
        assert first.rounds == second.rounds
        assert first.end_s == second.end_s
        assert [one.deltas for one in first.served] == [one.deltas for one in second.served]


def test_time_is_the_sum_of_the_costs_of_drafts_and_steps():
    machine = Machine(
        "plain", "test", step_costs((1, 0.010), (11, 0.020)), draft_cost=((1, 0.001), (11, 0.011))
    )
    study = Scenario(machine, Luck([TraceRequest(0.0, 6, 2 + 2 * GAMMA)], seed=0, gamma=GAMMA, spread=0.0))
    observed = simulate(study, "fixed", None)
    prefill_s = 0.010 + 5 * 0.001
    costs = [
        0.001 * part.num_drafted + 0.010 + 0.001 * part.num_scheduled
        for _, report in observed.rounds
        for part in report.verified
    ]
    assert observed.end_s == pytest.approx(prefill_s + sum(costs))


def test_where_rows_are_free_both_adaptive_policies_verify_all_that_is_worth_anything():
    study = scenario(count=12, output_len=40)
    fixed = figures_of(simulate(study, "fixed", 4))
    for policy in ("early-stop", "barrier"):
        found = figures_of(simulate(study, policy, 4))
        assert found.mean_verified > 0.95 * fixed.mean_verified
        assert (
            found.tokens_per_s
            > 0.98 * fixed.tokens_per_s
            > figures_of(simulate(study, "off", 4)).tokens_per_s
        )


def test_at_a_stair_too_high_for_any_draft_an_adaptive_policy_fills_the_step_and_stops():
    study = scenario(STAIRS, count=4, output_len=40)
    # A stream has three rows for drafts below the stair; verifying the fourth would cost ten times as much.
    for policy in ("early-stop", "barrier"):
        reports = [report for _, report in simulate(study, policy, 1).rounds if report.verified]
        assert {report.batch_tokens for report in reports} <= {1, 2, 3, 4}
        assert np.mean([report.batch_tokens for report in reports]) > 3.0
    fixed = figures_of(simulate(study, "fixed", 1))
    for policy in ("early-stop", "barrier", "off"):
        assert figures_of(simulate(study, policy, 1)).tokens_per_s > 2.0 * fixed.tokens_per_s


def test_where_every_row_costs_a_whole_step_plain_decoding_is_what_remains():
    study = scenario(STEEP, count=4, output_len=60)
    off = figures_of(simulate(study, "off", 4))
    for policy in ("early-stop", "barrier"):
        found = figures_of(simulate(study, policy, 4))
        assert found.mean_verified < 0.05
        assert 0.85 * off.tokens_per_s < found.tokens_per_s
    assert figures_of(simulate(study, "fixed", 4)).tokens_per_s < 0.8 * off.tokens_per_s


def test_two_cohorts_hide_drafts_behind_steps_only_on_hardware_apart():
    linear = Machine(
        "linear", "test", step_costs((1, 0.001), (100, 0.1)), draft_cost=((1, 0.0005), (100, 0.05))
    )
    speeds = {}
    for is_shared in (False, True):
        for cohorts in ("1", "2"):
            study = replace(scenario(linear, output_len=60), is_shared=is_shared, cohorts=cohorts)
            observed = simulate(study, "fixed", 4)
            assert outputs(observed) == outputs(simulate(scenario(linear, output_len=60), "fixed", 4))
            speeds[is_shared, cohorts] = figures_of(observed).tokens_per_s
    assert speeds[False, "1"] == speeds[True, "1"]
    assert speeds[False, "2"] > 1.2 * speeds[False, "1"]
    assert speeds[True, "2"] < 1.02 * speeds[True, "1"]


def test_mtp_1_drafts_one_token_and_commits_at_most_two():
    found = figures_of(simulate(scenario(), MTP_1, 2))
    assert found.mean_verified <= 1.0
    assert 1.0 < found.mean_committed <= 2.0


def test_figures_add_up():
    study = Scenario(
        machine_of("cpu-like"), Luck(synthetic_trace(TraceShape(10, rate=2.0), 3), seed=3, gamma=GAMMA)
    )
    observed = simulate(study, "fixed", None)
    found = figures_of(observed)
    total = sum(one.output_len for one in study.luck.trace)
    assert found.tokens_per_s == pytest.approx(total / observed.end_s)
    assert found.num_requests == 10
    assert 0.0 < found.waste < 1.0
    assert found.mean_committed == pytest.approx(1.0 + (1.0 - found.waste) * found.mean_verified)
    assert found.ttft_ms["p50"] <= found.ttft_ms["p90"] <= found.ttft_ms["p99"]
    assert 0.0 < found.inter_token_ms["p50"] <= found.inter_token_ms["p99"]


def test_arrivals_are_those_of_the_trace_counted_from_its_first():
    trace = [TraceRequest(1000.0 + 5.0 * number, 4, 2) for number in range(3)]
    observed = simulate(Scenario(ROOMY, Luck(trace, seed=0, gamma=GAMMA)), "off", None)
    assert [one.submitted_s for one in observed.served] == pytest.approx([0.0, 5.0, 10.0])


def test_outputs_of_one_token_leave_no_speed_and_no_error():
    trace = [TraceRequest(0.0, 1, 1)] * 3
    for concurrency in (None, 2):
        found = figures_of(
            simulate(Scenario(ROOMY, Luck(trace, seed=0, gamma=GAMMA)), "barrier", concurrency)
        )
        assert found.user_tokens_per_s == 0.0
        assert found.mean_committed == 0.0
        assert found.tokens_per_s > 0.0


def test_a_flat_curve_is_refused_by_the_policies_that_weigh_it():
    flat = Machine("flat", "test", step_costs((1, 0.010), (8, 0.010)))
    assert outputs(simulate(scenario(flat), "fixed", 2))
    with pytest.raises(ConfigurationError, match="step_cost is flat"):
        simulate(scenario(flat), "early-stop", 2)
