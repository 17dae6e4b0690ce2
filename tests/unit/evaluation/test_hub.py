"""Benchmarks of the Hub, whose rows are given here."""

import pytest

from dspark.errors import ConfigurationError
from dspark.evaluation.hub import SOURCES, read_hub_tasks
from dspark.evaluation.tasks import MOST_PROMPTS

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
ROWS = {
    "gsm8k": ({"question": "q"}, "q" + BOXED),
    "math500": ({"problem": "p"}, "p" + BOXED),
    "aime25": ({"problem": "p"}, "p" + BOXED),
    "mbpp": ({"prompt": "m"}, "m"),
    "humaneval": (
        {"prompt": "def f():\n"},
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        "```python\ndef f():\n\n```",
    ),
    "mt-bench": ({"prompt": ["one", "two"]}, "one"),
    "alpaca": ({"instruction": "do", "input": ""}, "do"),
    "arena-hard-v2": ({"prompt": "a"}, "a"),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_become_the_prompts_of_deepspec(name):
    row, text = ROWS[name]
    ((prompt,),) = read_hub_tasks([name], lambda source: [row])
    assert (prompt.task, prompt.index, prompt.text) == (name, 0, text)


def test_an_input_of_alpaca_comes_behind_its_instruction():
    ((prompt,),) = read_hub_tasks(["alpaca"], lambda source: [{"instruction": "do", "input": "it"}])
    assert prompt.text == "do\n\nInput:\nit"


@pytest.mark.parametrize(
    ("starter", "form"),
    [
        ("", "Write your code in the following format:\n```python\n# YOUR CODE HERE\n```"),
        ("class A:", "Use the following code structure:\n```python\nclass A:\n```"),
    ],
)
def test_livecodebench_shows_the_code_to_start_from_where_there_is_any(starter, form):
    row = {"question_content": "Q", "starter_code": starter}
    ((prompt,),) = read_hub_tasks(["livecodebench"], lambda source: [row])
    end = f"### Question:\nQ\n\n### Format: {form}\n\n### Answer: (use the provided format with backticks)"
    assert prompt.text.startswith("You are an expert Python programmer.")
    assert prompt.text.endswith(end)


def test_every_benchmark_has_a_source_and_each_is_read_of_its_own():
    asked = []
    read_hub_tasks(list(SOURCES)[:2], lambda source: asked.append(source.dataset) or [])
    assert asked == ["openai/gsm8k", "HuggingFaceH4/MATH-500"]
    assert len(SOURCES) == len(MOST_PROMPTS) == 9


def failing(error):
    def load(source):
        raise error

    return load


def test_what_keeps_the_hub_from_being_read_is_told_with_the_mend():
    with pytest.raises(ConfigurationError, match="no such benchmark; choose of gsm8k"):
        read_hub_tasks(["gsm9k"])
    with pytest.raises(ConfigurationError, match=r"install it with pip install 'dspark\[hub\]'"):
        read_hub_tasks(["gsm8k"], failing(ModuleNotFoundError("datasets")))
    with pytest.raises(ConfigurationError, match="gsm8k could not be read from openai/gsm8k: no route; name"):
        read_hub_tasks(["gsm8k"], failing(OSError("no route\nat all")))
    with pytest.raises(ConfigurationError, match="lacks 'question'"):
        read_hub_tasks(["gsm8k"], lambda source: [{}])
