"""What a user may choose by name: the policies, which `planner_of` makes, and the number of cohorts."""

from __future__ import annotations

from typing import Literal, get_args

PolicyName = Literal["auto", "early-stop", "barrier", "retrospective", "threshold", "fixed", "off"]
# How many cohorts of requests are in flight; see `dspark.scheduling.cohorts`.
CohortSetting = Literal["auto", "1", "2"]
POLICIES: tuple[str, ...] = get_args(PolicyName)
DRAFTING_POLICIES: tuple[str, ...] = tuple(name for name in POLICIES if name != "off")
COHORT_SETTINGS: tuple[str, ...] = get_args(CohortSetting)
