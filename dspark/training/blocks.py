"""Anchors and blocks: which positions of which samples one training step drafts from."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.errors import ConfigurationError
from dspark.training.feature_source import FeatureSource
from dspark.training.losses import Teacher

# Tokens that must have occurred before in the same order for a text to count as repeating itself.
REPEATED = 4


class AnchorRule(StrEnum):
    """Which positions may anchor a block; each has a label that is the target's own."""

    # From the last prompt token on, which is what serving drafts from first.
    SERVING = "serving"
    # The anchor itself is the target's, too, and samples of fewer than 2*gamma response tokens are left out
    # (DeepSpec sections 4.1 and 5).
    PUBLISHED = "published"
    # As SERVING, without the anchors where the text repeats itself: prompt lookup drafts there.
    NOVEL = "novel"


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """R blocks of G slots, drawn from S samples that lie one after another, unpadded.

    G is gamma or, while blocks grow, less.

    Attributes:
        features: [T, L*H] bfloat16, T tokens of all samples; [T, H], the target's last hidden states, for a
            drafter that reads those.
        token_ids: [T] int64, the tokens themselves.
        token_starts: S+1 offsets of the samples in `features`.
        block_starts: S+1 offsets of the blocks of each sample.
        anchors: [R] position of the anchor token in its sample, ascending within a sample.
        tokens: [R, G+1] anchor token and the G tokens that followed (the last one repeated at the end).
        is_valid: [R, G] whether the slot's label exists and is the target's own.
        teacher: for the R*G slots, flattened.
    """

    features: Tensor
    token_ids: Tensor
    token_starts: tuple[int, ...]
    block_starts: tuple[int, ...]
    anchors: Tensor
    tokens: Tensor
    is_valid: Tensor
    teacher: Teacher


