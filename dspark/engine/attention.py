"""Ragged paged attention: one call per layer attends the rows of all requests.

Known to transformers' attention interface as `dspark_ragged`, so that stock model classes use it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dspark.engine.kernels.native import HeadTransform
from dspark.engine.pages import PagePool

ATTENTION_NAME = "dspark_ragged"


@dataclass(frozen=True, slots=True)
class RaggedLayout:
    """Where the rows of one step stand. The rows of one request are consecutive.

    Attributes:
        slots: [T] int64, `page * page_size + offset` where this row's key and value go.
        row_request: [T] int32, row of the page table.
        page_table: [R, P] int32, pages of each request in order; padding is never read.
        kv_lens: [T] int32, keys this row sees, counted from the request's first page. They may stand after
            the row itself: a draft block is bidirectional.
    """

    slots: Tensor
    row_request: Tensor
    page_table: Tensor
    kv_lens: Tensor

    def __post_init__(self) -> None:
        num_rows = self.slots.shape[0]
        assert self.row_request.shape == self.kv_lens.shape == (num_rows,), "one entry per row"
        assert self.page_table.ndim == 2, f"page_table is [R, P], not {tuple(self.page_table.shape)}"
        assert self.page_table.is_contiguous(), "page_table must be contiguous"
        types = (self.slots.dtype, self.row_request.dtype, self.page_table.dtype, self.kv_lens.dtype)
        assert types == (torch.int64, torch.int32, torch.int32, torch.int32), f"wrong index types {types}"


@dataclass(frozen=True, slots=True)
class RaggedStep:
    """What attention needs to know about the current step: handed to the model's forward as `ragged`."""

    pool: PagePool
    layout: RaggedLayout


def paged_attention(
    pool: PagePool,
    layer: int,
    query: Tensor,  # [T, Hq, D]
    key: Tensor,  # [T, Hkv, D]
    value: Tensor,  # [T, Hkv, D]
    layout: RaggedLayout,
    *,
    scale: float,
    transform: HeadTransform | None = None,
) -> Tensor:
    """Write this step's keys and values into the pool, then attend; returns [T, Hq, D].

    With the kernels, a row's result depends on nothing but its own query and keys, bit for bit.

    Args:
        pool: pages of all layers.
        layer: which layer's pages.
        query: rows of all requests.
        key: of the same rows.
        value: of the same rows.
        layout: where the rows stand.
        scale: of the scores.
        transform: norm and rotation still to be applied to query and key; kernels only.
    """
    num_rows = layout.slots.shape[0]
    assert (query.shape[0], query.shape[2]) == (num_rows, pool.head_dim), f"query {query.shape}"
    assert key.shape == value.shape == (num_rows, pool.num_kv_heads, pool.head_dim), f"key {key.shape}"
    assert query.dtype == key.dtype == value.dtype == pool.dtype, f"{query.dtype} over {pool.dtype} pages"
    if pool.kernels is None:
        assert transform is None, "only the kernels transform heads"
        write_pages(pool, layer, key, value, layout)
        return attend_pages(pool, layer, query, layout, scale=scale)
    return pool.kernels.attend(
        (_packed_heads(query), _packed_heads(key), _packed_heads(value)),
        (pool.keys[layer], pool.values[layer]),
        (layout.slots, layout.row_request, layout.page_table, layout.kv_lens),
        scale=scale,
        transform=transform,
    )


def write_pages(pool: PagePool, layer: int, key: Tensor, value: Tensor, layout: RaggedLayout) -> None:
    """Put keys and values [T, Hkv, D] into their slots."""
    if pool.kernels is not None:
        pages = (pool.keys[layer], pool.values[layer])
        pool.kernels.write_pages(_packed_heads(key), _packed_heads(value), pages, layout.slots)
        return
    page, offset = layout.slots // pool.page_size, layout.slots % pool.page_size
    pool.keys[layer][page, :, :, offset] = key
    pool.values[layer][page, :, offset] = value


def _packed_heads(heads: Tensor) -> Tensor:
    """Heads [T, N, D] that lie behind one another within a row, as the kernels read them."""
    is_packed = heads.stride(2) == 1 and heads.stride(1) == heads.shape[2]
    return heads if is_packed else heads.contiguous()


def attend_pages(pool: PagePool, layer: int, query: Tensor, layout: RaggedLayout, *, scale: float) -> Tensor:
    """Attend query rows [T, Hq, D] with torch, request by request, in float32 or better."""
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    counts = torch.unique_consecutive(layout.row_request, return_counts=True)[1].tolist()
    first = 0
    for count in counts:
        rows = slice(first, first + count)
        kv_lens = layout.kv_lens[rows]
        num_pages = -(-int(kv_lens.max()) // pool.page_size)
        pages = layout.page_table[int(layout.row_request[first]), :num_pages].long()
        keys = pool.keys[layer][pages].permute(1, 2, 0, 3).flatten(2)  # [Hkv, D, K]
        values = pool.values[layer][pages].permute(1, 0, 2, 3).flatten(1, 2)  # [Hkv, K, D]
        out[rows] = _attend_request(query[rows], keys, values, kv_lens, scale=scale)
        first += count
    return out


def _attend_request(query: Tensor, keys: Tensor, values: Tensor, kv_lens: Tensor, *, scale: float) -> Tensor:
    num_rows, num_heads, head_dim = query.shape
    compute = torch.float64 if query.dtype == torch.float64 else torch.float32
    num_keys = keys.shape[2]
    is_seen = torch.arange(num_keys, device=query.device) < kv_lens[:, None]  # [n, K]
    # What lies beyond the last key may be anything, NaN included, and a weight of 0 would not stop it.
    values = values.to(compute).masked_fill(~is_seen.any(0)[:, None], 0.0)
    grouped = query.to(compute).view(num_rows, keys.shape[0], -1, head_dim).permute(1, 2, 0, 3)
    scores = (grouped @ keys.to(compute)[:, None]) * scale  # [Hkv, g, n, K]
    weights = scores.masked_fill(~is_seen, float("-inf")).softmax(-1)
    mixed = weights @ values[:, None]  # [Hkv, g, n, D]
    return mixed.permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_dim).to(query.dtype)


def ragged_attention_forward(
    module: nn.Module,
    query: Tensor,  # [1, Hq, T, D]
    key: Tensor,  # [1, Hkv, T, D]
    value: Tensor,  # [1, Hkv, T, D]
    attention_mask: Tensor | None,
    scaling: float,
    *,
    ragged: RaggedStep,
    **_: object,
) -> tuple[Tensor, None]:
    """The form transformers calls: all requests flattened into one row."""
    out = paged_attention(
        ragged.pool,
        module.layer_idx,  # type: ignore[arg-type]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        ragged.layout,
        scale=scaling,
    )
    return out[None], None
