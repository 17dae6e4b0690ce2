"""What exactness costs: the engine's linear layers and attention against the fastest inexact ones at hand.

Inexact are those of torch and oneDNN, whose sums depend on how many rows or keys there are: linear layers as
`torch.nn.functional.linear` and packed by oneDNN for the very number of rows, attention as
`scaled_dot_product_attention` over keys and values that lie ready, each in bfloat16 and in float32; the
fastest counts. They need write no keys and look up no pages, so the comparison favours them. There is no
inexact variant of our own kernels: a row of theirs is summed in one order at any size, without padding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dspark.engine.attention import paged_attention
from dspark.engine.layout import Span, causal_layout
from dspark.engine.linear import can_pack, make_linear, open_arena
from dspark.engine.pages import PagePool

# (requests, rows of each): one token, one block, blocks of some requests.
SIZES = ((1, 1), (1, 8), (4, 8), (8, 8))
# More weights than a cache holds, and few enough to hold in several forms.
_NUM_LAYERS = 8
_CONTEXT = 256
_REPEATS = 7
# What is so many times slower than the fastest is not asked again.
_HOPELESS = 3.0

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class ExactCost:
    """One step size.

    Attributes:
        exact_s: linear layers and attention of the engine.
        inexact_s: of the fastest inexact ones.
        inexact: which those were, of linear layers and attention.
    """

    num_rows: int
    exact_s: float
    inexact_s: float
    inexact: tuple[str, str]

    @property
    def speed(self) -> float:
        """Speed of exact mode, where the inexact one is 1."""
        return self.inexact_s / self.exact_s


class ExactSpeed:
    """The first layers of a Llama-like model and its head, in every form."""

    def __init__(self, model: Any, dtype: str, cache_dir: Path | None = None) -> None:
        """Take the weights of a stock model; the engine's form is of the dtype given."""
        layers = model.model.layers[:_NUM_LAYERS]
        config = model.config
        self._num_heads, self._num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = layers[0].self_attn.head_dim
        self._dtype, self._cache_dir = getattr(torch, dtype), cache_dir
        self._weights = [weight for layer in layers for weight in _weights_of(layer)]
        self._weights.append(model.lm_head.weight.detach())

    def measure(self) -> list[ExactCost]:
        """Every size, the least time of some passes in which all forms take turns."""
        return [self._cost(num_requests, rows) for num_requests, rows in SIZES]

    @torch.inference_mode()
    def _cost(self, num_requests: int, rows: int) -> ExactCost:
        linear = _fastest(self._linear_forms(num_requests * rows))
        attention = _fastest(self._attention_forms(num_requests, rows))
        others = [
            min((name for name in found if name != "exact"), key=lambda name: found[name])
            for found in (linear, attention)
        ]
        return ExactCost(
            num_rows=num_requests * rows,
            exact_s=linear["exact"] + attention["exact"],
            inexact_s=linear[others[0]] + attention[others[1]],
            inexact=(others[0], others[1]),
        )

    def _linear_forms(self, num_rows: int) -> dict[str, Work]:
        arena = open_arena(self._cache_dir)
        exact = [make_linear(weight.to(self._dtype), arena=arena) for weight in self._weights]
        forms: dict[str, Work] = {"exact": _over(exact, self._rows(num_rows, self._dtype))}
        for dtype in (torch.bfloat16, torch.float32):
            kind = str(dtype).removeprefix("torch.")
            weights = [weight.to(dtype) for weight in self._weights]
            inputs = self._rows(num_rows, dtype)
            forms[f"torch {kind}"] = _over([_torch_linear(weight) for weight in weights], inputs)
            if can_pack(weights[0]):
                packed = [_onednn_linear(weight, num_rows) for weight in weights]
                forms[f"oneDNN {kind}"] = _over(packed, inputs)
        return forms

    def _rows(self, num_rows: int, dtype: torch.dtype) -> list[Tensor]:
        return [torch.ones(num_rows, weight.shape[1], dtype=dtype) for weight in self._weights]

    def _attention_forms(self, num_requests: int, rows: int) -> dict[str, Work]:
        forms: dict[str, Work] = {"exact": self._own_attention(num_requests, rows)}
        for dtype in (torch.bfloat16, torch.float32):
            name = f"torch {str(dtype).removeprefix('torch.')}"
            forms[name] = self._stock_attention(num_requests, rows, dtype)
        return forms

    def _own_attention(self, num_requests: int, rows: int) -> Work:
        pool = PagePool(
            num_pages=num_requests * -(-(_CONTEXT + rows) // 16),
            num_layers=_NUM_LAYERS,
            num_kv_heads=self._num_kv_heads,
            head_dim=self._head_dim,
            dtype=self._dtype,
            cache_dir=self._cache_dir,
        )
        for pages in (*pool.keys, *pool.values):
            pages.fill_(0.1)
        per_request = pool.num_pages // num_requests
        spans = [Span(_CONTEXT, rows, pool.allocate(per_request)) for _ in range(num_requests)]
        _, layout = causal_layout(spans, pool.page_size)
        num_rows = num_requests * rows
        query = torch.ones(num_rows, self._num_heads, self._head_dim, dtype=self._dtype)
        key, value = torch.ones(2, num_rows, self._num_kv_heads, self._head_dim, dtype=self._dtype).unbind()

        def run() -> None:
            for layer in range(_NUM_LAYERS):
                paged_attention(pool, layer, query, key, value, layout, scale=self._head_dim**-0.5)

        return run

    def _stock_attention(self, num_requests: int, rows: int, dtype: torch.dtype) -> Work:
        """Heads of a group as rows of their key head, which is the fastest form on a CPU."""
        group = self._num_heads // self._num_kv_heads
        num_keys = _CONTEXT + rows
        query = torch.ones(num_requests, self._num_kv_heads, group * rows, self._head_dim, dtype=dtype)
        shape = (num_requests, self._num_kv_heads, num_keys, self._head_dim)
        key, value = torch.full(shape, 0.1, dtype=dtype), torch.full(shape, 0.1, dtype=dtype)
        is_seen = torch.ones(rows, num_keys, dtype=torch.bool).tril(_CONTEXT).repeat(group, 1)
        mask = None if rows == 1 else is_seen

        def run() -> None:
            for _ in range(_NUM_LAYERS):
                functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

        return run


def _weights_of(layer: Any) -> list[Tensor]:
    """The matmuls of a layer; those over the same input as one."""
    attention, mlp = layer.self_attn, layer.mlp
    return [
        torch.cat([one.weight.detach() for one in (attention.q_proj, attention.k_proj, attention.v_proj)]),
        attention.o_proj.weight.detach(),
        torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()]),
        mlp.down_proj.weight.detach(),
    ]


def _over(layers: Sequence[Callable[[Tensor], Tensor]], inputs: Sequence[Tensor]) -> Work:
    def run() -> None:
        for layer, rows in zip(layers, inputs, strict=True):
            layer(rows)

    return run


def _torch_linear(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda rows: functional.linear(rows, weight)


def _onednn_linear(weight: Tensor, num_rows: int) -> Callable[[Tensor], Tensor]:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), num_rows)
    matmul = torch.ops.mkldnn._linear_pointwise.default
    return lambda rows: matmul(rows, packed, None, "none", [], "")


def _fastest(forms: Mapping[str, Work]) -> dict[str, float]:
    """The least seconds of each form."""
    least: dict[str, float] = {}
    for repeat in range(_REPEATS + 1):
        for name, work in forms.items():
            if repeat > 1 and least[name] > _HOPELESS * min(least.values()):
                continue
            started = time.perf_counter()
            work()
            seconds = time.perf_counter() - started
            # The first one prepares what the others reuse.
            least[name] = seconds if repeat <= 1 else min(seconds, least[name])
    return least
