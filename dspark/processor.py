"""What Linux tells of this processor."""

from __future__ import annotations

from pathlib import Path

# Flags of instructions that multiply bfloat16: x86's two, and ARM's.
_BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")


def cpuinfo() -> dict[str, str]:
    """Entries of the first processor in /proc/cpuinfo; none on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def instruction_sets() -> set[str]:
    """The flags of its instructions, as Linux names them."""
    info = cpuinfo()
    return set(info.get("flags", info.get("Features", "")).split())


def bfloat16_flags() -> tuple[str, ...]:
    """Those that decide how fast products of bfloat16 are."""
    present = instruction_sets()
    return tuple(flag for flag in _BFLOAT16_FLAGS if flag in present)
