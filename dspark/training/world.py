"""The processes of one run: this one alone, or those that `torchrun` started, joined by torch.distributed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed

# The others wait while the first process generates responses and caches features.
_PATIENCE = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class World:
    """Which of how many processes this one is."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value summed over all processes, in double precision; the same bits in each."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(total)
        summed: list[float] = total.tolist()
        return summed

    def wait(self) -> None:
        """Return once all processes are here."""
        if self.size > 1:
            distributed.barrier()


@contextlib.contextmanager
def join_world(environ: Mapping[str, str] = os.environ) -> Iterator[World]:
    """The world that torchrun describes in the environment, left at the end; without torchrun a lone one."""
    size = int(environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    distributed.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield World(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()
