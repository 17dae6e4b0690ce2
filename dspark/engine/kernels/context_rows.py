"""Where rows stand that follow the contexts of requests, as the kernels read it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from dspark.engine.kernels.arguments import c_int32, c_int64, c_pointer

_FIRST_REQUESTS = 16
_FIRST_PAGES = 1024


class FollowingRows(NamedTuple):
    """Rows of one request.

    Attributes:
        pages: of its context, rows included.
        start: absolute position of the first token of the context.
        length: tokens before the rows.
        num_rows: how many.
    """

    pages: Sequence[int]
    start: int
    length: int
    num_rows: int


class ContextRowsArgs(ctypes.Structure):
    """Of rows of several requests."""

    _fields_ = (
        *((name, c_pointer) for name in ("page_table", "starts", "lengths", "first_rows", "cos", "sin")),
        *((name, c_int64) for name in ("num_requests", "table_width")),
        ("half", c_int32),
    )


class RowTable:
    """Writes rows where a kernel finds them, each time over those before: for one thread.

    Attributes:
        args: what points there.
    """

    def __init__(self, rotation: tuple[Tensor, Tensor]) -> None:
        """Hold no rows yet; `rotation` are the cosines and sines [P, D / 2] of every position."""
        cos, sin = self._rotation = rotation
        assert cos.is_contiguous(), cos.stride()
        assert sin.is_contiguous(), sin.stride()
        self.args = ContextRowsArgs(cos=cos.data_ptr(), sin=sin.data_ptr(), half=cos.shape[1])
        self._integers = np.zeros((3, 0), dtype=np.int64)
        self._pages = np.zeros(0, dtype=np.int32)

    def fill(self, rows: Sequence[FollowingRows]) -> int:
        """Take the rows of these requests; returns how many there are."""
        width = max(len(one.pages) for one in rows)
        self._reserve(len(rows), len(rows) * width)
        starts, lengths, first_rows = self._integers
        num_rows = 0
        for number, one in enumerate(rows):
            assert one.length + one.num_rows <= self._rotation[0].shape[0] - one.start, one
            starts[number], lengths[number], first_rows[number] = one.start, one.length, num_rows
            self._pages[number * width : number * width + len(one.pages)] = one.pages
            num_rows += one.num_rows
        first_rows[len(rows)] = num_rows
        self.args.num_requests, self.args.table_width = len(rows), width
        return num_rows

    def _reserve(self, num_requests: int, num_pages: int) -> None:
        if num_requests >= self._integers.shape[1]:
            self._integers = np.zeros((3, max(_FIRST_REQUESTS, 2 * num_requests)), dtype=np.int64)
            self.args.starts, self.args.lengths, self.args.first_rows = (
                row.ctypes.data for row in self._integers
            )
        if num_pages > len(self._pages):
            self._pages = np.zeros(max(_FIRST_PAGES, 2 * num_pages), dtype=np.int32)
            self.args.page_table = self._pages.ctypes.data
