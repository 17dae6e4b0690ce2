"""The figures of an evaluation as tables of words, for a terminal, Markdown and HTML alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dspark.evaluation.offline.figures import ALL, DOMAIN, TASK, Figures, GroupFigures
from dspark.evaluation.offline.results import Results

NONE = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a head.

    Attributes:
        emphasised: numbers of the rows that sum up others.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    emphasised: frozenset[int] = frozenset()


def accept_table(figures: Figures, temperature: float) -> Table:
    """Accepted lengths of every group."""
    own = [one for one in figures.groups if one.temperature == temperature]
    columns: dict[str, Callable[[GroupFigures], str]] = {
        "prompts": lambda one: str(len(one.group.prompts)),
        "rounds": lambda one: str(one.full.num_rounds),
        "#propose": lambda one: f"{one.full.mean_proposed:.2f}+1",
        "accept_len": lambda one: f"{one.full.accept_len:.2f}",
        "mean of tasks": lambda one: NONE if one.group.level == TASK else f"{one.task_mean_accept_len:.2f}",
        "committed": lambda one: f"{one.full.mean_committed:.2f}",
        "verify_rate": lambda one: f"{one.full.verify_rate:.3f}",
    }
    if any(one.served for one in own):
        columns |= {
            "served: committed": lambda one: f"{one.served.mean_committed:.2f}" if one.served else NONE,
            "served: verified": lambda one: f"{one.served.mean_proposed:.2f}" if one.served else NONE,
        }
    if any(one.coupled for one in own):
        columns |= {
            "accepted": lambda one: f"{one.full.mean_accepted:.3f}",
            "coupled": lambda one: f"{one.coupled.mean_accepted:.3f}" if one.coupled else NONE,
        }
    return Table(
        f"Accepted length, T = {temperature:g}",
        ("prompts of", *columns),
        tuple((_name(one), *(show(one) for show in columns.values())) for one in own),
        _sums(own),
    )


def position_table(figures: Figures, temperature: float, *, is_conditional: bool) -> Table:
    """Acceptance by position in percent, of every group."""
    own = [one for one in figures.groups if one.temperature == temperature]
    gamma = len(own[0].full.num_judged) if own else 0
    told = "given that all before were accepted" if is_conditional else "with all before (accept_rate@j)"
    rows = tuple(
        (_name(one), *_percents(one.full.conditional if is_conditional else one.full.accept_rate))
        for one in own
    )
    return Table(
        f"Drafts accepted by position, {told}, %, T = {temperature:g}",
        ("prompts of", *(str(place + 1) for place in range(gamma))),
        rows,
        _sums(own),
    )


def sweep_table(figures: Figures, temperature: float, name: str = ALL) -> Table:
    """Every threshold, for the domain of a name or for all."""
    rows = [
        (
            f"{point.threshold:g}",
            f"{point.mean_verified:.2f}",
            f"{point.accept_len:.2f}",
            f"{100 * point.acceptance_rate:.1f}",
            point.method.value,
        )
        for one in figures.sweeps
        if (one.temperature, one.group.name) == (temperature, name) and one.group.level != TASK
        for point in one.points
    ]
    head = ("threshold", "verified", "committed", "acceptance rate, %", "how")
    return Table(f"Threshold on confidences, {name}, T = {temperature:g}", head, tuple(rows))


def quality_table(figures: Figures, temperature: float, gamma: int, name: str = ALL) -> Table:
    """Calibration error by position and the other figures in summary, for a domain or for all."""
    rows = []
    for one in figures.qualities:
        if (one.temperature, one.group.name) != (temperature, name) or one.group.level == TASK:
            continue
        summary = one.quality.summary
        if summary is None:
            continue
        errors = [f"{100 * place.ece:.1f}" for place in one.quality.positions]
        rows.append(
            (
                one.calibration,
                f"{100 * summary.ece:.1f}",
                NONE if summary.auroc is None else f"{summary.auroc:.3f}",
                f"{summary.brier:.4f}",
                f"{summary.predicted:.3f}",
                f"{summary.observed:.3f}",
                *errors,
                *[NONE] * (gamma - len(errors)),
            )
        )
    head = ("calibration", "ECE, %", "AUROC", "Brier", "predicted", "observed")
    return Table(
        f"Predicted survival, {name}, T = {temperature:g}; ECE also by position",
        (*head, *(f"at {place + 1}" for place in range(gamma))),
        tuple(rows),
    )


def tables_of(figures: Figures, results: Results) -> list[Table]:
    """All that a report shows, those without rows left out."""
    domains = [ALL, *dict.fromkeys(one.group.name for one in figures.groups if one.group.level == DOMAIN)]
    tables: list[Table] = []
    for temperature in results.temperatures:
        tables += [
            accept_table(figures, temperature),
            position_table(figures, temperature, is_conditional=True),
            position_table(figures, temperature, is_conditional=False),
            *(sweep_table(figures, temperature, name) for name in domains),
            *(quality_table(figures, temperature, results.gamma, name) for name in domains),
        ]
    return [one for one in tables if one.rows]


def _name(one: GroupFigures) -> str:
    return f"{one.group.name} (domain)" if one.group.level == DOMAIN else one.group.name


def _sums(groups: Sequence[GroupFigures]) -> frozenset[int]:
    return frozenset(number for number, one in enumerate(groups) if one.group.level != TASK)


def _percents(shares: Sequence[float | None]) -> tuple[str, ...]:
    return tuple(NONE if share is None else f"{100 * share:.0f}" for share in shares)
