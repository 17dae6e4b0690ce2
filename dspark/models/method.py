"""Drafters that are a method and no directory."""

from __future__ import annotations

from pathlib import Path

# Given in the place of a drafter directory.
PROMPT_LOOKUP = Path("prompt-lookup")


def is_prompt_lookup(drafter: Path) -> bool:
    """Whether this names prompt lookup; `./prompt-lookup` made absolute would be a directory."""
    return drafter == PROMPT_LOOKUP


def named_method(text: str) -> Path | None:
    """What `--drafter` means if it names a method."""
    return PROMPT_LOOKUP if text == str(PROMPT_LOOKUP) else None
