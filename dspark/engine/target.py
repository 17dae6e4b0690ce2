"""The target engine: one ragged pass per step over all requests; drafts accepted, tokens committed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.cache import default_cache_dir
from dspark.decoding.acceptance import Verdict, accept_batch
from dspark.decoding.sampling import argmax_with_margin
from dspark.decoding.types import (
    FeatureBatch,
    OpenRequest,
    StepResult,
    VerifierInfo,
    VerifyOutcome,
    VerifyStatus,
)
from dspark.engine.attention import RaggedStep
from dspark.engine.batch import Batch, Segment, StepItem, plan_batch
from dspark.engine.description import describe, measured
from dspark.engine.loading import LoadedTarget, load_target
from dspark.engine.measurements import Measurements
from dspark.engine.pages import PAGE_SIZE, PagePool
from dspark.engine.precision import choose_dtype
from dspark.engine.requests import Limits, RequestTable
from dspark.engine.taps import feature_words
from dspark.errors import ConfigurationError, EngineError
from dspark.models.target import check_directory


class TargetEngine:
    """Holds the target, its KV pages and its requests. Synchronous; one thread uses it.

    Attributes:
        info: what the scheduler needs to know about it.
        dtype_reason: why the target runs in its dtype.
    """

    def __init__(
        self,
        target: LoadedTarget,
        pool: PagePool,
        *,
        feeds_drafter: bool = False,
        info: VerifierInfo | None = None,
        dtype_reason: str = "asked for",
    ) -> None:
        self.dtype_reason = dtype_reason
        self._target = target
        self._pool = pool
        self._feeds_drafter = feeds_drafter
        self._find_best = pool.kernels.best_two if pool.kernels is not None else argmax_with_margin
        self.info = info or describe(target, pool)
        self._limits = Limits(self.info.max_context_len, self.info.vocab_size)
        self._table = RequestTable(pool, self._limits)

    @property
    def num_free_pages(self) -> int:
        """Pages not held by any request."""
        return self._pool.num_free

    def open(self, request: OpenRequest) -> None:
        """Hold a request; see `Verifier.open`.

        Raises:
            InvalidRequestError: no tokens, a token the target does not know, or none that may be chosen.
            ContextTooLongError: more tokens than the context or all pages hold.
            StaleEpochError: a higher epoch is open.
        """
        self._table.open(request)

    def close(self, request_ids: Iterable[str]) -> None:
        """Free the pages of these requests. Unknown ones are ignored."""
        self._table.close(request_ids)

    def close_all(self) -> None:
        """Free the pages of all requests."""
        self._table.close_all()

    def step(self, items: Sequence[StepItem]) -> tuple[StepResult, list[FeatureBatch]]:
        """One ragged forward pass over all items.

        Returns:
            One outcome per item, and token ids and features of the positions that were computed and are
            committed: those of a prefill chunk, or of the anchor and the accepted drafts.

        Raises:
            InvalidRequestError, ContextTooLongError: an item is wrong; nothing was computed.
            EngineError: the forward failed; nothing was committed.
        """
        started = time.perf_counter_ns()
        batch = plan_batch(items, self._table, self._limits)
        outcomes = dict(batch.refused)
        features: list[FeatureBatch] = []
        if batch.segments:
            verdicts, taps = self._forward(batch)
            words = feature_words(taps) if self._feeds_drafter else None
            judged = iter(verdicts)
            for segment in batch.segments:
                verdict = next(judged) if segment.num_logits else None
                outcomes[segment.item] = _commit(segment, verdict)
                if words is not None:
                    features.append(_features(segment, verdict, words))
        result = StepResult(
            outcomes=tuple(outcomes[index] for index in range(len(items))),
            batch_tokens=batch.num_rows,
            verify_ns=time.perf_counter_ns() - started,
            num_free_pages=self._pool.num_free,
        )
        return result, features

    @torch.inference_mode()
    def _forward(self, batch: Batch) -> tuple[list[Verdict], Tensor]:
        try:
            token_ids, positions, layout = batch.index_tensors(self._pool.page_size)
            hidden, taps = self._target.forward.hidden(token_ids, positions, RaggedStep(self._pool, layout))
            rows = batch.logit_rows()
            if not rows:
                return [], taps
            if len(rows) != hidden.shape[0]:
                hidden = hidden[torch.tensor(rows, device=hidden.device)]
            logits = self._target.forward.logits(hidden)
            return accept_batch(logits, batch.judgements(), find_best=self._find_best), taps
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            raise EngineError(f"the target failed on a step of {batch.num_rows} tokens: {error}") from error

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        dtype: str = "auto",
        target_layer_ids: Sequence[int] | None = None,
        pool_tokens: int = 65536,
        cache_dir: Path | None = None,
        measure: bool = True,
    ) -> TargetEngine:
        """Load a target directory, check it and measure it.

        Args:
            path: as `prepare_target` returns it.
            dtype: "auto", "bfloat16", "float32" or "float64".
            target_layer_ids: decoder layers whose outputs are handed to the drafter, with the token ids.
                Empty: it wants the token ids alone. None: there is no drafter, nothing is handed out.
            pool_tokens: tokens the KV pages of all requests hold together.
            cache_dir: where built kernels and measurements are kept.
            measure: whether to check exactness and measure steps; off, `info` says nothing of them.

        Raises:
            ConfigurationError: a setting or the directory is wrong.
            ModelMismatchError: the model is of no supported kind, or has no such layers.
        """
        cache = cache_dir or default_cache_dir()
        check_directory(path)
        measurements = Measurements(path, cache)
        choice = choose_dtype(dtype, path, measurements=measurements, cache_dir=cache)
        target = load_target(
            path, dtype=choice.dtype, target_layer_ids=target_layer_ids or (), cache_dir=cache
        )
        pool = make_pool(target, pool_tokens, cache)
        info = describe(target, pool)
        if measure:
            info = measured(info, target, pool, measurements)
        return cls(
            target,
            pool,
            feeds_drafter=target_layer_ids is not None,
            info=info,
            dtype_reason=choice.reason,
        )


def make_pool(target: LoadedTarget, pool_tokens: int, cache_dir: Path) -> PagePool:
    """KV pages for `pool_tokens` tokens of this target."""
    if pool_tokens < PAGE_SIZE:
        raise ConfigurationError(
            f"pool_tokens is {pool_tokens}; the KV pool needs at least {PAGE_SIZE} tokens"
        )
    config = target.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return PagePool(
        num_pages=pool_tokens // PAGE_SIZE,
        num_layers=config.num_hidden_layers,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        dtype=target.dtype,
        cache_dir=cache_dir,
        use_kernels=target.forward.use_kernels,
    )


def _commit(segment: Segment, verdict: Verdict | None) -> VerifyOutcome:
    """Append what was accepted; rejected keys and values stay in the pages until they are overwritten."""
    held = segment.held
    base = held.committed_len
    if verdict is None:
        held.num_computed = segment.start + segment.num_rows
        return VerifyOutcome(held.request_id, held.epoch, base, VerifyStatus.PREFILLING)
    held.commit(verdict.token_ids)
    held.num_computed = held.committed_len - 1
    return VerifyOutcome(
        request_id=held.request_id,
        epoch=held.epoch,
        base_committed_len=base,
        status=VerifyStatus.COMMITTED,
        num_accepted=verdict.num_accepted,
        token_ids=verdict.token_ids,
        logprobs=verdict.logprobs,
        num_near_ties=verdict.num_near_ties,
    )


def _features(segment: Segment, verdict: Verdict | None, words: npt.NDArray[np.generic]) -> FeatureBatch:
    is_verify = segment.drafts is not None and verdict is not None
    num_rows = verdict.num_accepted + 1 if is_verify and verdict is not None else segment.num_rows
    rows = words[segment.first_row : segment.first_row + num_rows]
    token_ids = np.array(segment.token_ids[:num_rows], dtype=np.int32)
    return FeatureBatch(segment.held.request_id, segment.held.epoch, segment.start, token_ids, rows)
