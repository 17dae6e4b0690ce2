"""Reads the fields of a JSON document and says which one is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object of a known kind.

    Attributes:
        kind: what the file should be, for messages.
        values: the object.
    """

    kind: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, kind: str, document: object) -> Fields:
        """Take a parsed JSON value.

        Raises:
            ConfigurationError: it is no object.
        """
        if not isinstance(document, dict):
            raise ConfigurationError(f"{kind} must be a JSON object, not {type(document).__name__}")
        return cls(kind, document)

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number.

        Raises:
            ConfigurationError: it is missing and has no default, or is none.
        """
        value = self.values.get(name, default)
        if not _is_number(value):
            raise self.refusal(name, f"must be a finite number, not {value!r}")
        return float(value)

    def numbers(self, name: str, count: int | None = None) -> tuple[float, ...]:
        """A list of finite numbers, of so many where a count is given.

        Raises:
            ConfigurationError: it is none, or of another length.
        """
        found = self._list(name)
        if not all(map(_is_number, found)):
            raise self.refusal(name, f"must hold finite numbers, not {found}")
        if count is not None and len(found) != count:
            raise self.refusal(name, f"must hold {count} numbers and holds {len(found)}")
        return tuple(map(float, found))

    def whole(self, name: str, *, least: int, default: int | None = None) -> int:
        """A whole number of at least `least`.

        Raises:
            ConfigurationError: it is missing and has no default, or is none.
        """
        value = self.values.get(name, default)
        # A bool is an int to Python and none to the readers of these files.
        if type(value) is not int or value < least:
            raise self.refusal(name, f"must be a whole number of at least {least}, not {value!r}")
        return value

    def sizes(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers of at least 0 that rises strictly.

        Raises:
            ConfigurationError: it is none, or empty.
        """
        found = self._list(name)
        if not found or any(type(size) is not int or size < 0 for size in found):
            raise self.refusal(name, f"must hold whole numbers of at least 0, not {found}")
        if sorted(set(found)) != found:
            raise self.refusal(name, f"must rise strictly, not {found}")
        return tuple(found)

    def refusal(self, name: str, reason: str) -> ConfigurationError:
        """The error that says what is wrong with a field."""
        return ConfigurationError(f"{name} of {self.kind} {reason}")

    def _list(self, name: str) -> list[Any]:
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self.refusal(name, f"must be a list, not {value!r}")
        return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