class BlockSampler:
    """Batches of samples of similar length and, in each, anchors without replacement.

    A batch is a function of the seed and its number alone, so a position in the data is that number: nothing
    has to be restored when a run goes on, and processes can share the batches out without a word.
    """

    def __init__(
        self,
        cache: FeatureSource,
        samples: npt.NDArray[np.int64],
        t2d: Tensor,
        *,
        gamma: int,
        batch_samples: int,
        anchors_per_sample: int,
        seed: int,
        rule: AnchorRule = AnchorRule.SERVING,
        reads_last_state: bool = False,
    ) -> None:
        self._cache, self._t2d, self._gamma = cache, t2d, gamma
        self._batch_samples, self._anchors_per_sample = batch_samples, anchors_per_sample
        self._seed, self._rule, self._reads_last_state = seed, rule, reads_last_state
        if rule is AnchorRule.PUBLISHED:
            rows = cache.index[samples]
            samples = samples[rows[:, 1] - rows[:, 2] >= 2 * gamma]
        if len(samples) < batch_samples:
            raise ConfigurationError(
                f"{len(samples)} samples are not one batch of {batch_samples}; "
                "pass a smaller --batch or more data"
            )
        self._samples = samples
        self._epoch: tuple[int, list[npt.NDArray[np.int64]]] = (-1, [])

    def __len__(self) -> int:
        """Batches of one epoch; what does not fill one is left out, another part each epoch."""
        return len(self._samples) // self._batch_samples

    def identity(self) -> dict[str, int | str]:
        """What batches depend on; samplers with the same identity draw the same ones."""
        return {
            "seed": self._seed,
            "batch": self._batch_samples,
            "anchors_per_sample": self._anchors_per_sample,
            "gamma": self._gamma,
            "data": f"{zlib.crc32(self._cache.index[self._samples].tobytes()):08x}",
        }

    def batch(self, number: int, block_len: int | None = None) -> BlockBatch:
        """Batch `number`, counted from 0 through all epochs.

        Args:
            number: of the batch.
            block_len: slots of a block; None: gamma. Shorter blocks are as many more, and blocks of one slot
                begin at every position: the drafter is an ordinary causal model then.
        """
        bits = np.random.PCG64([self._seed, 1, number])
        return self._assemble(self.members(number), np.random.Generator(bits), block_len or self._gamma)

    def members(self, number: int) -> npt.NDArray[np.int64]:
        """The samples of batch `number`, as rows of the cache's index, in the order of the batch."""
        epoch, place = divmod(number, len(self))
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._shuffled(epoch))
        return self._epoch[1][place]

    def _shuffled(self, epoch: int) -> list[npt.NDArray[np.int64]]:
        """Members of every batch of one epoch, in random order, each of similar lengths."""
        rng = np.random.Generator(np.random.PCG64([self._seed, 0, epoch]))
        kept = rng.permutation(self._samples)[: len(self) * self._batch_samples]
        lengths = self._cache.index[kept, 1] + rng.uniform(0, 24, len(kept))
        batches = list(kept[np.argsort(lengths)].reshape(len(self), self._batch_samples))
        rng.shuffle(batches)
        return batches

    def _anchors(
        self, rng: np.random.Generator, row: npt.NDArray[np.int64], block_len: int
    ) -> npt.NDArray[np.int64]:
        """Anchors in one sample, ascending; `row` is its row of the index."""
        offset, length, prompt_len = row.tolist()
        # before an anchor there is a feature, as there is in serving
        first = max(1, prompt_len - (self._rule is not AnchorRule.PUBLISHED))
        candidates = np.arange(first, length - 1)
        if self._rule is AnchorRule.NOVEL:
            is_repeated = repeats(self._cache.tokens(np.arange(offset, offset + length)))[first : length - 1]
            candidates = candidates[~is_repeated] if not is_repeated.all() else candidates
        count = len(candidates)
        if block_len > 1 or self._gamma == 1:
            count = min(self._anchors_per_sample * self._gamma // block_len, count)
        return np.sort(rng.choice(candidates, count, replace=False))

    def _assemble(
        self, members: npt.NDArray[np.int64], rng: np.random.Generator, block_len: int
    ) -> BlockBatch:
        rows = self._cache.index[members]
        anchors = [self._anchors(rng, row, block_len) for row in rows]
        counts = [len(one) for one in anchors]
        # [R, 1] first token and length of the sample of each block
        offset, length = (np.repeat(rows[:, column], counts)[:, None] for column in (0, 1))
        # [R, G+1]: positions of the anchor and of the labels
        positions = np.concatenate(anchors)[:, None] + np.arange(block_len + 1)
        is_valid = torch.from_numpy(positions[:, 1:] < length)
        absolute = np.minimum(positions, length - 1) + offset
        tokens = torch.from_numpy(self._cache.tokens(absolute).astype(np.int64))
        # the token at position p is predicted by the target's state at p - 1
        sources = absolute[:, :-1].reshape(-1)
        teacher = Teacher(
            last=self._cache.last(sources),
            log_norm=self._cache.log_norm(sources),
            labels=self._t2d[tokens[:, 1:].reshape(-1)],
        )
        return BlockBatch(
            features=torch.cat([self._features(start, size) for start, size, _ in rows]),
            token_ids=torch.from_numpy(self._cache.tokens(_all_of(rows)).astype(np.int64)),
            token_starts=_offsets(rows[:, 1].tolist()),
            block_starts=_offsets(counts),
            anchors=torch.from_numpy(positions[:, 0].copy()),
            tokens=tokens,
            is_valid=is_valid,
            teacher=teacher,
        )

    def _features(self, start: int, size: int) -> Tensor:
        """Of the tokens of one sample."""
        if self._reads_last_state:
            return self._cache.last(np.arange(start, start + size))
        return self._cache.features(start, start + size)


def _all_of(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Global numbers of all tokens of these rows of the index."""
    return np.concatenate([np.arange(start, start + size) for start, size, _ in rows])


def repeats(tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Whether the last `REPEATED` tokens up to each position occurred before: [T] to [T]."""
    found = np.zeros(len(tokens), dtype=np.bool_)
    if len(tokens) > REPEATED:
        windows = np.lib.stride_tricks.sliding_window_view(tokens, REPEATED)
        _, first, group = np.unique(windows, axis=0, return_index=True, return_inverse=True)
        found[REPEATED - 1 :] = first[group.reshape(-1)] < np.arange(len(windows))
    return found


def _offsets(counts: list[int]) -> tuple[int, ...]:
    return (0, *np.cumsum(counts).tolist())
