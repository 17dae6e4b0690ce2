"""Exact mode: a row's logits are the same, bit for bit, however its text was cut and whoever is beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_targets import Bench, some_tokens

from dspark.engine.exactness import check_exactness

TEXT = some_tokens(70)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def whole(request: pytest.FixtureRequest, tiny_llama: Path, cache_dir: Path) -> tuple[Bench, torch.Tensor]:
    """A target, and the logits of the text computed in one pass."""
    bench = Bench(tiny_llama, request.param, cache_dir)
    if not check_exactness(bench.target, bench.pool).is_exact:
        pytest.skip("exact mode needs the kernels")
    pages = bench.pages(len(TEXT))
    logits, _ = bench.run((TEXT, 0, pages))
    bench.pool.free(pages)
    return bench, logits


@given(
    cuts=st.sets(st.integers(1, len(TEXT) - 1), max_size=8),
    # Of each chunk: lengths of the texts before and behind it in its step.
    company=st.lists(st.tuples(*[st.lists(st.integers(1, 40), max_size=4)] * 2), min_size=9, max_size=9),
)
@settings(max_examples=20, deadline=None)
def test_every_cut_and_company_gives_the_logits_of_the_whole(
    whole: tuple[Bench, torch.Tensor], cuts: set[int], company: list[tuple[list[int], list[int]]]
) -> None:
    bench, expected = whole
    edges = [0, *sorted(cuts), len(TEXT)]
    held = [bench.pages(len(TEXT))]
    for (before, behind), start, end in zip(company, edges, edges[1:], strict=False):
        others = [some_tokens(length, seed=length) for length in (*before, *behind)]
        first_page = len(held)
        held += [bench.pages(len(other)) for other in others]
        parts = [(other, 0, pages) for other, pages in zip(others, held[first_page:], strict=True)]
        parts.insert(len(before), (TEXT[start:end], start, held[0]))
        logits, _ = bench.run(*parts)
        found = logits[sum(before) : sum(before) + end - start]
        assert torch.equal(found, expected[start:end])
        for pages in held[first_page:]:
            bench.pool.free(pages)
        del held[first_page:]
    bench.pool.free(held[0])
