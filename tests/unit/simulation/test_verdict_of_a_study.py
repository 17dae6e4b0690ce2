"""The bars of a study, over figures made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark.evaluation.simulation.figures import LoadFigures
from dspark.evaluation.simulation.report import checks_of, ratios_of
from dspark.evaluation.verdict import largest_rise

FIGURES = LoadFigures(100.0, 10.0, {}, {}, 3.0, 4.0, 4.0, 0.5, 10.0, 5, 1000.0)


def speeds(**by_policy: float) -> dict[str, LoadFigures]:
    return {name.replace("_", "-"): replace(FIGURES, tokens_per_s=value) for name, value in by_policy.items()}


def test_a_policy_is_held_against_the_better_of_plain_and_fixed_at_every_load():
    study = {
        "1 streams": speeds(off=100.0, fixed=200.0, early_stop=197.0),
        "8 streams": speeds(off=300.0, fixed=200.0, early_stop=290.0),
    }
    checks = checks_of(study)
    assert [check.is_met for check in checks] == [True, False, True]
    assert ratios_of(study) == pytest.approx(
        {
            "early-stop vs better of off and fixed, 1 streams": 0.985,
            "early-stop vs better of off and fixed, 8 streams": 290 / 300,
        }
    )


def test_users_are_compared_with_mtp_1():
    study = {"1 streams": {"mtp-1": FIGURES, "barrier": replace(FIGURES, user_tokens_per_s=15.0)}}
    assert ratios_of(study) == {"barrier vs mtp-1, per user, 1 streams": 1.5}
    assert checks_of(study) == []


@pytest.mark.parametrize(
    ("verified", "is_met"), [((4.0, 3.0, 3.1), True), ((4.0, 3.0, 3.15, 3.3), False), ((4.0, 4.0), True)]
)
def test_drafts_a_request_may_not_rise_with_load_even_by_small_steps(verified, is_met):
    study = {
        f"{number} streams": {"barrier": replace(FIGURES, mean_verified=value)}
        for number, value in enumerate(verified)
    }
    (check,) = checks_of(study)
    assert check.is_met is is_met


def test_a_rise_is_measured_from_the_lowest_before_it():
    assert largest_rise([5.0, 2.0, 2.5, 1.0, 1.2]) == pytest.approx(0.5)
    assert largest_rise([3.0, 2.0]) == 0.0
