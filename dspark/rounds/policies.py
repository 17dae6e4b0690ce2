"""The names of the policies, for everything that lets a user choose one; `planner_of` makes them."""

from __future__ import annotations

from typing import Literal, get_args

PolicyName = Literal["auto", "early-stop", "barrier", "retrospective", "threshold", "fixed", "off"]
POLICIES: tuple[str, ...] = get_args(PolicyName)
