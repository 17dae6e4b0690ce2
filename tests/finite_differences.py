"""Gradients held against differences of the loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


def check_gradient(weight: Tensor, loss: Callable[[], Tensor]) -> None:
    """A step along the gradient of a weight changes the loss by what the gradient says."""
    step = 0.01 * weight.grad / weight.grad.norm()
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(sign * step)
            values.append(float(loss()))
            weight.sub_(sign * step)
    assert (values[0] - values[1]) / 0.02 == pytest.approx(float(weight.grad.norm()), rel=0.02)
