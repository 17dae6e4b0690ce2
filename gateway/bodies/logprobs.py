"""Log-probabilities in the two shapes of the API, one entry per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.generation.choice import OutputToken
from gateway.text.tokens import TokenTable


def chat_logprobs(tokens: Sequence[OutputToken], table: TokenTable) -> dict[str, Any]:
    """Entries with bytes: a token may be half a character, so its text alone would lose it."""
    return {"content": [_chat_entry(token, table) for token in tokens], "refusal": None}


def completion_logprobs(tokens: Sequence[OutputToken], table: TokenTable) -> dict[str, Any]:
    """Parallel arrays. The chosen token is always among the top ones."""
    return {
        "tokens": [_name(t.token_id, table) for t in tokens],
        "token_logprobs": [_chosen(t) for t in tokens],
        "top_logprobs": [_top_by_name(t, table) for t in tokens],
        "text_offset": [t.text_offset for t in tokens],
    }


def _chat_entry(token: OutputToken, table: TokenTable) -> dict[str, Any]:
    return {
        **_named(token.token_id, _chosen(token), table),
        "top_logprobs": [_named(token_id, logprob, table) for token_id, logprob in _top(token)],
    }


def _named(token_id: int, logprob: float | None, table: TokenTable) -> dict[str, Any]:
    return {"token": _name(token_id, table), "logprob": logprob, "bytes": list(table.raw_bytes(token_id))}


def _top_by_name(token: OutputToken, table: TokenTable) -> dict[str, float | None]:
    chosen: dict[str, float | None] = {_name(token.token_id, table): _chosen(token)}
    return {**{_name(i, table): logprob for i, logprob in _top(token)}, **chosen}


def _top(token: OutputToken) -> list[tuple[int, float]]:
    if token.logprobs is None:
        return []
    return list(zip(token.logprobs.top_token_ids, token.logprobs.top_logprobs, strict=True))


def _chosen(token: OutputToken) -> float | None:
    return None if token.logprobs is None else token.logprobs.logprob


def _name(token_id: int, table: TokenTable) -> str:
    return table.raw_bytes(token_id).decode(errors="replace")
