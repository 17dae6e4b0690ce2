"""Muon, computing in a dtype of choice: torch's own always orthogonalises in bfloat16."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dspark.training.shards import shard_like, whole

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_STEPS = 5


# Rows that are orthogonalised together: the work grows with their square, what it brings hardly.
_BLOCK_ROWS = 64


def orthogonalise(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Nearly the closest matrix whose blocks of rows have singular values of one.

    By a quintic Newton-Schulz iteration, on blocks of the longer side of the matrix. Its numbers are about
    one over the root of the longer side of a block.
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] >= matrix.shape[1]
    rows = (matrix if is_tall else matrix.t()).to(dtype)
    size = _block_rows(len(rows))
    out = rows.reshape(-1, size, rows.shape[1])
    is_narrow = size > rows.shape[1]
    out = out.transpose(1, 2) if is_narrow else out
    out = out / out.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_NUM_STEPS):
        gram = out @ out.transpose(1, 2)
        out = torch.baddbmm(out, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), out, beta=a)
    out = (out.transpose(1, 2) if is_narrow else out).reshape(rows.shape)
    return out if is_tall else out.t()


def _block_rows(num_rows: int) -> int:
    """The largest divisor of the rows that is no more than a block's."""
    return next(size for size in range(min(_BLOCK_ROWS, num_rows), 0, -1) if num_rows % size == 0)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, in steps as large as AdamW's (`match_rms_adamw` of torch's Muon)."""

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
        dtype: torch.dtype,
        momentum: float = 0.95,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None, "no closure is used here"
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update(matrix, group["lr"], group["weight_decay"], group["momentum"])

    def _update(self, matrix: Tensor, lr: float, weight_decay: float, momentum: float) -> None:
        gradient = matrix.grad
        assert gradient is not None, "only matrices with a gradient are updated"
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        # a shard of a matrix has singular values of its own
        update = orthogonalise(whole(gradient.lerp(average, momentum)), self._dtype)
        matrix.mul_(1 - lr * weight_decay)
        size, width = _block_rows(max(matrix.shape)), min(matrix.shape)
        matrix.add_(shard_like(matrix, update), alpha=-0.2 * lr * max(size, width) ** 0.5)
