"""The calibration beside a drafter: a temperature and an offset per block position, greedy and sampled.

They come from Sequential Temperature Scaling (paper §3.2.1), to which we add the offsets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.errors import ModelMismatchError
from dspark.scheduling.calibration import SequentialScaling

FILE = "calibration.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Scaling of the confidence logits.

    Attributes:
        greedy: for requests decoded greedily.
        sampling: for sampled requests.
    """

    greedy: SequentialScaling
    sampling: SequentialScaling

    @classmethod
    def identity(cls, gamma: int) -> Calibration:
        """Leaves the confidence head's own probabilities as they are."""
        scaling = SequentialScaling.identity(gamma)
        return cls(scaling, scaling)

    @classmethod
    def read(cls, directory: Path, gamma: int) -> Calibration:
        """Read `calibration.json` of a drafter directory; without one, the identity.

        Raises:
            ModelMismatchError: the file was made for another gamma or by an older version, or is damaged.
        """
        path = directory / FILE
        if not path.is_file():
            return cls.identity(gamma)
        document = json.loads(path.read_text())
        return cls(**{name: _read_scaling(path, document, name, gamma) for name in ("greedy", "sampling")})

    def write(self, directory: Path) -> None:
        """Write `calibration.json`."""
        sets = {"greedy": self.greedy, "sampling": self.sampling}
        document = {
            name: {"temperatures": list(one.temperatures), "offsets": list(one.offsets)}
            for name, one in sets.items()
        }
        (directory / FILE).write_text(json.dumps(document, indent=2) + "\n")

    def apply(
        self,
        logits: npt.NDArray[np.float32],  # [R, G'] with G' <= G
        is_greedy: npt.NDArray[np.bool_],  # [R]
    ) -> npt.NDArray[np.float32]:
        """Calibrated conditional confidences [R, G']."""
        if is_greedy.all():
            return self.greedy.apply(logits).astype(np.float32)
        chosen = np.where(is_greedy[:, None], self.greedy.apply(logits), self.sampling.apply(logits))
        return chosen.astype(np.float32)


def _read_scaling(path: Path, document: Any, name: str, gamma: int) -> SequentialScaling:
    try:
        values = [tuple(float(one) for one in document[name][part]) for part in ("temperatures", "offsets")]
    except (KeyError, TypeError, ValueError):
        values = [(), ()]
    temperatures, offsets = values
    is_whole = len(temperatures) == len(offsets) == gamma and np.isfinite((*temperatures, *offsets)).all()
    if not is_whole or min(temperatures) <= 0:
        raise ModelMismatchError(
            f"{path}: {name!r} must hold {gamma} positive `temperatures` and {gamma} `offsets`, "
            "one of each per draft; fit it again with `dspark calibrate`"
        )
    return SequentialScaling(temperatures, offsets)
