"""The native search for the two greatest logits of a row."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dspark.decoding.sampling import argmax_with_margin
from dspark.engine.kernels.native import load_kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 5, 16, 33, 1000, 40000])
def test_it_finds_what_torch_finds_also_among_equals(cache_dir: Path, dtype: torch.dtype, width: int) -> None:
    kernels = load_kernels(cache_dir)
    if kernels is None:
        pytest.skip("no compiler")
    generator = torch.Generator().manual_seed(width)
    # few different values, so that the greatest comes up more than once
    rows = torch.randint(-9, 9, (7, width), generator=generator).to(dtype)
    places, best, second = kernels.best_two(rows)
    ordered = rows.float().sort(descending=True, stable=True)
    assert torch.equal(best, ordered.values[:, 0])
    assert torch.equal(places, ordered.indices[:, 0])
    if width > 1:
        assert torch.equal(second, ordered.values[:, 1])
        assert torch.equal(places, argmax_with_margin(rows)[0])


def test_rows_of_minus_infinity_and_ends_beyond_the_last_vector_are_understood(cache_dir: Path) -> None:
    kernels = load_kernels(cache_dir)
    if kernels is None:
        pytest.skip("no compiler")
    rows = torch.full((2, 37), -torch.inf)
    rows[1, 36] = -3.0
    places, best, second = kernels.best_two(rows)
    assert places.tolist() == [0, 36]
    assert best.tolist() == [-torch.inf, -3.0]
    assert second.tolist() == [-torch.inf, -torch.inf]
