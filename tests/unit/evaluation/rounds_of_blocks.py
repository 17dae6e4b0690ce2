"""Rounds written down by hand, for the tests of offline figures."""

import numpy as np

from dspark.evaluation.offline.results import DECIMALS, Pass, PassKind, Results, Rounds


def rounds(*rows, logits=None):
    """Rounds given as (prompt, start, scheduled, accepted, committed)."""
    columns = np.array(rows, dtype=np.int32).reshape(-1, 5)
    table = None if logits is None else np.array(logits, dtype=np.float32)
    return Rounds(*columns.T, logits=table)


def random_rounds(num_rounds, gamma, *, num_prompts=4, seed=0, scale=1.0):
    """Whole blocks whose drafts survive as the logits say, each logit then multiplied by `scale`."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.5, 1.0, (num_rounds, gamma))
    survives = np.cumprod(rng.random((num_rounds, gamma)) < 1 / (1 + np.exp(-logits)), axis=1)
    accepted = survives.sum(axis=1)
    prompts = np.sort(rng.integers(0, num_prompts, num_rounds))
    starts = np.arange(num_rounds) + 1
    columns = [prompts, starts, np.full(num_rounds, gamma), accepted, accepted + 1]
    kept = (scale * logits).astype(np.float32).round(DECIMALS)
    return Rounds(*(one.astype(np.int32) for one in columns), logits=kept)


def results(passes, tasks=("gsm8k", "gsm8k", "mbpp", "mbpp"), gamma=4, limit=1000, **others):
    return Results({"target": "t", "gamma": gamma}, gamma, limit, tuple(tasks), tuple(passes), **others)


def full_pass(own, temperature=0.0):
    return Pass(PassKind.FULL, temperature, own)
