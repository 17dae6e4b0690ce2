"""Which responses are generated, and how."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from dspark.training.generate import TEMPERATURES, Job, response_jobs

PROMPTS = [{"id": f"p-{number}", "prompt": f"prompt {number}"} for number in range(2000)]


class FakeTokenizer:
    """One token per character, and a template of nothing but the text."""

    def apply_chat_template(self, turns: list[dict[str, str]], **_: Any) -> str:
        return turns[0]["content"]

    def __call__(self, text: str, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[ord(one) for one in text])


def jobs(greedy_share: float, skip: set[str] | None = None, seed: int = 3) -> list[Job]:
    found = response_jobs(PROMPTS, FakeTokenizer(), seed=seed, skip=skip or set(), greedy_share=greedy_share)
    return list(found)


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_the_greedy_share_is_made_at_temperature_0_and_the_rest_at_the_others_alike(share: float) -> None:
    # Each count is off by more than 5 standard deviations in fewer than 1 of 10^6 seeds; the seed is fixed.
    found = Counter(job.temperature for job in jobs(share))
    expected = {0.0: share} | {value: (1 - share) / len(TEMPERATURES) for value in TEMPERATURES}
    for value, part in expected.items():
        deviation = (len(PROMPTS) * part * (1 - part)) ** 0.5
        assert abs(found[value] - len(PROMPTS) * part) <= 5 * deviation, value


def test_a_job_is_the_same_whatever_was_done_before_it() -> None:
    all_of_them = {job.job_id: job for job in jobs(0.6)}
    rest = jobs(0.6, skip={"p-0", "p-7"})
    assert {job.job_id for job in rest} == all_of_them.keys() - {"p-0", "p-7"}
    assert all(all_of_them[job.job_id] == job for job in rest)
