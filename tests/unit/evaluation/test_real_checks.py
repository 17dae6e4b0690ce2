"""The checks that `dspark bench lossless` makes on a real model, here on a tiny one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspark.decoding.types import Acceptance
from dspark.evaluation.lossless.real_checks import coupled_checks, greedy_checks
from dspark.evaluation.lossless.real_pair import RealPair
from dspark.evaluation.lossless.real_settings import RealSettings
from dspark.evaluation.lossless.tiny_checks import TinyPair
from dspark.evaluation.tasks import TaskPrompt
from dspark.evaluation.threads import one_thread
from dspark.rounds.policies import POLICIES

PROMPTS = [
    TaskPrompt("t", number, "", tuple((number + k) % 5 for k in range(3 + number))) for number in range(2)
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with one_thread():
        tiny = TinyPair.load(tmp_path_factory.mktemp("tiny"))
        # float64 rounds so finely that no choice depends on the batch.
        tiny.engines.target.info = replace(tiny.engines.target.info, is_exact=True)
        yield RealPair(tiny.engines, tiny.stock, tiny.stock, PROMPTS, max_new_tokens=8)
        tiny.engines.worker.shutdown()


async def test_greedy_and_coupled_outputs_pass_all_checks(pair):
    checks = [check async for check in greedy_checks(pair)] + [check async for check in coupled_checks(pair)]
    assert [check.name for check in checks if not check.is_met] == []
    assert {check.found.split(",")[0] for check in checks[1:]} == {"2 of 2"}
    assert [check.name for check in checks][3:] == [
        "coupled text alone and among 31 others",
        "coupled text with a useless drafter",
        "coupled text after a restart half way",
    ]


async def test_every_policy_and_rule_is_decoded_and_every_rule_re_scored(pair):
    settings = RealSettings(pair)
    cases = [case async for case in settings.cases()]
    assert {(case.policy, case.acceptance) for case in cases} == {
        (p, r) for p in POLICIES for r in Acceptance
    }
    assert [(case.policy, case.acceptance, case.found) for case in cases if not case.is_met] == []
    assert [case.policy for case in cases if case.is_refused] == ["retrospective"]
    by_judge = [check.is_met for check in settings.checks() if "transformers" in check.name]
    assert by_judge == [True, True, True]
