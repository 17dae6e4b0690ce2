"""The verdict of a study: policies against each other at each load, and against themselves at lower loads."""

from __future__ import annotations

from collections.abc import Mapping

from dspark.evaluation.simulation.figures import LoadFigures
from dspark.evaluation.simulation.runner import MTP_1
from dspark.evaluation.verdict import Check, at_least, at_most, largest_rise
from dspark.rounds.policies import CohortSetting

# Those that weigh what drafts may bring against what a step costs.
SCHEDULED = ("auto", "early-stop", "barrier", "retrospective")
LEAST_SCHEDULED_VS_BETTER = 0.98
# Drafts per request and round that may be chance: loads serve different numbers of the same requests.
MOST_RISE_OF_VERIFIED = 0.2

LEAST_AUTO_VS_BETTER = 0.98

# By load, then by the label of policy and cohorts.
Study = Mapping[str, Mapping[str, LoadFigures]]


def label_of(policy: str, cohorts: CohortSetting) -> str:
    """Name of a policy with so many cohorts in flight; with one it is that of the policy."""
    return {"1": policy, "2": f"{policy}, 2 cohorts", "auto": f"{policy}, auto cohorts"}[cohorts]


def ratios_of(study: Study) -> dict[str, float]:
    """Scheduled policies against the baselines that were run, by load.

    Tokens per second over those of the better of plain and fixed, and tokens per second of the median user
    over MTP-1's, as the paper's Fig. 7 compares; and a measured number of cohorts over the better one.
    """
    return _vs_better(study) | _vs_mtp_1(study) | _auto_vs_better(study)


def _vs_better(study: Study) -> dict[str, float]:
    return {
        f"{policy} vs better of off and fixed, {load}": by_policy[policy].tokens_per_s
        / max(by_policy["off"].tokens_per_s, by_policy["fixed"].tokens_per_s)
        for load, by_policy in study.items()
        if {"off", "fixed"} <= by_policy.keys()
        for policy in _scheduled(by_policy)
    }


def _vs_mtp_1(study: Study) -> dict[str, float]:
    return {
        f"{policy} vs mtp-1, per user, {load}": by_policy[policy].user_tokens_per_s
        / by_policy[MTP_1].user_tokens_per_s
        for load, by_policy in study.items()
        if MTP_1 in by_policy and by_policy[MTP_1].user_tokens_per_s > 0.0
        for policy in _scheduled(by_policy)
    }


def _auto_vs_better(study: Study) -> dict[str, float]:
    ratios = {}
    for load, by_label in study.items():
        for policy in by_label:
            one, two, auto = (label_of(policy, cohorts) for cohorts in ("1", "2", "auto"))
            if {two, auto} <= by_label.keys():
                better = max(by_label[one].tokens_per_s, by_label[two].tokens_per_s)
                ratios[f"{auto} vs better of 1 and 2, {load}"] = by_label[auto].tokens_per_s / better
    return ratios


def checks_of(study: Study) -> list[Check]:
    """The bars: never slower than plain and fixed, never more drafts a request as the load grows.

    And a measured number of cohorts is never slower than either.
    """
    checks = [at_least(name, ratio, LEAST_SCHEDULED_VS_BETTER) for name, ratio in _vs_better(study).items()]
    checks += [at_least(name, ratio, LEAST_AUTO_VS_BETTER) for name, ratio in _auto_vs_better(study).items()]
    by_load = list(study.values())
    if len(by_load) > 1:
        for policy in _scheduled(by_load[0]):
            rise = largest_rise([by_policy[policy].mean_verified for by_policy in by_load])
            checks.append(at_most(f"{policy}: rise of verified with load", rise, MOST_RISE_OF_VERIFIED))
    return checks


def _scheduled(by_policy: Mapping[str, LoadFigures]) -> list[str]:
    return [policy for policy in SCHEDULED if policy in by_policy]
