"""What steps and drafts cost on a simulated machine: synthetic shapes by name, measured ones from a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.decoding.types import StepCost
from dspark.errors import ConfigurationError
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.surface import CapacitySurface, StepLoad

Points = tuple[tuple[int, float], ...]

# The engine measures its steps with requests of 256 tokens and eight rows each, some with longer requests
# (`dspark.engine.profile`).
_ROWS_PER_REQUEST, _CONTEXT_LEN, _LONG_CONTEXT_LEN = 8, 256, 2048
_LARGEST_STEP = 4096
_TILE_ROWS = 128


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that exists as its costs only.

    Attributes:
        name: for reports.
        origin: where the figures come from.
        step_cost: of a target step, which the planner is told: linear between the points and, where these
            have several contexts, in the context.
        draft_cost: (slots of all blocks, seconds) of a draft; empty where drafts are free.
        prefill_tokens: prompt tokens of one step while others are decoding.
        prefill_tokens_alone: prompt tokens of one step when nobody is.
    """

    name: str
    origin: str
    step_cost: tuple[StepCost, ...]
    draft_cost: Points = ()
    prefill_tokens: int = 128
    prefill_tokens_alone: int = 512


class Costs:
    """Seconds of steps and drafts of a machine."""

    def __init__(self, machine: Machine) -> None:
        """Make the curves.

        Raises:
            ConfigurationError: the points of the machine make no curve.
        """
        self._steps = CapacitySurface.from_points(machine.step_cost)
        self._drafts = CapacityCurve.from_points(machine.draft_cost) if machine.draft_cost else None

    def step_s(self, load: StepLoad) -> float:
        """Seconds of one step of the target."""
        return self._steps.step_s(load)

    def draft_s(self, num_slots: int) -> float:
        """Seconds of one draft."""
        return self._drafts.step_s(num_slots) if self._drafts else 0.0


def h100_like() -> Machine:
    """A staircase in the shape of an 8B target in bfloat16 on one H100. Synthetic, not measured.

    Reading 16 GB of weights at 2.9 TB/s takes 5.6 ms; 128 rows, one tile of a matrix product, take 3.15 ms at
    650 TFLOP/s. So a step is flat up to a tile and then climbs tile by tile. A batch is padded to the size of
    a captured graph, at 3 µs a row for all that is not a matrix product. A context token is 131 kB of keys
    and values, 47 ns. The drafter has a tenth of the weights, plus seven sequential heads.
    """

    def step_s(rows: int) -> float:
        padded = _padded(rows)
        return 0.4e-3 + max(5.6e-3, 3.15e-3 * _tiles(rows)) + 3e-6 * padded

    def draft_s(rows: int) -> float:
        return 0.3e-3 + max(0.9e-3, 0.3e-3 * _tiles(rows)) + 0.5e-6 * _padded(rows)

    return Machine(
        "h100-like",
        "synthetic: roofline of an 8B bfloat16 target with tiles and graph sizes",
        _with_contexts(_stairs(step_s), key_s=47e-9),
        _stairs(draft_s),
        prefill_tokens=2048,
        prefill_tokens_alone=8192,
    )


def cpu_like() -> Machine:
    """A smooth rise in the shape of a 135M target on a CPU whose matrix products have bfloat16 instructions.

    Synthetic: 14 ms for one row, 2.4 times that for 64, linear in between and beyond; drafts of 2 ms and
    60 µs a slot. Context costs nothing.
    """
    sizes = (1, 64, 1024)
    return Machine(
        "cpu-like",
        "synthetic: 14 ms a step, 2.4 times that for 64 rows, linear",
        tuple(StepCost(rows, 14e-3 * (1.0 + 1.4 * (rows - 1) / 63)) for rows in sizes),
        tuple((slots, 2e-3 + 60e-6 * slots) for slots in sizes),
    )


def memory_bound() -> Machine:
    """Rows that cost next to nothing: 2 µs each on top of 10 ms. Synthetic; drafts are free.

    Verifying everything is right at any load, as with a large model on few streams.
    """
    steps = (StepCost(1, 10.002e-3), StepCost(1000, 12e-3))
    return Machine("memory-bound", "synthetic: 10 ms a step and 2 µs a row", steps)


