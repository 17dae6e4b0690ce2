"""Between whole tensors and the shards of them that torch's DTensor holds."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate


def whole(value: Any) -> Any:
    """The same lists and mappings with whole tensors for shards; all processes call this together."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, dict):
        return {key: whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return [whole(one) for one in value]
    return value


def shard_like(parameter: Tensor, value: Tensor) -> Tensor:
    """Cut a tensor, which every process has whole, as a parameter is cut; as it is where that is whole."""
    if not isinstance(parameter, DTensor):
        return value
    mesh = parameter.device_mesh
    everywhere = DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=parameter.placements)
