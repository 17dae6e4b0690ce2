"""The table of verdicts says what was looked at, and fails on what was not."""

from dataclasses import replace

from dspark.decoding.types import (
    Acceptance,
    FinishReason,
    GenerationRequest,
    RoundStats,
    StopParams,
    TokenDelta,
)
from dspark.evaluation.generation import Generation
from dspark.evaluation.lossless.matrix import ARBITRARY, Case, matrix_check, matrix_head, matrix_rows
from dspark.evaluation.lossless.outputs import same_text_case
from dspark.evaluation.requests import GREEDY
from dspark.rounds.policies import POLICIES


def whole():
    """Every policy under every rule, one of them refused."""
    return [
        Case(policy, rule, "tiny", 3, 3)
        if (policy, rule) != ("retrospective", Acceptance.REJECTION)
        else Case(policy, rule, "tiny", is_refused=True)
        for policy in POLICIES
        for rule in Acceptance
    ]


def test_a_whole_matrix_is_met_and_has_a_row_for_each_policy():
    cases = [
        *whole(),
        Case("off", Acceptance.GREEDY, "real", 2, 2),
        Case(ARBITRARY, Acceptance.GREEDY, "tiny", 1, 1),
    ]
    check = matrix_check(cases)
    assert (check.is_met, check.found) == (True, "63 of 63 cases")
    rows = {row[0]: row[1:] for row in matrix_rows(cases)}
    assert matrix_head() == ["policy", "greedy", "rejection", "coupled"]
    assert next(iter(rows)) == "off"
    assert set(rows) == {*POLICIES, ARBITRARY}
    assert rows["off"] == ["ok: 3 tiny + 2 real", "ok: 3 tiny", "ok: 3 tiny"]
    assert rows["retrospective"][1] == "refused"
    assert rows[ARBITRARY] == ["ok: 1 tiny", "-", "-"]


def test_a_cell_that_was_not_looked_at_fails_the_matrix():
    check = matrix_check(whole()[1:])
    assert not check.is_met
    assert "not looked at: auto x greedy" in check.found


def test_one_wrong_case_fails_the_matrix_and_is_named():
    cases = whole()
    cases[7] = replace(cases[7], num_ok=2, failed=("top_p",))
    check = matrix_check(cases)
    assert not check.is_met
    assert "wrong: tiny: barrier x rejection" in check.found
    assert cases[7].found == "2 of 3, wrong: top_p"
    assert any("WRONG: 2 tiny" in cell for row in matrix_rows(cases) for cell in row)


def test_a_case_of_nothing_is_not_met():
    assert not Case("off", Acceptance.GREEDY, "tiny").is_met


def test_the_same_text_without_an_accepted_draft_proves_nothing_about_drafts():
    requests = [GenerationRequest("r", (1,), GREEDY, StopParams(2))]

    def output(num_accepted, reason=FinishReason.LENGTH):
        stats = RoundStats(1, 1, num_accepted)
        deltas = (TokenDelta("r", 0, (4,)), TokenDelta("r", 1, (5,), stats, finish_reason=reason))
        return [Generation("r", deltas)]

    assert same_text_case("fixed", "tiny", requests, output(0), output(1)).is_met
    assert same_text_case("off", "tiny", requests, output(0), output(0)).is_met
    assert not same_text_case("fixed", "tiny", requests, output(0), output(0)).is_met
    assert not same_text_case("fixed", "tiny", requests, output(0), output(1, FinishReason.STOP)).is_met
