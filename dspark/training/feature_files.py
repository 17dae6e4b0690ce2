"""The files of a feature cache while they grow: segments with checksums, so that what is whole is kept.

A segment is what one forward pass adds to each file. `journal.jsonl` first names the target, then holds a
line per segment, written when the segment's bytes are on disk. Whoever goes on keeps the segments that are of
the wanted samples and whose bytes are still those of their checksums, up to the first that is not, and
computes the rest.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from dspark.errors import ModelMismatchError
from dspark.training.responses import Sample

FILES = ("tokens.bin", "features.bin", "last.bin", "log_norm.bin")
JOURNAL = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class Segment:
    """What one forward pass added: samples, bytes and CRC-32 per file, in the order of `FILES`."""

    num_samples: int
    # SHA-256 of the samples
    digest: str
    sizes: tuple[int, ...]
    checksums: tuple[int, ...]


def digest_of(samples: Sequence[Sample]) -> str:
    """Names these samples in this order."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(np.array((len(sample.token_ids), sample.prompt_len, *sample.token_ids)).tobytes())
    return digest.hexdigest()


class GrowingFiles:
    """Appends segments; opened anew after a crash, it holds the whole ones of `samples` that came before."""

    def __init__(self, directory: Path, origin: dict[str, Any], samples: Sequence[Sample]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "manifest.json").unlink(missing_ok=True)
        self._journal_path = directory / JOURNAL
        known, segments = _journal(self._journal_path)
        segments = _of_samples(segments, samples) if known == origin else []
        columns = [_num_whole(directory / name, segments, column) for column, name in enumerate(FILES)]
        self._segments = segments[: min(columns)]
        self._files: list[BinaryIO] = []
        for column, name in enumerate(FILES):
            file = (directory / name).open("ab")
            file.truncate(sum(segment.sizes[column] for segment in self._segments))
            self._files.append(file)
        partial = self._journal_path.with_suffix(".partial")
        lines = [json.dumps(one) for one in (origin, *map(asdict, self._segments))]
        partial.write_text("".join(line + "\n" for line in lines))
        os.replace(partial, self._journal_path)

    @property
    def num_samples(self) -> int:
        """Samples that are whole on disk."""
        return sum(segment.num_samples for segment in self._segments)

    def append(self, samples: Sequence[Sample], rows: Sequence[Tensor]) -> None:
        """Add the rows of some samples, one tensor per file."""
        parts = [_to_bytes(one) for one in rows]
        for file, part in zip(self._files, parts, strict=True):
            file.write(part)
            file.flush()
            os.fsync(file.fileno())
        checksums = tuple(map(zlib.crc32, parts))
        segment = Segment(len(samples), digest_of(samples), tuple(map(len, parts)), checksums)
        with self._journal_path.open("a") as journal:
            journal.write(json.dumps(asdict(segment)) + "\n")
        self._segments.append(segment)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def _of_samples(segments: Sequence[Segment], samples: Sequence[Sample]) -> list[Segment]:
    """The segments from the first on that are of these samples, in this order."""
    kept: list[Segment] = []
    start = 0
    for segment in segments:
        stop = start + segment.num_samples
        if stop > len(samples) or digest_of(samples[start:stop]) != segment.digest:
            break
        kept.append(segment)
        start = stop
    return kept


def check_files(directory: Path) -> None:
    """Compare every byte of a finished cache with its checksums.

    Raises:
        ModelMismatchError: a file was damaged; says where.
    """
    segments = _journal(directory / JOURNAL)[1]
    for column, name in enumerate(FILES):
        whole = _num_whole(directory / name, segments, column)
        if whole < len(segments):
            start = sum(one.sizes[column] for one in segments[:whole])
            raise ModelMismatchError(
                f"{directory / name} is damaged after byte {start}; run `dspark train` with the --work that "
                "made it to compute the rest anew, or restore the file"
            )


def _num_whole(path: Path, segments: Sequence[Segment], column: int) -> int:
    """How many of the segments, from the first on, a file holds undamaged."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        kept = itertools.takewhile(
            lambda one: zlib.crc32(file.read(one.sizes[column])) == one.checksums[column], segments
        )
        return sum(1 for _ in kept)


def _journal(path: Path) -> tuple[dict[str, Any] | None, list[Segment]]:
    """What the cache is of, and its segments; a line that a crash cut off is left out."""
    if not path.is_file():
        return None, []
    text = path.read_text()
    rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    if not rows:
        return None, []
    segments = [
        Segment(row["num_samples"], row["digest"], tuple(row["sizes"]), tuple(row["checksums"]))
        for row in rows[1:]
    ]
    return rows[0], segments


def _to_bytes(rows: Tensor) -> bytes:
    words = rows.contiguous()
    data: bytes = (words.view(torch.int16) if words.dtype == torch.bfloat16 else words).numpy().tobytes()
    return data
