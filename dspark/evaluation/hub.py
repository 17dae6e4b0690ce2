"""The paper's benchmarks from the Hugging Face Hub, with DeepSpec's prompts (its `eval_datasets`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspark.errors import ConfigurationError
from dspark.evaluation.tasks import MOST_PROMPTS, TaskPrompt

Row = Mapping[str, Any]
# Rows of a source; raises whatever the `datasets` package raises.
Loader = Callable[["Source"], Iterable[Row]]

_REASONING = "\nPlease reason step by step, and put your final answer within \\boxed{}."
_EXPERT = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will "
    "generate a correct Python program that matches the specification and passes all tests. You will NOT "
    "return anything except for the program"
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a benchmark lies on the Hub.

    Attributes:
        dataset: its repository.
        prompt: makes the user's text of a row.
        config: of the dataset, if it has several.
        files: to be read as JSON lines, where the repository has no loader that `datasets` still runs.
    """

    dataset: str
    prompt: Callable[[Row], str]
    split: str = "test"
    config: str | None = None
    files: tuple[str, ...] = ()


def read_hub_tasks(names: Sequence[str], load: Loader | None = None) -> list[list[TaskPrompt]]:
    """All prompts of some benchmarks, in the order of their datasets.

    Args:
        names: of `MOST_PROMPTS`.
        load: reads a source; None: the `datasets` package.

    Raises:
        ConfigurationError: no such benchmark, no `datasets` package, or the Hub does not give it.
    """
    for name in names:
        if name not in SOURCES:
            raise ConfigurationError(f"--tasks {name}: no such benchmark; choose of {', '.join(SOURCES)}")
    load = load or _load_with_datasets
    return [_read(name, SOURCES[name], load) for name in names]


def _read(name: str, source: Source, load: Loader) -> list[TaskPrompt]:
    try:
        rows = list(load(source))
    except ImportError as error:
        raise ConfigurationError(
            "--hub needs the `datasets` package; install it with pip install 'dspark[hub]', or name files "
            "with --prompts"
        ) from error
    except Exception as error:  # `datasets` raises errors of many libraries
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigurationError(
            f"--hub: {name} could not be read from {source.dataset}: {reason}; name files with --prompts"
        ) from error
    try:
        texts = [source.prompt(row) for row in rows]
    except (KeyError, TypeError, IndexError) as error:
        raise ConfigurationError(
            f"--hub: a row of {source.dataset} lacks {error}; its form has changed, name files with --prompts"
        ) from error
    return [TaskPrompt(name, index, text) for index, text in enumerate(texts)]


def _load_with_datasets(source: Source) -> Iterable[Row]:
    import datasets

    if source.files:
        paths = [f"hf://datasets/{source.dataset}/{file}" for file in source.files]
        rows: Iterable[Row] = datasets.load_dataset("json", data_files=paths, split="train")
    else:
        rows = datasets.load_dataset(source.dataset, source.config, split=source.split)
    return rows


def _humaneval(row: Row) -> str:
    told = "Write a solution to the following problem and make sure that it passes the tests:"
    return f"{told}\n```python\n{row['prompt']}\n```"


def _livecodebench(row: Row) -> str:
    form = "Write your code in the following format:\n```python\n# YOUR CODE HERE\n```"
    if row["starter_code"]:
        form = f"Use the following code structure:\n```python\n{row['starter_code']}\n```"
    question, answer = row["question_content"], "### Answer: (use the provided format with backticks)"
    return f"{_EXPERT}\n\n### Question:\n{question}\n\n### Format: {form}\n\n{answer}"


def _alpaca(row: Row) -> str:
    text: str = row["instruction"]
    return f"{text}\n\nInput:\n{row['input']}" if row["input"] else text


SOURCES: dict[str, Source] = {
    "gsm8k": Source("openai/gsm8k", lambda row: row["question"] + _REASONING, config="main"),
    "math500": Source("HuggingFaceH4/MATH-500", lambda row: row["problem"] + _REASONING),
    "aime25": Source("MathArena/aime_2025", lambda row: row["problem"] + _REASONING, split="train"),
    "mbpp": Source("google-research-datasets/mbpp", lambda row: row["prompt"], config="sanitized"),
    "humaneval": Source("openai/openai_humaneval", _humaneval),
    "livecodebench": Source(
        "livecodebench/code_generation_lite",
        _livecodebench,
        files=("test.jsonl", *(f"test{number}.jsonl" for number in range(2, 7))),
    ),
    "mt-bench": Source("HuggingFaceH4/mt_bench_prompts", lambda row: row["prompt"][0], split="train"),
    "alpaca": Source("tatsu-lab/alpaca", _alpaca, split="train"),
    "arena-hard-v2": Source(
        "lmarena-ai/arena-hard-auto",
        lambda row: row["prompt"],
        files=("data/arena-hard-v2.0/question.jsonl",),
    ),
}
assert set(SOURCES) == set(MOST_PROMPTS), "every benchmark has a source"
