"""Target features on disk: computed once, read many times.

A cache directory holds, for all samples one after another:
    tokens.bin     int32 [N]            token ids
    features.bin   bfloat16 [N, L*H]    outputs of the tapped layers (raw residual stream)
    last.bin       bfloat16 [N, H]      final hidden states after the target's last norm
    log_norm.bin   float32 [N]          log-normaliser of the target's full-vocabulary logits
    index.npy      int64 [samples, 3]   offset, length, prompt length
    manifest.json  shapes, layer ids, target; there only when the cache is finished
    journal.jsonl  what has been written so far, with checksums (see feature_files.py)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.engine.attention import RaggedStep
from dspark.engine.forward import TargetForward
from dspark.engine.layout import Span, causal_layout
from dspark.engine.loading import LoadedTarget
from dspark.engine.pages import PAGE_SIZE
from dspark.engine.target import make_pool
from dspark.errors import ModelMismatchError
from dspark.training.feature_files import JOURNAL, GrowingFiles, check_files
from dspark.training.responses import Sample

# Features [T, L*H], last hidden states [T, H] and log-normalisers [T] of T tokens.
Rows = tuple[Tensor, Tensor, Tensor]
# Adds one sample with its rows to a cache.
Add = Callable[[Sample, Rows], None]


class FeatureExtractor:
    """Runs whole samples through the target's own ragged forward: no padding, one call per layer."""

    def __init__(self, target: LoadedTarget, cache_dir: Path, tokens_per_batch: int) -> None:
        self._target = target
        # room for the samples of one batch, each rounded up to whole pages
        self._pool = make_pool(target, 2 * tokens_per_batch + 16 * PAGE_SIZE, cache_dir)

    @torch.inference_mode()
    def run(self, samples: Sequence[Sample]) -> Rows:
        """Those of all tokens, in order."""
        token_ids = torch.tensor([token for sample in samples for token in sample.token_ids])
        positions, layout = causal_layout(_spans([len(sample.token_ids) for sample in samples]), PAGE_SIZE)
        step = RaggedStep(self._pool, layout)
        last, features = self._target.forward.hidden(token_ids, positions, step)
        return features, last, log_norms(self._target.forward, last)


def log_norms(forward: TargetForward, last: Tensor) -> Tensor:
    """Log-normalisers [T] of the logits of last hidden states [T, H], over the whole vocabulary."""
    # in chunks whose logits stay in the processor's cache
    chunks = [last[start : start + 64] for start in range(0, len(last), 64)]
    return torch.cat([forward.logits(chunk).float().logsumexp(-1) for chunk in chunks])


