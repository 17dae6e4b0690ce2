"""Tells the drafters of other projects from DeepSpec's, which some resemble down to the shapes."""

from __future__ import annotations

from typing import Any

from dspark.errors import ModelMismatchError
from dspark.models.config import CHAINS, GEMMA4, QWEN3

# What DeepSpec called its first Eagle3 model.
EAGLE3_ALIAS = "Eagle3DraftModel"
READABLE = (QWEN3, GEMMA4, *CHAINS, EAGLE3_ALIAS)
# A key of `config.json` that only these have, and what they are (DeepSpec sections 7 and 8).
_FOREIGN_KEYS = {
    "dflash_config": (
        "a z-lab DFlash drafter, whose mask at a position predicts that very position; a DeepSpec mask "
        "predicts the next one, so these weights would draft everything one token late"
    ),
}


def refuse_foreign(raw: dict[str, Any]) -> None:
    """Look at a parsed `config.json`.

    Raises:
        ModelMismatchError: it is not the configuration of a drafter of DeepSpec or of ours; says whose.
    """
    for key, kind in _FOREIGN_KEYS.items():
        if key in raw:
            raise ModelMismatchError(
                f"the key {key} says that this drafter is {kind}; it cannot be run here, "
                "give a drafter that DeepSpec or `dspark train` wrote"
            )
    if raw.get("sample_from_anchor") is False:
        raise ModelMismatchError(
            "sample_from_anchor is false, so the slot of the anchor predicts nothing; "
            "here it gives the first draft"
        )
    architectures = raw.get("architectures") or []
    if not architectures or architectures[0] not in READABLE:
        raise ModelMismatchError(
            f"architectures {architectures} does not begin with one of {', '.join(READABLE)}; "
            "pass a drafter that DeepSpec or `dspark train` wrote"
        )
