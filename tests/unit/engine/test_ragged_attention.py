"""The attention kernels against the torch path, and against themselves in other company."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dspark.engine.attention import RaggedLayout, attend_pages, paged_attention, write_pages
from dspark.engine.layout import Span, causal_layout
from dspark.engine.pages import PagePool

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@dataclass
class Rig:
    """The same context in a pool with kernels and in one without."""

    fast: PagePool
    slow: PagePool
    num_heads: int

    def attend(self, rows: tuple[Tensor, Tensor, Tensor], layout: RaggedLayout, pool: PagePool) -> Tensor:
        return paged_attention(pool, 0, *rows, layout, scale=self.fast.head_dim**-0.5)

    def rows(self, num_rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        pool = self.fast
        counts = (self.num_heads, pool.num_kv_heads, pool.num_kv_heads)
        query, key, value = (
            torch.randn(num_rows, count, pool.head_dim, generator=generator).to(pool.dtype)
            for count in counts
        )
        return query, key, value


def make_rig(
    cache_dir: Path, dtype: torch.dtype, *, head_dim: int = 64, heads: tuple[int, int] = (6, 2)
) -> Rig:
    pools = [
        PagePool(
            num_pages=64,
            num_layers=1,
            num_kv_heads=heads[1],
            head_dim=head_dim,
            dtype=dtype,
            cache_dir=cache_dir,
            use_kernels=use_kernels,
        )
        for use_kernels in (True, False)
    ]
    if pools[0].kernels is None:
        pytest.skip("no compiler here: there are no kernels to compare")
    # Whatever was in a page before must not matter, NaN included.
    for pool in pools:
        pool.keys[0].fill_(float("nan"))
        pool.values[0].fill_(float("nan"))
    return Rig(*pools, heads[0])


def fill_context(rig: Rig, spans: list[Span]) -> None:
    """Random keys and values for all positions before the spans."""
    before = [Span(0, span.start, span.pages) for span in spans if span.start]
    if before:
        _, layout = causal_layout(before, 16)
        _, key, value = rig.rows(layout.slots.shape[0], seed=99)
        for pool in (rig.fast, rig.slow):
            write_pages(pool, 0, key, value, layout)


# Requests of different lengths, page borders, a first token, a long chunk, pages in no order.
SPANS = [
    Span(0, 1, [9]),
    Span(15, 2, [4, 2]),
    Span(31, 1, [7, 5]),
    Span(40, 25, [20, 11, 13, 12, 30]),
    Span(100, 8, [40, 41, 42, 43, 50, 51, 52]),
]


@DTYPES
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (16, 1), (20, 1)], ids=str)
def test_the_kernels_compute_what_torch_computes(
    cache_dir: Path, dtype: torch.dtype, head_dim: int, heads: tuple[int, int]
) -> None:
    rig = make_rig(cache_dir, dtype, head_dim=head_dim, heads=heads)
    fill_context(rig, SPANS)
    _, layout = causal_layout(SPANS, 16)
    rows = rig.rows(layout.slots.shape[0])
    torch.testing.assert_close(
        rig.attend(rows, layout, rig.fast),
        rig.attend(rows, layout, rig.slow),
        atol=TOLERANCE[dtype],
        rtol=TOLERANCE[dtype],
    )


def test_the_torch_path_computes_plain_softmax_attention(cache_dir: Path) -> None:
    rig = make_rig(cache_dir, torch.float32)
    span = Span(0, 20, [3, 1])
    _, layout = causal_layout([span], 16)
    query, key, value = rig.rows(20)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), is_causal=True, enable_gqa=True
    ).transpose(0, 1)
    out = rig.attend((query, key, value), layout, rig.slow)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-6)


@DTYPES
@pytest.mark.parametrize("head_dim", [64, 80])
def test_a_row_does_not_depend_on_the_rows_beside_it(
    cache_dir: Path, dtype: torch.dtype, head_dim: int
) -> None:
    rig = make_rig(cache_dir, dtype, head_dim=head_dim)
    fill_context(rig, SPANS)
    _, layout = causal_layout(SPANS, 16)
    rows = rig.rows(layout.slots.shape[0])
    together = rig.attend(rows, layout, rig.fast)
    first = 0
    for span in SPANS:
        for offset in range(span.num_rows):
            _, alone = causal_layout([Span(span.start + offset, 1, span.pages)], 16)
            row = tuple(tensor[first + offset : first + offset + 1] for tensor in rows)
            assert torch.equal(rig.attend(row, alone, rig.fast)[0], together[first + offset])
        first += span.num_rows


@DTYPES
def test_a_row_does_not_depend_on_the_number_of_threads(cache_dir: Path, dtype: torch.dtype) -> None:
    rig = make_rig(cache_dir, dtype)
    fill_context(rig, SPANS)
    _, layout = causal_layout(SPANS, 16)
    rows = rig.rows(layout.slots.shape[0])
    num_threads = torch.get_num_threads()
    outs = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            outs.append(rig.attend(rows, layout, rig.fast))
    finally:
        torch.set_num_threads(num_threads)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


@DTYPES
def test_threads_that_write_neighbouring_rows_lose_nothing(cache_dir: Path, dtype: torch.dtype) -> None:
    # From an odd position on, pieces of 16 rows begin with a number that shares a word with the one before.
    rig = make_rig(cache_dir, dtype)
    _, layout = causal_layout([Span(1, 200, list(range(13)))], 16)
    _, key, value = rig.rows(layout.slots.shape[0])
    num_threads, written = torch.get_num_threads(), []
    try:
        for count in (1, *[max(2, num_threads)] * 400):
            torch.set_num_threads(count)
            rig.fast.keys[0].zero_()
            rig.fast.values[0].zero_()
            write_pages(rig.fast, 0, key, value, layout)
            written.append((rig.fast.keys[0].clone(), rig.fast.values[0].clone()))
    finally:
        torch.set_num_threads(num_threads)
    alone = written[0]
    assert all(torch.equal(pages, own) for both in written for pages, own in zip(both, alone, strict=True))


@DTYPES
def test_rows_may_see_keys_behind_them(cache_dir: Path, dtype: torch.dtype) -> None:
    rig = make_rig(cache_dir, dtype)
    span = Span(0, 9, [8])
    _, causal = causal_layout([span], 16)
    block = RaggedLayout(
        causal.slots, causal.row_request, causal.page_table, torch.full((9,), 9, dtype=torch.int32)
    )
    rows = rig.rows(9)
    out = rig.attend(rows, block, rig.fast)
    expected = rig.attend(rows, block, rig.slow)
    torch.testing.assert_close(out, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert not torch.equal(out[0], rig.attend(rows, causal, rig.fast)[0])


@DTYPES
def test_query_heads_may_lie_in_one_row_with_keys_and_values(cache_dir: Path, dtype: torch.dtype) -> None:
    rig = make_rig(cache_dir, dtype)
    _, layout = causal_layout([Span(0, 5, [1])], 16)
    rows = rig.rows(5)
    fused = torch.cat(rows, dim=1).split((6, 2, 2), dim=1)
    assert torch.equal(rig.attend(fused, layout, rig.fast), rig.attend(rows, layout, rig.fast))


def test_float64_pages_are_attended_by_torch(cache_dir: Path) -> None:
    pool = PagePool(num_pages=4, num_layers=1, num_kv_heads=2, head_dim=16, dtype=torch.float64)
    assert pool.kernels is None
    _, layout = causal_layout([Span(0, 3, [2])], 16)
    rows = torch.randn(3, 2, 16, dtype=torch.float64)
    write_pages(pool, 0, rows, rows, layout)
    out = attend_pages(pool, 0, rows, layout, scale=0.25)
    torch.testing.assert_close(out[0], rows[0], atol=0.0, rtol=0.0)


def test_a_layout_of_the_wrong_index_type_is_refused() -> None:
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(AssertionError, match="wrong index types"):
        RaggedLayout(one, one, torch.zeros(1, 1, dtype=torch.int32), one)