def _spans(lengths: Sequence[int]) -> list[Span]:
    """Complete samples, pages handed out in order."""
    spans, first = [], 0
    for length in lengths:
        count = -(-length // PAGE_SIZE)
        spans.append(Span(0, length, range(first, first + count)))
        first += count
    return spans


def batches_of(samples: Sequence[Sample], tokens_per_batch: int) -> Iterator[list[Sample]]:
    """Samples in order, at most `tokens_per_batch` tokens together (one longer sample goes alone)."""
    batch: list[Sample] = []
    num_tokens = 0
    for sample in samples:
        if batch and num_tokens + len(sample.token_ids) > tokens_per_batch:
            yield batch
            batch, num_tokens = [], 0
        batch.append(sample)
        num_tokens += len(sample.token_ids)
    if batch:
        yield batch


def build_cache(
    directory: Path,
    samples: Sequence[Sample],
    target: LoadedTarget,
    target_layer_ids: Sequence[int],
    *,
    progress: Callable[[int, int], None],
    cache_dir: Path,
    tokens_per_batch: int = 2048,
    more: Callable[[Add], None] | None = None,
) -> list[Sample]:
    """Compute and write the features of all samples, going on where an earlier call was interrupted.

    What lies there is kept as far as it is of the same samples and target and its bytes are undamaged.

    Args:
        directory: of the cache.
        samples: what to run.
        target: loaded in bfloat16 with `target_layer_ids` tapped.
        target_layer_ids: recorded in the manifest.
        progress: called with (tokens done, tokens in all).
        cache_dir: where built kernels are kept.
        tokens_per_batch: tokens of one forward pass.
        more: called when these samples are whole, with what adds further ones whose rows are known.

    Returns:
        What the cache holds: the samples and what was added behind them.
    """
    origin = {
        "target": target.name,
        "target_layer_ids": list(target_layer_ids),
        "hidden_size": target.config.hidden_size,
        "vocab_size": target.config.vocab_size,
    }
    held = list(samples)
    files = GrowingFiles(directory, origin, samples)

    def write(batch: Sequence[Sample], rows: Rows) -> None:
        ids = torch.tensor([token for sample in batch for token in sample.token_ids], dtype=torch.int32)
        files.append(batch, (ids, *rows))

    def add(sample: Sample, rows: Rows) -> None:
        write([sample], rows)
        held.append(sample)

    try:
        todo = samples[files.num_samples :]
        total = _num_tokens(samples)
        done = total - _num_tokens(todo)
        # The pages of the extractor are not needed where nothing is left to do.
        extractor = FeatureExtractor(target, cache_dir, tokens_per_batch) if todo else None
        for batch in batches_of(todo, tokens_per_batch):
            assert extractor is not None, "made above"
            write(batch, extractor.run(batch))
            done += _num_tokens(batch)
            progress(done, total)
        if more is not None:
            more(add)
    finally:
        files.close()
    lengths = np.array([len(sample.token_ids) for sample in held])
    index = np.stack((np.cumsum(lengths) - lengths, lengths, [one.prompt_len for one in held]), axis=1)
    np.save(directory / "index.npy", index.astype(np.int64))
    manifest = {"num_tokens": _num_tokens(held), "num_samples": len(held), **origin}
    partial = directory / "manifest.partial"
    partial.write_text(json.dumps(manifest, indent=2) + "\n")
    os.replace(partial, directory / "manifest.json")
    return held


def _num_tokens(samples: Sequence[Sample]) -> int:
    return sum(len(sample.token_ids) for sample in samples)


@dataclass(frozen=True, slots=True)
class _Shard:
    """One cache directory, memory-mapped; `base` is the global number of its first token."""

    base: int
    tokens: npt.NDArray[np.int32]
    features: npt.NDArray[np.int16]
    last: npt.NDArray[np.int16]
    log_norm: npt.NDArray[np.float32]


class FeatureCache:
    """Finished caches of one target, read as one: tokens are numbered through all of them."""

    def __init__(self, directories: Sequence[Path]) -> None:
        manifests = [_read_manifest(directory) for directory in directories]
        self._directories = list(directories)
        first = manifests[0]
        for directory, manifest in zip(directories, manifests, strict=True):
            for key in ("target_layer_ids", "hidden_size", "vocab_size"):
                if manifest[key] != first[key]:
                    raise ModelMismatchError(
                        f"{directory}: {key} is {manifest[key]}, {directories[0]} has {first[key]}; "
                        "train on features of one target only"
                    )
        self.target_layer_ids: tuple[int, ...] = tuple(first["target_layer_ids"])
        self.hidden_size: int = first["hidden_size"]
        self.vocab_size: int = first["vocab_size"]
        counts = [int(manifest["num_tokens"]) for manifest in manifests]
        bases = [sum(counts[:number]) for number in range(len(counts))]
        self._shards = [
            self._open(directory, base, count)
            for directory, base, count in zip(directories, bases, counts, strict=True)
        ]
        self._bases = np.array(bases)
        indices = [np.load(directory / "index.npy") for directory in directories]
        # [samples, 3]: global number of the first token, length, prompt length
        self.index: npt.NDArray[np.int64] = np.concatenate(
            [index + np.array((base, 0, 0)) for index, base in zip(indices, bases, strict=True)]
        )

    def __len__(self) -> int:
        return len(self.index)

    def check(self) -> list[Path]:
        """Compare all bytes with their checksums; returns the caches that have none, of earlier versions.

        Raises:
            ModelMismatchError: a file was damaged; says where.
        """
        has_checksums = [(directory / JOURNAL).is_file() for directory in self._directories]
        for directory, is_checkable in zip(self._directories, has_checksums, strict=True):
            if is_checkable:
                check_files(directory)
        return [one for one, known in zip(self._directories, has_checksums, strict=True) if not known]

    def _open(self, directory: Path, base: int, count: int) -> _Shard:
        width = len(self.target_layer_ids) * self.hidden_size
        return _Shard(
            base,
            np.memmap(directory / "tokens.bin", np.int32, "r", shape=(count,)),
            np.memmap(directory / "features.bin", np.int16, "r", shape=(count, width)),
            np.memmap(directory / "last.bin", np.int16, "r", shape=(count, self.hidden_size)),
            np.memmap(directory / "log_norm.bin", np.float32, "r", shape=(count,)),
        )

    def features(self, start: int, stop: int) -> Tensor:
        """Tapped features of tokens start..stop of one sample, bfloat16 [T, L*H]."""
        shard = self._shards[int(np.searchsorted(self._bases, start, side="right")) - 1]
        rows = np.array(shard.features[start - shard.base : stop - shard.base])
        return torch.from_numpy(rows).view(torch.bfloat16)

    def tokens(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Token ids, same shape as `rows`."""
        return self._gather("tokens", rows.reshape(-1)).reshape(rows.shape)

    def last(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Final hidden states of the tokens `rows`, bfloat16 [N, H]."""
        return torch.from_numpy(self._gather("last", rows)).view(torch.bfloat16)

    def log_norm(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Log-normalisers of the tokens `rows`, float32 [N]."""
        return torch.from_numpy(self._gather("log_norm", rows))

    def _gather(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        owners = np.searchsorted(self._bases, rows, side="right") - 1
        source = getattr(self._shards[0], name)
        out = np.empty((len(rows), *source.shape[1:]), dtype=source.dtype)
        for number, shard in enumerate(self._shards):
            mine = owners == number
            out[mine] = getattr(shard, name)[rows[mine] - shard.base]
        return out


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / "manifest.json"
    if not path.is_file():
        raise ModelMismatchError(f"{directory} holds no finished feature cache (no manifest.json)")
    manifest: dict[str, Any] = json.loads(path.read_text())
    return manifest
