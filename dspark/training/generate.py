"""Self-generation: the target answers prompts, and invents prompts, in large batches; resumes by id."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.decoding.stopping import cut_at_stop
from dspark.decoding.types import (
    Acceptance,
    FinishReason,
    OpenRequest,
    PrefillItem,
    SamplingParams,
    StopParams,
    VerifyItem,
    VerifyStatus,
)
from dspark.engine.target import TargetEngine
from dspark.errors import EngineError
from dspark.training.responses import chat_prompt_ids, read_rows

_NO_DRAFTS = np.empty(0, dtype=np.int32)
# Temperatures at which responses are made, besides greedily: serving meets them all.
TEMPERATURES = (0.3, 0.7, 1.0)
# What an invented user turn may begin with; the empty lead leaves the choice to the target. Half ask for
# code: the target itself asks for little of it, and it is what a drafter learns last.
LEADS = (
    "",
    "Write a Python function",
    "Solve",
    "Write a Python program",
    "Explain",
    "Complete this function and explain it:\n```python\ndef ",
    "How many",
    "Write a Python function that returns",
    "Write a",
    "Write a function to",
    "What is",
    "Implement",
    "Calculate",
    "Solve this problem in Python:\n```python\ndef ",
    "Describe",
    "Write a Python class",
    "A shop sells",
    "Fix this code:\n```python\n",
    "Give me",
    "Write code",
    "Why",
    "Given a list of",
)


@dataclass(frozen=True, slots=True)
class Job:
    """One text to generate."""

    job_id: str
    prompt_ids: tuple[int, ...]
    temperature: float
    seed: int
    # copied into the row that is written
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that ended.

    Attributes:
        states: what the engine said about each token of prompt and output, [T, *] as it hands features over;
            None unless states are kept.
    """

    job: Job
    output: list[int]
    reason: FinishReason
    states: npt.NDArray[np.generic] | None = None


@dataclass(slots=True)
class _Running:
    job: Job
    output: list[int]
    # why it ended, while the states of its last token are still to come
    reason: FinishReason | None = None
    states: list[npt.NDArray[np.generic]] = field(default_factory=list)


class BatchGenerator:
    """Decodes many jobs at once, plainly; a finished job makes room for the next."""

    def __init__(
        self,
        engine: TargetEngine,
        stop_token_ids: Iterable[int],
        *,
        max_new_tokens: int,
        max_running: int,
        keeps_states: bool = False,
    ) -> None:
        """Run nothing yet.

        Args:
            engine: one that feeds a drafter, if states are kept.
            stop_token_ids: end an output.
            max_new_tokens: of an output.
            max_running: jobs at once.
            keeps_states: whether the states of all tokens are handed out; a job takes one more step then.
        """
        self._engine = engine
        self._stop = StopParams(max_new_tokens, frozenset(stop_token_ids))
        self._max_running = max_running
        self._keeps_states = keeps_states
        self._running: dict[str, _Running] = {}

    def run(self, jobs: Iterator[Job]) -> Iterator[Finished]:
        """Yield each job with its output, as they finish.

        Raises:
            EngineError: the KV pages do not hold `max_running` jobs of this length.
        """
        waiting: list[PrefillItem] = []
        while True:
            while len(self._running) < self._max_running:
                job = next(jobs, None)
                if job is None:
                    break
                waiting.append(self._open(job))
            if not self._running:
                return
            opened = {item.request_id for item in waiting}
            decode = [
                VerifyItem(name, 1, len(one.job.prompt_ids) + len(one.output), _NO_DRAFTS)
                for name, one in self._running.items()
                if name not in opened
            ]
            result, states = self._engine.step([*decode, *waiting])
            waiting = []
            if self._keeps_states:
                for batch in states:
                    # a copy, or each row would keep those of the whole step
                    self._running[batch.request_id].states.append(batch.features.copy())
            for outcome in result.outcomes:
                if outcome.status is not VerifyStatus.COMMITTED:
                    raise EngineError(f"job {outcome.request_id} could not go on: {outcome.status.value}")
                done = self._commit(outcome.request_id, outcome.token_ids)
                if done is not None:
                    yield done

    def _open(self, job: Job) -> PrefillItem:
        is_greedy = job.temperature == 0
        sampling = SamplingParams(
            temperature=job.temperature,
            seed=job.seed,
            acceptance=Acceptance.GREEDY if is_greedy else Acceptance.REJECTION,
        )
        self._engine.open(OpenRequest(job.job_id, 1, job.prompt_ids, len(job.prompt_ids), sampling))
        self._running[job.job_id] = _Running(job, [])
        return PrefillItem(job.job_id, 1, len(job.prompt_ids))

    def _commit(self, name: str, token_ids: Sequence[int]) -> Finished | None:
        one = self._running[name]
        if one.reason is None:
            kept, one.reason = cut_at_stop(token_ids, len(one.output), self._stop)
            one.output.extend(kept)
            if one.reason is None or self._keeps_states:
                return None
        self._engine.close([name])
        del self._running[name]
        states = np.concatenate(one.states) if self._keeps_states else None
        return Finished(one.job, one.output, one.reason, states)


