"""Turns text into token ids and back, from the `tokenizer.json` of a model directory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from dspark.errors import ConfigurationError, InvalidRequestError
from gateway.text.tokens import TokenTable

# Longer texts are encoded in a thread, so that they do not hold up the streams of others.
_INLINE_CHARS = 16_384


class TextTokenizer:
    """The tokenizer of the served model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.table = TokenTable(tokenizer)

    @classmethod
    def load(cls, directory: Path) -> TextTokenizer:
        """Read `tokenizer.json`.

        Raises:
            ConfigurationError: the file is missing or no tokenizer.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ConfigurationError(
                f"{path} does not exist; point GATEWAY_TARGET at a model directory with a tokenizer.json."
            )
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the binding raises bare Exception
            raise ConfigurationError(f"{path} is not a tokenizer: {error}.") from error

    async def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Token ids of a text, with or without the tokens a model expects around plain text.

        Raises:
            InvalidRequestError: the text is no valid Unicode.
        """
        if len(text) <= _INLINE_CHARS:
            return self._encode(text, add_special_tokens)
        return await asyncio.to_thread(self._encode, text, add_special_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a whole sequence, special tokens included."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def token_of(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token."""
        return self._tokenizer.id_to_token(token_id) or ""

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        try:
            return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        except TypeError as error:  # a lone surrogate, which has no UTF-8
            raise InvalidRequestError(
                "The text holds half a surrogate pair, which is no character."
            ) from error
