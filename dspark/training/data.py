"""Text to train on: responses the target gives to prompts, and their features; every stage resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.engine.loading import LoadedTarget
from dspark.engine.target import TargetEngine, make_pool
from dspark.training.features import Add, build_cache
from dspark.training.generate import (
    BatchGenerator,
    Finished,
    Job,
    done_ids,
    prompt_jobs,
    response_jobs,
    write_rows,
)
from dspark.training.kept_features import with_last_state
from dspark.training.responses import Sample, read_rows, to_samples

Report = Callable[[str], None]
MAX_PROMPT_TOKENS = 160
MIN_PROMPT_CHARS = 12


@dataclass(frozen=True, slots=True)
class DataPlan:
    """What text to train on.

    Attributes:
        prompt_files: JSON-lines files with a `prompt` per row.
        response_files: JSON-lines files with ready responses of this target.
        num_self_prompts: prompts the target invents.
        max_new_tokens: longest response.
        max_tokens: longest sample; longer ones are left out.
        batch: responses generated at once.
        greedy_share: share of the generated responses that are made greedily.
    """

    prompt_files: tuple[Path, ...] = ()
    response_files: tuple[Path, ...] = ()
    num_self_prompts: int = 0
    max_new_tokens: int = 400
    max_tokens: int = 900
    batch: int = 96
    greedy_share: float = 0.4
    seed: int = 0

    @property
    def generates(self) -> bool:
        """Whether the target answers prompts, besides what is ready."""
        return bool(self.prompt_files) or self.num_self_prompts > 0


def generate_data(
    work: Path,
    engine: TargetEngine,
    tokenizer: Any,
    plan: DataPlan,
    report: Report,
    keep: Callable[[Sample, npt.NDArray[np.generic]], None] | None = None,
) -> None:
    """Write `prompts.jsonl` (invented) and `responses.jsonl` into the work directory, resuming by id.

    Args:
        work: the directory.
        engine: of the target; one that feeds a drafter if anything is to be kept.
        tokenizer: of the target.
        plan: what to generate.
        report: told how far it is.
        keep: gets each response that will be trained on, in the order of the file, and the states of its
            tokens, [T, *] as the engine hands features over.
    """

    def generate(jobs: Iterator[Job], max_new_tokens: int, *, keeps: bool = False) -> Iterator[Finished]:
        generator = BatchGenerator(
            engine,
            engine.info.eos_token_ids,
            max_new_tokens=max_new_tokens,
            max_running=plan.batch,
            keeps_states=keeps,
        )
        return generator.run(jobs)

    def keep_states(row: dict[str, Any], result: Finished) -> None:
        for sample in samples_of([row], tokenizer, plan, engine.info.eos_token_ids[0]):
            assert keep is not None, "only then are states kept"
            assert result.states is not None, "the generator was told to"
            assert len(result.states) == len(sample.token_ids), row["id"]
            keep(sample, result.states)

    invented = work / "prompts.jsonl"
    if plan.num_self_prompts:
        jobs = prompt_jobs(tokenizer, plan.num_self_prompts, seed=plan.seed, skip=done_ids(invented))
        write_rows(
            invented,
            generate(jobs, MAX_PROMPT_TOKENS),
            _prompt_row(tokenizer, engine),
            _every(report, "prompts: {} written, {} tokens generated", 100),
        )
    prompts: list[dict[str, Any]] = []
    for path in (*plan.prompt_files, *((invented,) if invented.is_file() else ())):
        rows = [{"id": f"{path.stem}-{number}", **row} for number, row in enumerate(read_rows(path))]
        prompts += [row for row in rows if "refused" not in row]
    responses = work / "responses.jsonl"
    todo = response_jobs(
        prompts, tokenizer, seed=plan.seed, skip=done_ids(responses), greedy_share=plan.greedy_share
    )
    write_rows(
        responses,
        generate(todo, plan.max_new_tokens, keeps=keep is not None),
        _response_row(tokenizer),
        _every(report, "responses: {} written, {} tokens generated", 200),
        keep_states if keep is not None else None,
    )


def _prompt_row(tokenizer: Any, engine: TargetEngine) -> Callable[[Finished], dict[str, Any]]:
    def to_row(one: Finished) -> dict[str, Any]:
        row = {"id": one.job.job_id, "source": "self", "finish_reason": one.reason.value}
        # A refused prompt stays in the file, so that it is not made again.
        if one.output[-1] not in engine.info.eos_token_ids:
            return {**row, "refused": "no end"}
        text = (one.job.meta["lead"] + tokenizer.decode(one.output[:-1])).strip()
        return {**row, "prompt": text} if len(text) >= MIN_PROMPT_CHARS else {**row, "refused": "too short"}

    return to_row


def _response_row(tokenizer: Any) -> Callable[[Finished], dict[str, Any]]:
    def to_row(one: Finished) -> dict[str, Any]:
        text = tokenizer.decode(one.output, skip_special_tokens=True)
        return {
            **one.job.meta,
            "response": text,
            "response_ids": one.output,
            "finish_reason": one.reason.value,
        }

    return to_row


def _every(report: Report, text: str, interval: int) -> Callable[[int, int], None]:
    """Report `text` with both figures whenever the first has grown by `interval`."""
    seen = 0

    def progress(first: int, second: int) -> None:
        nonlocal seen
        if first - seen >= interval:
            seen = first
            report(text.format(first, second))

    return progress


def samples_of(
    rows: Iterable[dict[str, Any]], tokenizer: Any, plan: DataPlan, eos_token_id: int
) -> Iterator[Sample]:
    """The responses of a file that are trained on: those that fit `max_tokens`."""
    found = to_samples(rows, tokenizer, eos_token_id=eos_token_id, max_response_len=plan.max_new_tokens)
    return (sample for sample in found if len(sample.token_ids) <= plan.max_tokens)


def collect_samples(
    files: tuple[Path, ...], tokenizer: Any, plan: DataPlan, eos_token_id: int
) -> list[Sample]:
    """Samples of all response files that fit `max_tokens`."""
    return [sample for path in files for sample in samples_of(read_rows(path), tokenizer, plan, eos_token_id)]


def cache_features(
    directory: Path,
    samples: list[Sample],
    target: LoadedTarget,
    layer_ids: tuple[int, ...],
    report: Report,
    cache_dir: Path,
    more: Callable[[Add], None] | None = None,
) -> list[Sample]:
    """Write features of all samples and of `more`; undamaged ones that lie there are not computed again."""
    return build_cache(
        directory,
        samples,
        target,
        layer_ids,
        progress=_every(report, "features: {} of {} tokens", 50_000),
        cache_dir=cache_dir,
        more=more,
    )


def training_engine(
    target: LoadedTarget, cache_dir: Path, plan: DataPlan, *, keeps_states: bool = False
) -> TargetEngine:
    """A target engine whose pages hold one batch of generation; it may hand out what a cache holds."""
    tokens = plan.batch * (plan.max_new_tokens + 512)
    pool = make_pool(target, tokens, cache_dir)
    return TargetEngine(with_last_state(target) if keeps_states else target, pool, feeds_drafter=keeps_states)
