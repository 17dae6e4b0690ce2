"""How much of the memory that asked for huge pages lies on them: over small ones weights are read slower."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

_SMAPS = Path("/proc/self/smaps")
# below it, steps of the target are slower: by about a tenth where all pages are small
_GOOD_SHARE = 0.9


def small_pages_sentence(share: float | None) -> str:
    """What such a share costs and how to mend it; empty where all is well or nothing is known."""
    if share is None or share >= _GOOD_SHARE:
        return ""
    return (
        f"only {share:.0%} of the memory for weights and keys lies on huge pages, so steps may be up to a "
        "tenth slower; see that /sys/kernel/mm/transparent_hugepage/enabled says madvise or always, "
        "and write 1 to /proc/sys/vm/compact_memory before the start"
    )


def huge_page_share(lines: Iterable[str] | None = None) -> float | None:
    """Share of touched memory that lies on huge pages, of all this process asked them for.

    Args:
        lines: of /proc/PID/smaps; None: of this process.

    Returns:
        0 to 1; None where nothing asked for huge pages, or where the system does not tell.
    """
    if lines is None:
        try:
            lines = _SMAPS.read_text().splitlines()
        except OSError:
            return None
    resident = huge = 0
    for area in _areas(lines):
        if "hg" in area.get("VmFlags", "").split():
            resident += _kibibytes(area, "Rss")
            huge += _kibibytes(area, "AnonHugePages")
    return huge / resident if resident else None


def _areas(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """The entries of each memory area; the flags of an area come last."""
    area: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        area[name] = value
        if name == "VmFlags":
            yield area
            area = {}


def _kibibytes(area: dict[str, str], name: str) -> int:
    return int(area.get(name, "0 kB").split()[0])
