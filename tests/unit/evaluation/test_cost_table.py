import pytest

from dspark.errors import ConfigurationError
from dspark.evaluation.cost_table import by_size


def test_a_further_token_costs_what_the_curve_rises_by_since_the_size_before():
    one, two, eight = by_size([(8, 0.026), (1, 0.010), (2, 0.014)])
    assert (one.size, one.marginal_s, one.tokens_per_s) == (1, None, pytest.approx(100.0))
    assert two.marginal_s == pytest.approx(0.004)
    assert eight.marginal_s == pytest.approx(0.002)
    assert eight.tokens_per_s == pytest.approx(8 / 0.026)


def test_what_was_measured_stands_beside_the_curve_that_never_falls():
    costs = by_size([(1, 0.02), (2, 0.01), (4, 0.03)])
    assert [one.measured_s for one in costs] == [0.02, 0.01, 0.03]
    assert [one.seconds for one in costs] == pytest.approx([0.015, 0.015, 0.03])
    assert costs[1].as_dict()["marginal_s"] == 0.0


def test_nothing_measured_is_one_sentence():
    with pytest.raises(ConfigurationError, match="step_cost is empty"):
        by_size([])
