"""API keys: a file that names who may ask, and what each was promised.

    [[keys]]
    name = "shop"
    key = "..."            # at least 8 printable characters without spaces
    tier = "priority"      # or "default", "flex"; absent: default
    tokens_per_s = 20      # promised behind the first token; absent: nothing
    ttft_s = 0.5           # promised to the first token; absent: nothing

The same in JSON is an object with a list `keys`. A key itself is in no log, message or metric; once the file
is read, only its digest is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dspark.decoding.service import Service, ServiceTier, Sla
from dspark.errors import ConfigurationError

_Promise = Annotated[float, Field(gt=0)] | None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key.

    Attributes:
        name: what logs may call it.
        service: its tier, and what its requests were promised.
        digest: SHA-256 of the secret.
    """

    name: str
    service: Service
    digest: bytes = field(repr=False)


class KeyRing:
    """All keys that are known."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)

    def find(self, secret: str) -> ApiKey | None:
        """The key of this secret. How long it takes does not depend on how much of a secret was guessed."""
        digest, found = digest_of(secret), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def digest_of(secret: str) -> bytes:
    """SHA-256 of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def load_keys(path: Path) -> KeyRing:
    """Read a file of keys, JSON where it is called so and TOML otherwise.

    Raises:
        ConfigurationError: names the file, the key and the field that is wrong.
    """
    keys: list[ApiKey] = []
    for number, entry in enumerate(_entries(path), start=1):
        where = f"the keys in {path}: {_label(entry, number)}"
        key = _key_of(entry, where)
        if any(other.name == key.name for other in keys):
            raise ConfigurationError(f"{where}: name: another key has it; give each its own")
        if any(other.digest == key.digest for other in keys):
            raise ConfigurationError(f"{where}: key: another entry has the same one; give each its own")
        keys.append(key)
    return KeyRing(keys)


class _KeyEntry(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    name: Annotated[str, Field(min_length=1)]
    key: Annotated[str, Field(pattern=r"^[\x21-\x7e]{8,}$", repr=False)]
    tier: Literal["priority", "default", "flex"] = "default"
    tokens_per_s: _Promise = None
    ttft_s: _Promise = None


def _entries(path: Path) -> Sequence[Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"cannot read the keys in {path}: {reason}; see GATEWAY_KEYS") from error
    is_json = path.suffix == ".json"
    try:
        content = json.loads(text) if is_json else tomllib.loads(text)
    except ValueError as error:
        # Of the parser's message the place alone: the rest may quote a key.
        place = re.search(r"line \d+", str(error))
        kind = "JSON" if is_json else "TOML"
        raise ConfigurationError(
            f"the keys in {path} are not valid {kind}, {place[0] if place else 'at the end'}"
        ) from None
    entries = content.get("keys") if isinstance(content, dict) and set(content) == {"keys"} else None
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError(f"{path} must hold a list keys of at least one entry, and nothing else")
    return entries


def _label(entry: object, number: int) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return f"key {name!r}" if name and isinstance(name, str) else f"key number {number}"


def _key_of(entry: object, where: str) -> ApiKey:
    try:
        fields = _KeyEntry.model_validate(entry)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        name = f"{problem['loc'][0]}: " if problem["loc"] else ""
        raise ConfigurationError(f"{where}: {name}{problem['msg'].lower()}") from None
    service = Service(ServiceTier(fields.tier), Sla(fields.tokens_per_s, fields.ttft_s))
    return ApiKey(fields.name, service, digest_of(fields.key))
