import json
import random
from types import SimpleNamespace

import pytest

from dspark.errors import ConfigurationError
from dspark.evaluation.tasks import (
    MOST_PROMPTS,
    TaskPrompt,
    domain_of,
    encode_prompts,
    read_tasks,
    subsample,
    task_names,
)


def write(path, *rows):
    path.write_text("".join(f"{row}\n" for row in rows))


def test_the_shipped_prompts_are_eight_of_each_kind_taking_turns():
    prompts = read_tasks()
    assert task_names(prompts) == ["chat", "code", "math"]
    assert [prompt.task for prompt in prompts[:4]] == ["chat", "code", "math", "chat"]
    assert len(prompts) == 24
    assert len({prompt.text for prompt in prompts}) == 24


def test_a_directory_gives_the_first_turn_of_the_first_rows_of_each_file(tmp_path):
    write(tmp_path / "b.jsonl", json.dumps({"turns": ["b0", "ignored"]}), json.dumps({"turns": ["b1"]}))
    write(tmp_path / "a.jsonl", json.dumps({"turns": ["a0"]}), "", json.dumps({"turns": ["a2"]}))
    (tmp_path / "notes.txt").write_text("not a task")
    assert [(p.name, p.text) for p in read_tasks([tmp_path], limit=2)] == [
        ("a-0", "a0"),
        ("b-0", "b0"),
        ("a-2", "a2"),
        ("b-1", "b1"),
    ]
    assert [p.name for p in read_tasks([tmp_path / "b.jsonl"], limit=1)] == ["b-0"]


@pytest.mark.parametrize("row", ["{", "[]", '{"turns": []}', '{"turns": [3]}', '{"turns": [""]}'])
def test_a_row_without_a_first_turn_is_named_by_file_and_line(tmp_path, row):
    write(tmp_path / "a.jsonl", json.dumps({"turns": ["fine"]}), row)
    with pytest.raises(ConfigurationError, match=r'a\.jsonl, line 2: expected {"turns"'):
        read_tasks([tmp_path])


def test_a_path_without_tasks_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"holds no \.jsonl file"):
        read_tasks([tmp_path])
    with pytest.raises(ConfigurationError, match="does not exist"):
        read_tasks([tmp_path / "missing"])


def prompts_of(task, number):
    return [TaskPrompt(task, index, str(index)) for index in range(number)]


def test_too_many_prompts_are_shuffled_and_cut_as_deepspec_does_and_others_stay_in_order():
    order = list(range(257))
    random.Random(980406).shuffle(order)
    assert [one.index for one in subsample(prompts_of("mbpp", 257))] == order[:256]
    assert [one.index for one in subsample(prompts_of("mbpp", 257), 8)] == order[:8]
    assert [one.index for one in subsample(prompts_of("mbpp", 256))] == list(range(256))
    assert [one.index for one in subsample(prompts_of("mine", 1000))] == list(range(1000))
    assert subsample([], 8) == []


def test_the_nine_benchmarks_have_three_domains_and_others_are_domains_of_their_own():
    assert [domain_of(task) for task in MOST_PROMPTS] == ["math"] * 3 + ["code"] * 3 + ["chat"] * 3
    assert domain_of("mine") == "mine"


class Spelling:
    """A tokenizer whose tokens are characters."""

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize):
        assert not tokenize
        assert add_generation_prompt
        return f"<{messages[0]['role']}>{messages[0]['content']}<assistant>"

    def __call__(self, text, *, add_special_tokens):
        assert not add_special_tokens

        return SimpleNamespace(input_ids=[ord(character) for character in text])


def test_prompts_are_encoded_as_one_user_turn_in_the_chat_template():
    (first, *_) = encode_prompts(read_tasks(limit=1), Spelling())
    assert "".join(map(chr, first.token_ids)) == f"<user>{first.text}<assistant>"
