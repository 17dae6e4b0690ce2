"""Target features on disk: computed once, read many times.

A cache directory holds, for all samples one after another:
    tokens.bin     int32 [N]            token ids
    features.bin   bfloat16 [N, L*H]    outputs of the tapped layers (raw residual stream)
    last.bin       bfloat16 [N, H]      final hidden states after the target's last norm
    log_norm.bin   float32 [N]          log-normaliser of the target's full-vocabulary logits
    index.npy      int64 [samples, 3]   offset, length, prompt length
    manifest.json  shapes, layer ids, target
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.errors import ModelMismatchError
from dspark.training.responses import Sample

FILES = ("tokens.bin", "features.bin", "last.bin", "log_norm.bin")


@dataclass(frozen=True, slots=True)
class Forward:
    """What the target says about a padded batch."""

    # [B, T, L*H]
    features: Tensor
    # [B, T, H]
    last: Tensor
    # [B, T] float32
    log_norm: Tensor


class FeatureExtractor:
    """Runs the stock transformers model over padded batches and taps its layers."""

    def __init__(self, target: Any, target_layer_ids: Sequence[int]) -> None:
        self._target = target
        self._taps: dict[int, Tensor] = {}
        self._layer_ids = tuple(target_layer_ids)
        for layer_id in self._layer_ids:
            target.model.layers[layer_id].register_forward_hook(self._tap(layer_id))

    def _tap(self, layer_id: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            self._taps[layer_id] = output[0] if isinstance(output, tuple) else output

        return hook

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, mask: Tensor) -> Forward:
        """Run [B, T] tokens, right-padded where `mask` is 0."""
        last = self._target.model(input_ids=token_ids, attention_mask=mask, use_cache=False).last_hidden_state
        features = torch.cat([self._taps[layer_id] for layer_id in self._layer_ids], dim=-1)
        return Forward(features, last, self._log_norm(last, mask))

    def _log_norm(self, last: Tensor, mask: Tensor, chunk: int = 64) -> Tensor:
        """Log-normalisers where `mask` is set, in chunks whose logits stay in the processor's cache."""
        log_norm = torch.zeros(mask.shape, dtype=torch.float32)
        rows = mask.bool()
        states = last[rows]
        parts = [self._target.lm_head(part).float().logsumexp(-1) for part in torch.split(states, chunk)]
        log_norm[rows] = torch.cat(parts)
        return log_norm


def _write(file: BinaryIO, rows: Tensor) -> None:
    words = rows.contiguous()
    file.write((words.view(torch.int16) if words.dtype == torch.bfloat16 else words).numpy().tobytes())


def _batches(samples: Sequence[Sample], tokens_per_batch: int) -> Iterator[list[Sample]]:
    """Samples of similar length, at most `tokens_per_batch` padded tokens together."""
    batch: list[Sample] = []
    for sample in sorted(samples, key=lambda one: len(one.token_ids)):
        if batch and len(sample.token_ids) * (len(batch) + 1) > tokens_per_batch:
            yield batch
            batch = []
        batch.append(sample)
    if batch:
        yield batch


def build_cache(
    directory: Path,
    samples: Sequence[Sample],
    target: Any,
    target_layer_ids: Sequence[int],
    *,
    progress: Any,
    tokens_per_batch: int = 4096,
) -> None:
    """Compute and write the features of all samples; the manifest is written last.

    Args:
        directory: new or incomplete cache directory; an incomplete one is overwritten.
        samples: what to run.
        target: transformers causal LM in bfloat16.
        target_layer_ids: layers to tap.
        progress: called with (tokens done, tokens in all).
        tokens_per_batch: padded tokens of one forward pass.
    """
    directory.mkdir(parents=True, exist_ok=True)
    extractor = FeatureExtractor(target, target_layer_ids)
    total, done = sum(len(sample.token_ids) for sample in samples), 0
    index: list[tuple[int, int, int]] = []
    files = [(directory / name).open("wb") for name in FILES]
    try:
        for batch in _batches(samples, tokens_per_batch):
            width = max(len(sample.token_ids) for sample in batch)
            ids = torch.zeros(len(batch), width, dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for row, sample in enumerate(batch):
                ids[row, : len(sample.token_ids)] = torch.tensor(sample.token_ids)
                mask[row, : len(sample.token_ids)] = 1
            result = extractor.forward(ids, mask)
            for row, sample in enumerate(batch):
                length = len(sample.token_ids)
                parts = (ids.int(), result.features, result.last, result.log_norm)
                for file, part in zip(files, parts, strict=True):
                    _write(file, part[row, :length])
                index.append((done, length, sample.prompt_len))
                done += length
            progress(done, total)
    finally:
        for file in files:
            file.close()
    np.save(directory / "index.npy", np.array(index, dtype=np.int64))
    manifest = {
        "num_tokens": total,
        "num_samples": len(samples),
        "target_layer_ids": list(target_layer_ids),
        "hidden_size": target.config.hidden_size,
        "vocab_size": target.config.vocab_size,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


class FeatureCache:
    """A finished cache, memory-mapped."""

    def __init__(self, directory: Path) -> None:
        manifest_path = directory / "manifest.json"
        if not manifest_path.is_file():
            raise ModelMismatchError(f"{directory} holds no finished feature cache (no manifest.json)")
        manifest = json.loads(manifest_path.read_text())
        self.target_layer_ids: tuple[int, ...] = tuple(manifest["target_layer_ids"])
        self.hidden_size: int = manifest["hidden_size"]
        self.vocab_size: int = manifest["vocab_size"]
        self.num_tokens: int = manifest["num_tokens"]
        # [samples, 3]: offset, length, prompt length
        self.index: npt.NDArray[np.int64] = np.load(directory / "index.npy")
        width = len(self.target_layer_ids) * self.hidden_size
        self.tokens = np.memmap(directory / "tokens.bin", np.int32, "r")
        self._features = np.memmap(directory / "features.bin", np.int16, "r", shape=(self.num_tokens, width))
        self._last = np.memmap(
            directory / "last.bin", np.int16, "r", shape=(self.num_tokens, self.hidden_size)
        )
        self._log_norm = np.memmap(directory / "log_norm.bin", np.float32, "r")

    def __len__(self) -> int:
        return len(self.index)

    def features(self, start: int, stop: int) -> Tensor:
        """Tapped features of tokens start..stop, bfloat16 [T, L*H]."""
        return torch.from_numpy(np.array(self._features[start:stop])).view(torch.bfloat16)

    def last(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Final hidden states of the tokens `rows`, bfloat16 [N, H]."""
        return torch.from_numpy(self._last[rows]).view(torch.bfloat16)

    def log_norm(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Log-normalisers of the tokens `rows`, float32 [N]."""
        return torch.from_numpy(self._log_norm[rows])
