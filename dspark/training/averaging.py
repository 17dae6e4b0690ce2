"""The weights that come out of a run: their mean over its last part, with a share of those it began with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dspark.models.drafter import Drafter


class WeightAverage:
    """Counts every step alike. Without any it stands for the weights as they are.

    Args:
        drafter: as the run begins.
        start_share: weight of its present numbers in what comes out, 0 to 1.
    """

    def __init__(self, drafter: Drafter, start_share: float = 0.0) -> None:
        self._parameters = dict(drafter.named_parameters())
        self._start_share = start_share
        self._start = {name: one.detach().clone() for name, one in self._parameters.items() if start_share}
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
        """The drafter has the weights that come out inside."""
        kept = {name: self._parameters[name].detach().clone() for name in self._means | self._start}
        self.settle()
        try:
            yield
        finally:
            self._put(kept)

    @torch.no_grad()
    def settle(self) -> None:
        """Leave the weights that come out in the drafter: once, as the last thing a run does."""
        self._put(self._means)
        for name, start in self._start.items():
            self._parameters[name].lerp_(start, self._start_share)

    def state(self) -> dict[str, Any]:
        """What `load` takes."""
        return {"count": self._count, "means": self._means, "start": self._start}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._count, self._means = state["count"], dict(state["means"])
        self._start = dict(state["start"])

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self._parameters[name].copy_(value)
