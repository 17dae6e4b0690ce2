"""Temperatures of a confidence head, one per block position: what calibrations of other engines hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dspark.errors import ConfigurationError
from dspark.scheduling.calibration import SequentialScaling


@dataclass(frozen=True, slots=True)
class Temperatures:
    """Sequential temperature scaling (paper §3.2.1): confidence[k] = sigmoid(logit[k] / values[k]).

    Attributes:
        values: [G], above 0.
        num_blocks: they were fitted on; 0 where it is not known.
        before: [G] calibration error of the survival with all temperatures 1; empty where it is not known.
        after: [G] with these temperatures; likewise.
        origin: what they were fitted on, in words.
    """

    values: tuple[float, ...]
    num_blocks: int = 0
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    origin: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no temperature.

        Raises:
            ConfigurationError: none at all, or one that is not positive and finite.
        """
        if not self.values or not all(0.0 < value < math.inf for value in self.values):
            raise ConfigurationError(
                f"temperatures must be positive and finite, one per draft, not {list(self.values)}"
            )

    @classmethod
    def of(cls, scaling: SequentialScaling) -> Temperatures:
        """Take those of a scaling.

        Raises:
            ConfigurationError: it has offsets, without which its temperatures mean something else.
        """
        if any(scaling.offsets):
            raise ConfigurationError(
                f"offsets {list(scaling.offsets)} have no place in a file of temperatures; fit temperatures "
                "alone, as dspark calibrate --export does"
            )
        return cls(scaling.temperatures)

    def check_gamma(self, gamma: int) -> None:
        """Refuse temperatures of a drafter with other blocks.

        Raises:
            ConfigurationError: there are more or fewer than `gamma`.
        """
        if len(self.values) != gamma:
            raise ConfigurationError(
                f"temperatures were fitted for gamma {len(self.values)} and the drafter has gamma {gamma}; "
                "fit them again with dspark calibrate"
            )
