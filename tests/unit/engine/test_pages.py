from __future__ import annotations

import pytest
import torch

from dspark.engine.pages import OutOfPagesError, PagePool


def make_pool(num_pages: int = 4) -> PagePool:
    return PagePool(num_pages=num_pages, num_layers=1, num_kv_heads=1, head_dim=16, dtype=torch.float64)


def test_pages_are_handed_out_once_until_they_are_freed() -> None:
    pool = make_pool()
    first, second = pool.allocate(2), pool.allocate(2)
    assert sorted(first + second) == [0, 1, 2, 3]
    pool.free(first)
    assert sorted(pool.allocate(2)) == sorted(first)


def test_asking_for_too_many_pages_takes_none() -> None:
    pool = make_pool()
    pool.allocate(1)
    with pytest.raises(OutOfPagesError, match="4 KV pages needed, 3 of 4 free"):
        pool.allocate(4)
    assert pool.num_free == 3


def test_freeing_more_pages_than_exist_is_a_bug() -> None:
    pool = make_pool()
    pages = pool.allocate(1)
    pool.free(pages)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(pages)
