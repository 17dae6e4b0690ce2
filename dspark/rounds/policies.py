"""The names of the policies, for everything that lets a user choose one; `planner_of` makes them."""

from __future__ import annotations

from typing import Literal, get_args

PolicyName = Literal["early-stop", "barrier", "retrospective", "threshold", "fixed", "off"]
# How many cohorts of requests are in flight; see `dspark.scheduling.cohorts`.
CohortSetting = Literal["auto", "1", "2"]
POLICIES: tuple[str, ...] = get_args(PolicyName)
