"""Figures of `dspark bench speed` from its samples. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dspark.decoding.types import VerifierInfo
from dspark.evaluation.acceptance import mean_committed
from dspark.evaluation.generation import Generation, TimedRound
from dspark.evaluation.speed import Sample
from dspark.evaluation.tasks import TaskPrompt
from dspark.evaluation.verdict import Check


@dataclass(frozen=True, slots=True)
class SystemSpeed:
    """Tokens per second of one system.

    Attributes:
        overall: all tokens over all seconds, each group counted with the median of its repeats.
        by_group: of each group, the median of its repeats.
    """

    overall: float
    by_group: tuple[float, ...]

    def as_dict(self) -> dict[str, float]:
        """For the report."""
        spread = {"median": median(self.by_group), "min": min(self.by_group), "max": max(self.by_group)}
        return {"overall": self.overall, **spread}


def system_speed(samples: Sequence[Sample], system: str) -> SystemSpeed:
    """Speed of a system over its samples."""
    own = [sample for sample in samples if sample.system == system]
    num_tokens = seconds = 0.0
    by_group = []
    for group in sorted({sample.group for sample in own}):
        repeats = [sample for sample in own if sample.group == group]
        group_s = median(sample.seconds for sample in repeats)
        group_tokens = median(sample.num_tokens for sample in repeats)
        by_group.append(group_tokens / group_s)
        num_tokens, seconds = num_tokens + group_tokens, seconds + group_s
    return SystemSpeed(num_tokens / seconds, tuple(by_group))


def committed_by_task(
    samples: Sequence[Sample], groups: Sequence[Sequence[TaskPrompt]], *, system: str
) -> dict[str, float]:
    """Mean committed tokens per round of a system that has rounds, by task; every repeat counts."""
    by_task: dict[str, list[Generation]] = {}
    for sample in samples:
        if sample.system != system:
            continue
        for prompt, output in zip(groups[sample.group], sample.outputs, strict=True):
            if output.generation is not None:
                by_task.setdefault(prompt.task, []).append(output.generation)
    return {task: mean_committed(own) for task, own in by_task.items()}


def round_times(rounds: Sequence[TimedRound]) -> dict[str, float]:
    """Mean milliseconds of a round's parts, over rounds that verified and prefilled nothing."""
    own = [one for one in rounds if one.report.verified and not one.report.num_prefill_tokens]
    if not own:
        return {}
    draft_s = sum(one.report.draft_s for one in own) / len(own)
    verify_s = sum(one.report.verify_s for one in own) / len(own)
    wall_s = sum(one.wall_s for one in own) / len(own)
    parts = {"draft": draft_s, "verify": verify_s, "other": wall_s - draft_s - verify_s, "round": wall_s}
    return {name: 1e3 * seconds for name, seconds in parts.items()}


def plain_step_s(rounds: Sequence[TimedRound]) -> float | None:
    """Median seconds of a step of one token; None where there was none."""
    seconds = [one.report.verify_s for one in rounds if one.report.verified and one.report.batch_tokens == 1]
    return median(seconds) if seconds else None


def differing_prompts(
    samples: Sequence[Sample], groups: Sequence[Sequence[TaskPrompt]], *, first: str, second: str
) -> list[str]:
    """Names of the prompts of which two systems made different texts."""
    texts: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for sample in samples:
        for prompt, output in zip(groups[sample.group], sample.outputs, strict=True):
            texts.setdefault((sample.system, prompt.name), set()).add(output.token_ids)
    names = dict.fromkeys(prompt.name for group in groups for prompt in group)
    return [name for name in names if len(texts[first, name] | texts[second, name]) > 1]


def same_text_check(name: str, differing: Sequence[str], info: VerifierInfo) -> Check:
    """Greedy texts may differ only where logits depend on the batch."""
    found = f"differs: {', '.join(differing)}" if differing else "identical"
    if info.is_exact:
        return Check(name, found, "identical", not differing)
    return Check(name, found, f"shown only, not exact: {info.exact_reason or 'unknown'}", True)
