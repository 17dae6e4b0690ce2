"""Training text: prompts and the target's own responses, as token sequences in the serving chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation turn; tokens from `prompt_len` on are the target's."""

    sample_id: str
    token_ids: tuple[int, ...]
    prompt_len: int


def chat_prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """Token ids of one user turn with the generation prompt, exactly as the gateway renders it."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file.

    Raises:
        ConfigurationError: no such file, or a line that is not JSON; names the line.
    """
    if not path.is_file():
        raise ConfigurationError(f"no such file: {path}")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ConfigurationError(f"{path}, line {number}: not JSON ({error.msg})") from None


def to_samples(
    rows: Iterable[dict[str, Any]], tokenizer: Any, *, eos_token_id: int, max_response_len: int
) -> Iterator[Sample]:
    """Turn response rows into samples.

    Rows of `dspark train`'s own generation hold `response_ids` and `finish_reason`; rows with only a text
    `response` are tokenised, and end with the end-of-text token unless they reach `max_response_len`.
    """
    for number, row in enumerate(rows):
        prompt_ids = chat_prompt_ids(tokenizer, row["prompt"])
        if "response_ids" in row:
            response = list(row["response_ids"])
        else:
            response = tokenizer(row["response"], add_special_tokens=False).input_ids
            if len(response) < max_response_len:
                response.append(eos_token_id)
        response = response[:max_response_len]
        if len(response) >= 2:
            yield Sample(str(row.get("id", number)), (*prompt_ids, *response), len(prompt_ids))
