"""What the tests of models share."""

from __future__ import annotations

from tests.one_thread import one_thread

__all__ = ["one_thread"]
