"""Weights lie on huge pages, and where they do not, the reader hears of it."""

import mmap
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from dspark.engine.huge_pages import huge_page_share, small_pages_sentence
from dspark.engine.kernels.native import HUGE_PAGE, NativeKernels, load_kernels
from dspark.engine.linear import WeightArena, open_arena

SMAPS = """\
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                6144 kB
AnonHugePages:      4096 kB
VmFlags: rd wr mr mw me ac sd hg
7f0000800000-7f0000a00000 rw-p 00000000 00:00 0
Rss:                2048 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ac sd
7f0000a00000-7f0000c00000 rw-p 00000000 00:00 0
Rss:                2048 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac sd hg
"""


def arena_or_skip(cache_dir: Path) -> tuple[WeightArena, NativeKernels]:
    arena, kernels = open_arena(cache_dir), load_kernels(cache_dir)
    if arena is None or kernels is None:
        pytest.skip("this CPU has no use for packed weights")
    return arena, kernels


def areas(smaps: str) -> dict[range, str]:
    """The lines of each memory area, by its addresses."""
    found, span = {}, range(0)
    for line in smaps.splitlines():
        name = line.split()[0]
        if not name.endswith(":"):
            start, end = (int(part, 16) for part in name.split("-"))
            span = range(start, end)
        found[span] = found.get(span, "") + line + "\n"
    return found


def test_only_memory_that_asked_for_huge_pages_counts() -> None:
    assert huge_page_share(SMAPS.splitlines()) == (4096 + 2048) / (6144 + 2048)


def test_without_such_memory_there_is_no_share() -> None:
    assert huge_page_share([]) is None
    assert huge_page_share(["Rss:   12 kB", "VmFlags: rd wr"]) is None


def test_a_small_share_is_worth_a_sentence_that_says_the_mend() -> None:
    assert small_pages_sentence(None) == small_pages_sentence(0.95) == ""
    sentence = small_pages_sentence(0.251)
    assert "only 25% of the memory" in sentence
    assert "/proc/sys/vm/compact_memory" in sentence


def test_memory_that_came_as_small_pages_is_gathered_on_huge_ones(cache_dir: Path) -> None:
    _, kernels = arena_or_skip(cache_dir)
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not mode.exists() or "[always]" in mode.read_text():
        pytest.skip("memory comes on huge pages without being asked for, or there are none")
    size = 8 * HUGE_PAGE
    numbers = torch.arange(size // 8)
    memory = torch.frombuffer(
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.int64
    )
    memory.copy_(numbers)  # written before it is advised, so on small pages
    kernels.advise_huge(memory)
    before = _huge_kibibytes(memory.data_ptr() + size // 2)
    kernels.gather_huge(memory)
    after = _huge_kibibytes(memory.data_ptr() + size // 2)
    # the area may have neighbours in it that lie on huge pages already
    assert after - before >= 4 * HUGE_PAGE >> 10, f"{before} KiB, then {after} KiB"
    assert torch.equal(memory, numbers)


def _huge_kibibytes(address: int) -> int:
    found = areas(Path("/proc/self/smaps").read_text())
    (lines,) = (lines for span, lines in found.items() if address in span)
    (line,) = (line for line in lines.splitlines() if line.startswith("AnonHugePages:"))
    return int(line.split()[1])


def test_packed_weights_of_an_arena_do_not_share_memory(cache_dir: Path) -> None:
    arena, kernels = arena_or_skip(cache_dir)
    # The third needs a chunk of its own, the fourth fits behind it.
    weights = [torch.randn(rows, 1024).bfloat16() for rows in (96, 8192, 40_000, 64)]
    packed = [arena.pack(weight) for weight in weights]
    spans = sorted((one.words.data_ptr(), one.words.numel()) for one in packed)
    assert all(start + size <= later for (start, size), (later, _) in pairwise(spans))
    x = torch.randn(2, 1024).bfloat16()
    for weight, one in zip(weights, packed, strict=True):
        expected = x.float() @ weight.float().T
        torch.testing.assert_close(kernels.matmul(x, one).float(), expected, atol=0.25, rtol=2**-7)
