"""The checks of `dspark bench lossless` pass what is right and catch what is wrong.

Sampling checks have a fixed seed each and state an error rate of one in a million.
"""

from types import SimpleNamespace

import pytest

from dspark.decoding.types import Acceptance, SamplingParams
from dspark.evaluation.lossless.enumeration import output_distribution, target_distribution
from dspark.evaluation.lossless.mutations import TOO_LENIENT, WRONG_RESIDUAL
from dspark.evaluation.lossless.policies import APPENDIX_A_CURVE, fixed, retrospective, shipped_policies
from dspark.evaluation.lossless.real_pair import RealPair
from dspark.evaluation.lossless.statistics import ERROR_RATE
from dspark.evaluation.lossless.table_checks import EXACT, enumeration_gap, sampling_p_value
from dspark.evaluation.lossless.tables import appendix_a_tables, copying, random_tables
from dspark.evaluation.threads import one_thread
from dspark.rounds.policies import POLICIES

TABLES = random_tables(3, SamplingParams(temperature=0.8), vocab_size=3, gamma=2)
SHIPPED = {
    f"{policy}: {name}": variant
    for policy, variants in shipped_policies(2).items()
    for name, variant in variants.items()
}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_policy_that_ships_gives_exactly_the_targets_distribution(name):
    assert enumeration_gap(TABLES, SHIPPED[name], 3) < EXACT


@pytest.mark.parametrize("name", SHIPPED)
def test_copied_drafts_leave_the_targets_distribution_under_every_policy(name):
    copied = copying(TABLES)
    assert copied.draft_probs(()).probs.tolist() == [1.0]
    assert enumeration_gap(copied, SHIPPED[name], 3) < EXACT


def test_every_policy_that_takes_sampled_requests_is_enumerated():
    assert set(shipped_policies(2)) == set(POLICIES) - {"retrospective"}


@pytest.mark.parametrize("rule", [WRONG_RESIDUAL, TOO_LENIENT], ids=["residual", "acceptance"])
def test_a_wrong_rule_is_caught(rule):
    assert enumeration_gap(TABLES, fixed(2), 3, rule) > 1e-3


def test_the_retrospective_search_shows_the_papers_figures_and_is_caught_both_ways():
    tables, policy = appendix_a_tables(), retrospective(APPENDIX_A_CURVE)
    shown = output_distribution(tables, policy, 1)
    assert [shown[0,], shown[1,]] == pytest.approx([0.85, 0.15])
    assert target_distribution(tables, 1)[0,] == pytest.approx(0.7)
    assert sampling_p_value(tables, policy, 1, 1000, Acceptance.REJECTION) < ERROR_RATE


@pytest.mark.parametrize("acceptance", [Acceptance.REJECTION, Acceptance.COUPLED])
def test_sampled_outputs_have_the_targets_distribution(acceptance):
    with one_thread():
        assert sampling_p_value(TABLES, fixed(2), 2, 1000, acceptance) > ERROR_RATE


def test_a_text_that_differs_fails_only_where_the_engine_says_it_is_exact():
    requests = [SimpleNamespace(request_id="chat-0"), SimpleNamespace(request_id="code-0")]

    def check(*, is_exact):
        info = SimpleNamespace(is_exact=is_exact, exact_reason="too small")
        engines = SimpleNamespace(target=SimpleNamespace(info=info))
        pair = RealPair(engines, None, None, (), 8)
        found = [SimpleNamespace(token_ids=text, rounds=()) for text in ((1,), (2, 4))]
        return pair.same_text("text", requests, [(1,), (2, 3)], found)

    assert not check(is_exact=True).is_met
    assert "differs: code-0" in check(is_exact=True).found
    assert check(is_exact=False).is_met
    assert "too small" in check(is_exact=False).wanted
