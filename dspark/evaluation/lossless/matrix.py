"""The verdict over all policies and acceptance rules: what was decoded, and how much of it was right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dspark.decoding.types import Acceptance
from dspark.evaluation.verdict import Check
from dspark.rounds.policies import DRAFTING_POLICIES, POLICIES

# Not a policy that ships: other lengths in every round, whatever the confidences.
ARBITRARY = "any lengths"


@dataclass(frozen=True, slots=True)
class Case:
    """Some outputs, or distributions, of one policy under one acceptance rule.

    Attributes:
        level: which models.
        num_ok: those that plain decoding would have given.
        num_accepted: drafts accepted in all of them; None where that is not counted.
        is_refused: the policy takes no such requests, and said so.
        failed: names of those that were wrong.
    """

    policy: str
    acceptance: Acceptance
    level: str
    num_ok: int = 0
    num_cases: int = 0
    num_accepted: int | None = None
    is_refused: bool = False
    failed: tuple[str, ...] = ()

    @property
    def is_met(self) -> bool:
        """Whether all were right; nothing at all is not."""
        return self.is_refused or self.num_ok == self.num_cases > 0

    @property
    def found(self) -> str:
        """In words."""
        if self.is_refused:
            return "refused"
        text = f"{self.num_ok} of {self.num_cases}"
        text += f", {self.num_accepted} drafts accepted" if self.num_accepted is not None else ""
        return text + (f", wrong: {', '.join(self.failed)}" if self.failed else "")

    @property
    def name(self) -> str:
        """Which case it is."""
        return f"{self.level}: {self.policy} x {self.acceptance.value}"


def matrix_rows(cases: Sequence[Case]) -> list[list[str]]:
    """One row per policy, one cell per acceptance rule: `ok` and the number of cases, or what went wrong."""
    seen = {case.policy for case in cases}
    return [
        [
            policy,
            *(_cell([c for c in cases if (c.policy, c.acceptance) == (policy, rule)]) for rule in Acceptance),
        ]
        for policy in sorted(seen, key=_place)
    ]


def matrix_head() -> list[str]:
    """The heads of the columns of `matrix_rows`."""
    return ["policy", *(rule.value for rule in Acceptance)]


def matrix_check(cases: Sequence[Case]) -> Check:
    """Whether every policy was looked at under every rule, and all of it was right."""
    missing = [
        f"{policy} x {rule.value}"
        for policy in POLICIES
        for rule in Acceptance
        if not any((case.policy, case.acceptance) == (policy, rule) for case in cases)
    ]
    wrong = [case.name for case in cases if not case.is_met]
    num_ok, num_cases = sum(case.num_ok for case in cases), sum(case.num_cases for case in cases)
    found = f"{num_ok} of {num_cases} cases"
    found += f", wrong: {', '.join(wrong)}" if wrong else ""
    found += f", not looked at: {', '.join(missing)}" if missing else ""
    name = "every policy x acceptance x sampling setting"
    return Check(name, found, "all as in plain decoding", not wrong and not missing)


def as_figures(cases: Iterable[Case]) -> dict[str, str]:
    """For the report."""
    return {case.name: case.found for case in cases}


def _cell(cases: Sequence[Case]) -> str:
    if not cases:
        return "-"
    if all(case.is_refused for case in cases):
        return "refused"
    counts = " + ".join(f"{case.num_ok} {case.level}" for case in cases if not case.is_refused)
    return f"ok: {counts}" if all(case.is_met for case in cases) else f"WRONG: {counts}"


def _place(policy: str) -> int:
    order = ["off", *reversed(DRAFTING_POLICIES), ARBITRARY]
    return order.index(policy)