MACHINES: dict[str, Callable[[], Machine]] = {
    "h100-like": h100_like,
    "cpu-like": cpu_like,
    "memory-bound": memory_bound,
}


def machine_of(name_or_path: str) -> Machine:
    """A synthetic machine by name, or one from a JSON file.

    The file holds an object with the fields of `Machine`, of which only `step_cost` is needed, or nothing but
    the list that the engine keeps of its own steps: (batch tokens, seconds), or with the number of requests
    and the context of each behind these.

    Raises:
        ConfigurationError: neither a name nor a readable file of that form.
    """
    if name_or_path in MACHINES:
        return MACHINES[name_or_path]()
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        raise ConfigurationError(
            f"--curve {name_or_path} is no file and none of {', '.join(MACHINES)}; choose one, or "
            "name a JSON file with step_cost"
        )
    try:
        return _from_document(json.loads(path.read_text(encoding="utf-8")), path.stem)
    except (OSError, ValueError, TypeError, ConfigurationError) as error:
        raise ConfigurationError(
            f"--curve {path} cannot be used ({error}); give it "
            '{"step_cost": [[1, 0.013], [8, 0.025]], "draft_cost": [[7, 0.003]]} in tokens and seconds'
        ) from error


def _from_document(document: Any, name: str) -> Machine:
    fields: dict[str, Any] = {"step_cost": document} if isinstance(document, list) else dict(document)
    unknown = fields.keys() - set(Machine.__slots__)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: no such key")
    if "step_cost" not in fields:
        raise ValueError("step_cost is missing")
    counts = {key: int(fields[key]) for key in ("prefill_tokens", "prefill_tokens_alone") if key in fields}
    if any(count < 1 for count in counts.values()):
        raise ValueError(f"{', '.join(counts)} must be at least 1")
    machine = Machine(
        str(fields.get("name", name)),
        str(fields.get("origin", "from a file")),
        tuple(_step_cost(*row) for row in fields["step_cost"]),
        tuple((int(size), float(seconds)) for size, seconds in fields.get("draft_cost", ())),
        **counts,
    )
    Costs(machine)
    return machine


def _step_cost(batch_tokens: Any, seconds: Any, num_requests: Any = 0, context_len: Any = 0) -> StepCost:
    return StepCost(int(batch_tokens), float(seconds), int(num_requests), int(context_len))


def _with_contexts(points: Points, *, key_s: float) -> tuple[StepCost, ...]:
    """Steps as the engine measures them, of points without context and `key_s` for each context token."""
    short = [
        StepCost(size, seconds + key_s * num_requests * _CONTEXT_LEN, num_requests, _CONTEXT_LEN)
        for size, seconds in points
        for num_requests in [-(-size // _ROWS_PER_REQUEST)]
    ]
    long = [
        StepCost(_ROWS_PER_REQUEST, one.seconds + added, num_requests, _LONG_CONTEXT_LEN)
        for one in short
        if one.batch_tokens == _ROWS_PER_REQUEST
        for num_requests in (1, _ROWS_PER_REQUEST)
        for added in [key_s * (num_requests * _LONG_CONTEXT_LEN - _CONTEXT_LEN)]
    ]
    return (*short, *long)


def _stairs(cost_s: Callable[[int], float]) -> Points:
    """Both edges of every stair, so that what is linear between points is the staircase itself."""
    edges = sorted({1, *(size for size in range(1, _LARGEST_STEP + 1) if _padded(size) == size)})
    rows = sorted({*edges, *(edge + 1 for edge in edges[:-1])})
    return tuple((size, cost_s(size)) for size in rows)


def _padded(rows: int) -> int:
    """Rows of the smallest captured graph that holds them; beyond the largest graph, of whole tiles."""
    if rows <= 4:
        return 1 << (rows - 1).bit_length()
    step = 8 if rows <= 256 else 16 if rows <= 512 else _TILE_ROWS
    return -(-rows // step) * step


def _tiles(rows: int) -> int:
    return -(-rows // _TILE_ROWS)
