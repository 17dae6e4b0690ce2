"""The target in the loop: features computed when a batch asks for them, for data that no disk would hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.engine.loading import LoadedTarget
from dspark.training.features import FeatureExtractor, batches_of
from dspark.training.responses import Sample

_TOKENS_PER_PASS = 2048


@dataclass(frozen=True, slots=True)
class _Outputs:
    """What the target says about one sample: features [T, L*H], last states [T, H], log-normalisers [T]."""

    features: Tensor
    last: Tensor
    log_norm: Tensor


class OnlineFeatures:
    """A `FeatureSource` that holds the samples of one batch, those asked for last, and no more.

    The numbers are those that a cache of the same samples would hold, since both come from whole samples
    through the same forward in bfloat16. They are its bits where rows of the target do not depend on what is
    computed beside them (exact mode), and differ by rounding elsewhere.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        target: LoadedTarget,
        target_layer_ids: Sequence[int],
        cache_dir: Path,
    ) -> None:
        self.target_layer_ids = tuple(target_layer_ids)
        self.hidden_size, self.vocab_size = target.config.hidden_size, target.config.vocab_size
        lengths = np.array([len(sample.token_ids) for sample in samples])
        prompts = [sample.prompt_len for sample in samples]
        self.index: npt.NDArray[np.int64] = np.stack((np.cumsum(lengths) - lengths, lengths, prompts), axis=1)
        self._samples = samples
        self._tokens = np.concatenate([np.array(sample.token_ids, dtype=np.int32) for sample in samples])
        self._extractor = FeatureExtractor(target, cache_dir, _TOKENS_PER_PASS)
        self._held: dict[int, _Outputs] = {}

    def __len__(self) -> int:
        return len(self.index)

    def tokens(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """See FeatureSource."""
        return self._tokens[rows]

    def features(self, start: int, stop: int) -> Tensor:
        """See FeatureSource."""
        (number,) = self._numbers(np.array([start]))
        self._hold((number,))
        first = int(self.index[number, 0])
        return self._held[number].features[start - first : stop - first]

    def last(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """See FeatureSource."""
        return self._gather(rows, lambda outputs: outputs.last)

    def log_norm(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """See FeatureSource."""
        return self._gather(rows, lambda outputs: outputs.log_norm)

    def _gather(self, rows: npt.NDArray[np.int64], part: Callable[[_Outputs], Tensor]) -> Tensor:
        numbers = self._numbers(rows)
        self._hold(dict.fromkeys(numbers))
        places = rows - self.index[numbers, 0]
        first = part(self._held[numbers[0]])
        out = first.new_empty((len(rows), *first.shape[1:]))
        for number in dict.fromkeys(numbers):
            mine = torch.from_numpy(np.flatnonzero(np.array(numbers) == number))
            out[mine] = part(self._held[number])[torch.from_numpy(places)[mine]]
        return out

    def _numbers(self, rows: npt.NDArray[np.int64]) -> list[int]:
        """The sample of each token."""
        numbers: list[int] = (np.searchsorted(self.index[:, 0], rows, side="right") - 1).tolist()
        return numbers

    def _hold(self, numbers: Iterable[int]) -> None:
        """Have the outputs of these samples; where some are missing, of these only."""
        wanted = list(numbers)
        if all(number in self._held for number in wanted):
            return
        self._held = {number: self._held[number] for number in wanted if number in self._held}
        missing = [number for number in wanted if number not in self._held]
        samples = [self._samples[number] for number in missing]
        places = iter(missing)
        for batch in batches_of(samples, _TOKENS_PER_PASS):
            parts = self._extractor.run(batch)
            lengths = [len(sample.token_ids) for sample in batch]
            for features, last, log_norm in zip(*(torch.split(part, lengths) for part in parts), strict=True):
                # copies, since what inference mode made cannot be trained on
                self._held[next(places)] = _Outputs(features.clone(), last.clone(), log_norm.clone())
