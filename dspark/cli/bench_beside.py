"""The other drafters of `dspark bench speed`, and how the blocks of each are scheduled."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.cli.bench_options import find_drafter
from dspark.errors import ConfigurationError
from dspark.rounds.policies import DRAFTING_POLICIES

if TYPE_CHECKING:
    from dspark.rounds.planner import Planner


@dataclass(frozen=True, slots=True)
class Schedule:
    """A policy, and how many drafts of every block `fixed` verifies; None: the whole block."""

    policy: str
    fixed_len: int | None = None

    def planner(self) -> str | Planner:
        """What `LocalDecoder` takes."""
        from dspark.rounds.planner import planner_of

        return self.policy if self.fixed_len is None else planner_of(self.policy, fixed_len=self.fixed_len)


@dataclass(frozen=True, slots=True)
class Other:
    """A drafter that decodes beside the one of `--drafter`, under the name `name`."""

    name: str
    drafter: Path
    schedule: Schedule


def read_others(args: argparse.Namespace, taken: Iterable[str]) -> list[Other]:
    """The drafters of `--beside`, in its order.

    Raises:
        ConfigurationError: one is no drafter, has no name of its own, or no such policy.
    """
    names = set(taken)
    others: list[Other] = []
    for text in args.beside:
        other = _read_other(text, Schedule(args.policy))
        if other.name in names:
            raise ConfigurationError(f"--beside {text}: another system is called {other.name}; rename it")
        names.add(other.name)
        others.append(other)
    return others


def _read_other(text: str, usual: Schedule) -> Other:
    where, at, how = text.rpartition("@")
    if not at or Path(text).exists():
        path = find_drafter("--beside", text)
        return Other(path.name, path, usual)
    schedule = _read_schedule(text, how)
    path = find_drafter("--beside", where)
    return Other(f"{path.name}@{how}", path, schedule)


def _read_schedule(text: str, how: str) -> Schedule:
    policy, colon, count = how.partition(":")
    if policy not in DRAFTING_POLICIES:
        raise ConfigurationError(
            f"--beside {text}: {policy!r} is no policy; choose {', '.join(DRAFTING_POLICIES)}"
        )
    if not colon:
        return Schedule(policy)
    if policy != "fixed" or not count.isdecimal() or int(count) < 1:
        raise ConfigurationError(
            f"--beside {text}: a number belongs to fixed, as in fixed:3, and must be at least 1"
        )
    return Schedule(policy, int(count))
