"""The garbage collector and what a process keeps for as long as it lives."""

from __future__ import annotations

import gc


def keep_loaded_objects() -> None:
    """Call once everything is loaded: the collector never looks at these objects again.

    torch and transformers make a million of them, and a full collection, which walks through all of them,
    comes every few hundred rounds.
    """
    gc.collect()
    gc.freeze()
