"""The mean of a drafter's weights over the last part of a run, which drafts better than the last ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dspark.models.drafter import Drafter


class WeightAverage:
    """Counts every step alike. Without any it stands for the weights as they are."""

    def __init__(self, drafter: Drafter) -> None:
        self._parameters = dict(drafter.named_parameters())
        self._means: dict[str, Tensor] = {}
        self._count = 0

    @torch.no_grad()
    def add(self) -> None:
        """Take in the weights after one more step."""
        self._count += 1
        for name, parameter in self._parameters.items():
            if name in self._means:
                self._means[name].lerp_(parameter, 1 / self._count)
            else:
                self._means[name] = parameter.detach().clone()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The drafter has the mean weights inside."""
        kept = {name: self._parameters[name].detach().clone() for name in self._means}
        self.settle()
        try:
            yield
        finally:
            self._put(kept)

    def settle(self) -> None:
        """Leave the mean weights in the drafter."""
        self._put(self._means)

    def state(self) -> dict[str, Any]:
        """What `load` takes."""
        return {"count": self._count, "means": self._means}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._count, self._means = state["count"], dict(state["means"])

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self._parameters[name].copy_(value)
