"""The prompts of a benchmark: our own few, or JSON-lines files a user names; rendered as the gateway does."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dspark.errors import ConfigurationError

_OWN_PROMPTS = Path(__file__).parent / "prompts"
_FORM = '{"turns": ["..."]}'
# The benchmarks of the paper by domain, each with the most prompts that DeepSpec takes of it.
BENCHMARKS = {
    "math": {"gsm8k": 500, "math500": 500, "aime25": 30},
    "code": {"mbpp": 256, "humaneval": 164, "livecodebench": 500},
    "chat": {"mt-bench": 80, "alpaca": 500, "arena-hard-v2": 500},
}
MOST_PROMPTS = {task: most for tasks in BENCHMARKS.values() for task, most in tasks.items()}
_SUBSAMPLE_SEED = 980406


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """One prompt of a task.

    Attributes:
        task: name of the file it came from, without its ending.
        index: its line in that file, from 0.
        text: what the user says.
        token_ids: the rendered conversation; empty before `encode_prompts`.
    """

    task: str
    index: int
    text: str
    token_ids: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Task and index."""
        return f"{self.task}-{self.index}"


def read_tasks(paths: Sequence[Path] = (), *, limit: int | None = None) -> list[TaskPrompt]:
    """Read prompts, the tasks taking turns, so that any first part of the list is a mixture.

    Args:
        paths: JSON-lines files, or directories of them; none: the prompts shipped with dspark. Each line is
            an object with `turns`, of which the first is used.
        limit: most prompts of one task, in the order of the file; None: all.

    Raises:
        ConfigurationError: a path or a line cannot be used; names it.
    """
    return in_turns([task[:limit] for task in read_files(paths)])


def read_files(paths: Sequence[Path] = ()) -> list[list[TaskPrompt]]:
    """All prompts of each file, as `read_tasks` reads them.

    Raises:
        ConfigurationError: a path or a line cannot be used; names it.
    """
    return [_read_task(file) for path in paths or (_OWN_PROMPTS,) for file in _files(path)]


def in_turns(tasks: Sequence[Sequence[TaskPrompt]]) -> list[TaskPrompt]:
    """The prompts of all tasks in one list, the first of each, then the second of each, and so on."""
    return [prompt for row in zip_longest(*tasks) for prompt in row if prompt is not None]


def subsample(prompts: Sequence[TaskPrompt], limit: int | None = None) -> list[TaskPrompt]:
    """The prompts of one task that DeepSpec would take: shuffled and cut, but only where there are too many.

    Args:
        prompts: of one task.
        limit: most of them, where that is less than DeepSpec takes.
    """
    limits = [MOST_PROMPTS.get(prompts[0].task) if prompts else None, limit]
    most = min([one for one in limits if one is not None], default=len(prompts))
    chosen = list(prompts)
    if len(chosen) > most:
        random.Random(_SUBSAMPLE_SEED).shuffle(chosen)
    return chosen[:most]


def domain_of(task: str) -> str:
    """Domain of a benchmark of the paper; a task that is none is a domain by itself."""
    return next((domain for domain, tasks in BENCHMARKS.items() if task in tasks), task)


def encode_prompts(prompts: Sequence[TaskPrompt], tokenizer: Any) -> list[TaskPrompt]:
    """Render each prompt as one user turn in the model's chat template.

    Args:
        prompts: as read.
        tokenizer: a transformers tokenizer of the target.
    """
    from dspark.training.responses import chat_prompt_ids

    return [
        TaskPrompt(one.task, one.index, one.text, tuple(chat_prompt_ids(tokenizer, one.text)))
        for one in prompts
    ]


def task_names(prompts: Sequence[TaskPrompt]) -> list[str]:
    """Names of the tasks in the order of their first prompts."""
    return list(dict.fromkeys(prompt.task for prompt in prompts))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigurationError(f"--prompts {path} does not exist; name a .jsonl file or a directory")
    files = sorted(path.glob("*.jsonl"))
    if not files:
        raise ConfigurationError(f"--prompts {path} holds no .jsonl file; each line of one must be {_FORM}")
    return files


def _read_task(file: Path) -> list[TaskPrompt]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [
        TaskPrompt(file.stem, index, _first_turn(line, f"{file}, line {index + 1}"))
        for index, line in enumerate(lines)
        if line.strip()
    ]


def _first_turn(line: str, where: str) -> str:
    try:
        turn = json.loads(line)["turns"][0]
    except (ValueError, KeyError, TypeError, IndexError):
        turn = None
    if not isinstance(turn, str) or not turn:
        raise ConfigurationError(f"{where}: expected {_FORM} with a text as its first turn")
    return turn
