"""Prompts of several kinds, since drafts are accepted more often in code than in talk."""

from __future__ import annotations

import random

PROMPTS: dict[str, tuple[str, ...]] = {
    "code": (
        "Write a Python function that returns the n-th Fibonacci number.",
        "Write a Python function that checks whether a string is a palindrome.",
        "Write a SQL query that lists the ten customers with the most orders.",
        "Write a JavaScript function that removes duplicates from an array.",
    ),
    "maths": (
        "A train travels 60 km in 45 minutes. How far does it travel in two hours? Explain step by step.",
        "Anna has 12 apples and gives a third of them away. How many are left? Explain.",
        "What is the sum of the first 20 even numbers? Show your steps.",
        "A shirt costs 40 dollars and is reduced by 15 percent. What does it cost now?",
    ),
    "chat": (
        "What should I look at on a first visit to Rome?",
        "Explain how a bicycle stays upright to a ten year old.",
        "Give me three tips for sleeping better.",
        "Write a short letter that thanks a neighbour for watering the plants.",
    ),
}


def choose(rng: random.Random) -> tuple[str, str]:
    """One prompt at random, with its kind; kinds are equally likely."""
    kind = rng.choice(sorted(PROMPTS))
    return kind, rng.choice(PROMPTS[kind])
