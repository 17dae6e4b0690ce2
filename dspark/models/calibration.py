"""The calibration beside a drafter: one temperature per block position, for greedy and for sampled requests.

Temperatures come from Sequential Temperature Scaling (paper §3.2.1); dividing a logit by one keeps the order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dspark.errors import ModelMismatchError
from dspark.scheduling.calibration import SequentialTemperatures

FILE = "calibration.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Temperatures of the confidence logits.

    Attributes:
        greedy: for requests decoded greedily.
        sampling: for sampled requests.
    """

    greedy: SequentialTemperatures
    sampling: SequentialTemperatures

    @classmethod
    def identity(cls, gamma: int) -> Calibration:
        """Leaves the confidence head's own probabilities as they are."""
        temperatures = SequentialTemperatures.identity(gamma)
        return cls(temperatures, temperatures)

    @classmethod
    def read(cls, directory: Path, gamma: int) -> Calibration:
        """Read `calibration.json` of a drafter directory; without one, the identity.

        Raises:
            ModelMismatchError: the file was made for another gamma, or holds no positive temperatures.
        """
        path = directory / FILE
        if not path.is_file():
            return cls.identity(gamma)
        document = json.loads(path.read_text())
        sets = {name: tuple(float(one) for one in document.get(name, ())) for name in ("greedy", "sampling")}
        for name, temperatures in sets.items():
            if len(temperatures) != gamma or min(temperatures) <= 0:
                raise ModelMismatchError(
                    f"{path}: {name!r} must hold {gamma} positive temperatures, one per draft; "
                    "fit it again with `dspark calibrate`"
                )
        return cls(**{name: SequentialTemperatures(temperatures) for name, temperatures in sets.items()})

    def write(self, directory: Path) -> None:
        """Write `calibration.json`."""
        document = {
            "greedy": list(self.greedy.temperatures),
            "sampling": list(self.sampling.temperatures),
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