def response_jobs(
    prompts: Iterable[dict[str, Any]], tokenizer: Any, *, seed: int, skip: set[str], greedy_share: float
) -> Iterator[Job]:
    """A job per prompt row that is not done yet; temperature and seed depend on its id alone.

    Args:
        prompts: rows with `id` and `prompt`.
        tokenizer: of the target.
        seed: of all temperatures and samples.
        skip: ids that are done.
        greedy_share: share of the jobs at temperature 0; the other temperatures share the rest equally.
    """
    values = (0.0, *TEMPERATURES)
    shares = (greedy_share, *[(1 - greedy_share) / len(TEMPERATURES)] * len(TEMPERATURES))
    for row in prompts:
        if row["id"] in skip:
            continue
        rng = np.random.Generator(np.random.PCG64([seed, *row["id"].encode()]))
        temperature = float(rng.choice(values, p=shares))
        meta = {"id": row["id"], "prompt": row["prompt"], "source": row.get("source", "self")}
        ids = tuple(chat_prompt_ids(tokenizer, row["prompt"]))
        yield Job(row["id"], ids, temperature, int(rng.integers(2**63)), {**meta, "temperature": temperature})


def prompt_jobs(tokenizer: Any, count: int, *, seed: int, skip: set[str]) -> Iterator[Job]:
    """Jobs in which the target begins a user turn itself, at temperature 1."""
    text = tokenizer.apply_chat_template([{"role": "user", "content": "\0"}], tokenize=False)
    opening = text.split("\0")[0]
    for number in range(count):
        name = f"self-{seed}-{number}"
        if name in skip:
            continue
        lead = LEADS[number % len(LEADS)]
        ids = tuple(tokenizer(opening + lead, add_special_tokens=False).input_ids)
        rng = np.random.Generator(np.random.PCG64([seed, number]))
        yield Job(name, ids, 1.0, int(rng.integers(2**63)), {"id": name, "lead": lead})


def done_ids(path: Path) -> set[str]:
    """Ids of the rows a file already holds; a line cut off by a crash is dropped from the file."""
    if not path.is_file():
        return set()
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) != len(text):
        path.write_bytes(whole)
    return {row["id"] for row in read_rows(path)}


def write_rows(
    path: Path,
    results: Iterator[Finished],
    to_row: Callable[[Finished], dict[str, Any]],
    progress: Callable[[int, int], None],
    keep: Callable[[dict[str, Any], Finished], None] | None = None,
) -> None:
    """Append a row per result, at once.

    Args:
        path: of the file.
        results: what ended.
        to_row: what is written of it.
        progress: gets rows and output tokens so far.
        keep: gets each row that was written, and what it was made of.
    """
    num_rows = num_tokens = 0
    with path.open("a", encoding="utf-8") as file:
        for result in results:
            num_tokens += len(result.output)
            row = to_row(result)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            if keep is not None:
                keep(row, result)
            num_rows += 1
            progress(num_rows, num_tokens)
