"""The KV pages all requests share. Knows tensors and free pages, not requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from dspark.engine.kernels.native import NativeKernels, load_kernels

PAGE_SIZE = 16


class OutOfPagesError(Exception):
    """The pool has fewer free pages than asked for; nothing was allocated."""


class PagePool:
    """Pages of keys and values for every layer, handed out and taken back in any order.

    Keys are stored so that the scores of one page's keys are one vector, values so that an output row is.

    Attributes:
        keys: one [num_pages, Hkv, D, page_size] tensor per layer.
        values: one [num_pages, Hkv, page_size, D] tensor per layer.
        kernels: what computes attention over these pages; None: torch does.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        page_size: int = PAGE_SIZE,
        device: torch.device | None = None,
        cache_dir: Path | None = None,
        use_kernels: bool = True,
    ) -> None:
        assert min(num_pages, num_layers, num_kv_heads, head_dim, page_size) > 0, "sizes must be positive"
        self.num_pages = num_pages
        self.page_size = page_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        key_shape = (num_pages, num_kv_heads, head_dim, page_size)
        value_shape = (num_pages, num_kv_heads, page_size, head_dim)
        # Not cleared: a page is read only up to the keys written to it, and untouched memory costs nothing.
        self.keys = [torch.empty(key_shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.empty(value_shape, dtype=dtype, device=device) for _ in range(num_layers)]
        can_use = NativeKernels.supports(
            dtype=dtype, device=self.keys[0].device, head_dim=head_dim, page_size=page_size
        )
        self.kernels = load_kernels(cache_dir) if use_kernels and can_use else None
        if self.kernels is not None:
            for tensor in (*self.keys, *self.values):
                self.kernels.advise_huge(tensor)
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Pages that can be allocated now."""
        return len(self._free)

    def allocate(self, n: int) -> list[int]:
        """Take `n` pages.

        Raises:
            OutOfPagesError: fewer than `n` are free; none was taken.
        """
        if n > len(self._free):
            raise OutOfPagesError(f"{n} KV pages needed, {len(self._free)} of {self.num_pages} free")
        return [self._free.pop() for _ in range(n)]

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back."""
        assert len(self._free) + len(pages) <= self.num_pages, f"{pages} freed twice"
        self._free.extend(pages)
