"""How the training of a drafter is spread over the processes of a run: copies of it, or shards of it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dspark.errors import ConfigurationError
from dspark.models.drafter import Drafter, DSparkDrafter
from dspark.training.shards import shard_like, whole
from dspark.training.world import World

State = dict[str, Any]


class Sharding(StrEnum):
    """What a process holds."""

    # the drafter, its gradients and the states of its optimisers
    DDP = "ddp"
    # a part of each
    FSDP2 = "fsdp2"


class Distribution(Protocol):
    """One way to train a drafter with several processes. All of them call the same methods.

    Attributes:
        module: the objective to call; its gradients are averaged over the processes.
        trained: the drafter whose parameters the optimisers move.
    """

    module: nn.Module
    trained: Drafter

    def unsummed(self) -> contextlib.AbstractContextManager[None]:
        """Backward passes inside keep their gradients to their process."""
        ...

    def collect(self) -> None:
        """Have what was learned in the drafter of the first process."""
        ...

    def optimiser_states(self, optimisers: Sequence[Optimizer]) -> list[State]:
        """Whole states, for the first process to save."""
        ...

    def load(self, drafter: State, optimisers: Sequence[Optimizer], states: Sequence[State]) -> None:
        """Go on from whole states."""
        ...


def distribute(
    drafter: Drafter, make: Callable[[Drafter], nn.Module], world: World, sharding: Sharding
) -> Distribution:
    """Spread the objective that `make` makes of a drafter.

    Raises:
        ConfigurationError: a drafter of one layer cannot be cut up by layers.
    """
    if sharding is Sharding.DDP:
        return Copies(drafter, make, world)
    if not isinstance(drafter, DSparkDrafter):
        raise ConfigurationError(
            f"--sharding {sharding} cuts drafters up by layers and a {drafter.config.kind} drafter has one; "
            f"leave it at {Sharding.DDP}"
        )
    return Shards(drafter, make, world)


class Copies:
    """Every process holds everything (DDP of torch)."""

    def __init__(self, drafter: Drafter, make: Callable[[Drafter], nn.Module], world: World) -> None:
        self.trained: Drafter = drafter
        self.module = make(drafter)
        if world.size > 1:
            self.module = DistributedDataParallel(self.module, broadcast_buffers=False)

    def unsummed(self) -> contextlib.AbstractContextManager[None]:
        """See Distribution."""
        if isinstance(self.module, DistributedDataParallel):
            return self.module.no_sync()
        return contextlib.nullcontext()

    def collect(self) -> None:
        """See Distribution: it is there already."""

    def optimiser_states(self, optimisers: Sequence[Optimizer]) -> list[State]:
        """See Distribution."""
        return [optimiser.state_dict() for optimiser in optimisers]

    def load(self, drafter: State, optimisers: Sequence[Optimizer], states: Sequence[State]) -> None:
        """See Distribution."""
        self.trained.load_state_dict(drafter)
        for optimiser, state in zip(optimisers, states, strict=True):
            optimiser.load_state_dict(state)


class Shards:
    """Parameters, gradients and optimiser states are cut up by rows (FSDP2 of torch).

    The layers are whole one by one while they are computed, what is left (fusion, norms, heads) together. The
    frozen rows of the target are in every process. The first process keeps the drafter it was given, which
    `collect` brings up to date; the others give its parameters up.
    """

    def __init__(self, drafter: DSparkDrafter, make: Callable[[Drafter], nn.Module], world: World) -> None:
        frozen = {id(buffer): buffer for buffer in drafter.buffers()}
        trained = copy.deepcopy(drafter, frozen)
        self.trained: Drafter = trained
        self.module = make(self.trained)
        mesh = init_device_mesh("cpu", (world.size,))
        for layer in trained.backbone.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.module, mesh=mesh)
        self._whole = drafter if world.is_first else None
        if not world.is_first:
            for parameter in drafter.parameters():
                parameter.data = parameter.new_empty(0)

    @contextlib.contextmanager
    def unsummed(self) -> Iterator[None]:
        """See Distribution."""
        self.module.set_requires_gradient_sync(False)  # type: ignore[operator]
        try:
            yield
        finally:
            self.module.set_requires_gradient_sync(True)  # type: ignore[operator]

    @torch.no_grad()
    def collect(self) -> None:
        """See Distribution; one parameter after another is whole."""
        kept = dict(self._whole.named_parameters()) if self._whole is not None else {}
        for name, parameter in self.trained.named_parameters():
            value = whole(parameter)
            if name in kept:
                kept[name].copy_(value)

    def optimiser_states(self, optimisers: Sequence[Optimizer]) -> list[State]:
        """See Distribution."""
        states: list[State] = whole([optimiser.state_dict() for optimiser in optimisers])
        return states

    @torch.no_grad()
    def load(self, drafter: State, optimisers: Sequence[Optimizer], states: Sequence[State]) -> None:
        """See Distribution."""
        if self._whole is not None:
            self._whole.load_state_dict(drafter)
        for name, parameter in self.trained.named_parameters():
            parameter.copy_(shard_like(parameter, drafter[name]))
        for optimiser, state in zip(optimisers, states, strict=True):
            parameters = [one for group in optimiser.param_groups for one in group["params"]]
            optimiser.load_state_dict({**state, "state": _cut(state["state"], parameters)})


def _cut(states: dict[int, dict[str, Any]], parameters: Sequence[DTensor]) -> dict[int, dict[str, Any]]:
    """Cut up what has the shape of its parameter."""
    return {
        number: {
            key: shard_like(parameters[number], value) if _is_of(value, parameters[number]) else value
            for key, value in state.items()
        }
        for number, state in states.items()
    }


def _is_of(value: object, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape
