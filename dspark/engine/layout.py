"""Index tensors of causal rows: where each token of a step stands and what it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspark.engine.attention import RaggedLayout


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive positions of one request.

    Attributes:
        start: absolute position of the first.
        num_rows: how many.
        pages: of the request, from its first position on.
    """

    start: int
    num_rows: int
    pages: Sequence[int]


def causal_layout(spans: Sequence[Span], page_size: int) -> tuple[Tensor, RaggedLayout]:
    """Positions [T] int64 of all rows and their layout: each row sees its request up to itself."""
    counts = np.array([span.num_rows for span in spans])
    firsts = np.cumsum(counts) - counts
    starts = np.array([span.start for span in spans])
    row_request = np.repeat(np.arange(len(spans), dtype=np.int32), counts)
    positions = np.arange(counts.sum(), dtype=np.int64) + np.repeat(starts - firsts, counts)
    page_table = np.zeros((len(spans), max(len(span.pages) for span in spans)), dtype=np.int32)
    for row, span in enumerate(spans):
        page_table[row, : len(span.pages)] = span.pages
    pages = page_table[row_request, positions // page_size].astype(np.int64)
    layout = RaggedLayout(
        slots=torch.from_numpy(pages * page_size + positions % page_size),
        row_request=torch.from_numpy(row_request),
        page_table=torch.from_numpy(page_table),
        kv_lens=torch.from_numpy((positions + 1).astype(np.int32)),
    )
    return torch.from_numpy(positions), layout
