"""The engine's own forward outside of the engine: whole texts at once, in any cut and in any company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dspark.cache import default_cache_dir
from dspark.engine.attention import RaggedStep
from dspark.engine.layout import Span, causal_layout
from dspark.engine.loading import load_target
from dspark.engine.target import make_pool


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one text in a step.

    Attributes:
        token_ids: the rows.
        start: position of the first; what stands before it was computed earlier.
        pages: of the text.
    """

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]


class OwnForward:
    """Weights, kernels and KV pages as the engine has them, loaded once more."""

    def __init__(self, path: Path, dtype: str, *, pool_tokens: int, cache_dir: Path | None = None) -> None:
        """Load the target.

        Args:
            path: a prepared target directory.
            dtype: name of the torch type of weights and computation.
            pool_tokens: tokens of all texts that hold pages at once.
            cache_dir: where built kernels are kept.
        """
        cache = cache_dir or default_cache_dir()
        self.target = load_target(path, dtype=getattr(torch, dtype), cache_dir=cache)
        self.pool = make_pool(self.target, pool_tokens, cache)

    def pages(self, num_tokens: int) -> list[int]:
        """Pages for a text; give them back with `pool.free`."""
        return self.pool.allocate(-(-num_tokens // self.pool.page_size))

    @torch.inference_mode()
    def step(self, parts: Sequence[Part]) -> Tensor:
        """Logits of all rows of all parts, [T, V]."""
        spans = [Span(part.start, len(part.token_ids), part.pages) for part in parts]
        positions, layout = causal_layout(spans, self.pool.page_size)
        token_ids = torch.tensor([token_id for part in parts for token_id in part.token_ids])
        hidden, _ = self.target.forward.hidden(token_ids, positions, RaggedStep(self.pool, layout))
        return self.target.forward.logits(hidden)

    def score(self, token_ids: Sequence[int], prompt_len: int) -> Tensor:
        """Logits that chose each token after the prompt, by teacher forcing, [T, V] float64."""
        pages = self.pages(len(token_ids))
        try:
            return self.step([Part(token_ids[:-1], 0, pages)])[prompt_len - 1 :].double()
        finally:
            self.pool.free(pages)
