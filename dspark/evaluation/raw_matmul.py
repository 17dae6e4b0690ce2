"""The floor under plain decoding: nothing but the linear layers of the target, one row at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dspark.engine.linear import fuse_linears, make_linear, open_arena


class RawMatmuls:
    """All linear layers of a Llama-like model, packed and fused as the engine packs and fuses them."""

    def __init__(self, model: Any, cache_dir: Path | None = None) -> None:
        """Pack the weights of a stock model; they are copied, the model stays as it is."""
        arena = open_arena(cache_dir)
        self._calls: list[tuple[nn.Module, Tensor]] = []

        def add(linear: nn.Module, width: int) -> None:
            row = torch.ones((1, width), dtype=model.lm_head.weight.dtype)
            self._calls.append((linear, row))

        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            hidden = mlp.gate_proj.weight.shape[1]
            add(fuse_linears(attention.q_proj, attention.k_proj, attention.v_proj, arena=arena), hidden)
            add(make_linear(attention.o_proj.weight, arena=arena), attention.o_proj.weight.shape[1])
            add(fuse_linears(mlp.gate_proj, mlp.up_proj, arena=arena), hidden)
            add(make_linear(mlp.down_proj.weight, arena=arena), mlp.down_proj.weight.shape[1])
        add(make_linear(model.lm_head.weight, arena=arena), model.lm_head.weight.shape[1])

    @torch.inference_mode()
    def seconds(self, num_passes: int, clock: Callable[[], float] = time.perf_counter) -> list[float]:
        """Duration of each of so many passes over all layers."""
        durations = []
        for _ in range(num_passes):
            started = clock()
            for linear, row in self._calls:
                linear(row)
            durations.append(clock() - started)
        return durations
