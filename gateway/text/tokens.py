"""The bytes each token stands for, so that text can be cut at any token without decoding twice.

A byte-level or SentencePiece vocabulary is a map from ids to byte strings; a sequence's text is the
UTF-8 decoding of their concatenation. One token may be half a character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping

from tokenizers import Tokenizer

from dspark.errors import ConfigurationError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTable:
    """Looks up the bytes of token ids; remembers those it has seen."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Derive the byte rule from the tokenizer's decoder.

        Raises:
            ConfigurationError: the decoder is neither byte-level nor SentencePiece.
        """
        self._tokenizer = tokenizer
        self._to_bytes = _byte_rule(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        self._added: Mapping[int, bytes] = {i: t.content.encode() for i, t in added.items()}
        self._special_ids = frozenset(i for i, t in added.items() if t.special)
        self._seen: dict[int, bytes] = {}

    def raw_bytes(self, token_id: int) -> bytes:
        """Bytes of a token; for a special token, of its name. Empty for ids outside the vocabulary."""
        known = self._seen.get(token_id)
        if known is None:
            known = self._seen[token_id] = self._look_up(token_id)
        return known

    def text_bytes(self, token_id: int) -> bytes:
        """Bytes a token adds to the output: none for a special token."""
        return b"" if token_id in self._special_ids else self.raw_bytes(token_id)

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        token = self._tokenizer.id_to_token(token_id)
        return b"" if token is None else self._to_bytes(token)


def _byte_rule(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    kinds = set(_decoder_kinds(tokenizer))
    if "ByteLevel" in kinds:
        table = _byte_level_table()
        return lambda token: _byte_level_bytes(token, table)
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentencepiece_bytes
    raise ConfigurationError(
        f"tokenizer.json has the decoder {sorted(kinds) or 'none'}, which is not supported;"
        " use a model with a byte-level or SentencePiece tokenizer."
    )


def _decoder_kinds(tokenizer: Tokenizer) -> Iterator[str]:
    if tokenizer.decoder is None:
        return
    state = json.loads(tokenizer.decoder.__getstate__())
    for decoder in state.get("decoders", [state]):
        yield decoder["type"]


def _byte_level_table() -> dict[str, int]:
    """Byte-level vocabularies write printable bytes as themselves and the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    hidden = sorted(set(range(256)) - set(printable))
    table |= {chr(0x100 + i): b for i, b in enumerate(hidden)}
    return table


def _byte_level_bytes(token: str, table: Mapping[str, int]) -> bytes:
    """A token with a character outside the table stands for itself."""
    if all(c in table for c in token):
        return bytes(table[c] for c in token)
    return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte:
        return bytes([int(byte.group(1), 16)])
    return token.replace("\u2581", " ").encode()
