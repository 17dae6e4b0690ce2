"""The card beside a drafter, for people and for programs: what it is, what made it, how well it drafts."""

from __future__ import annotations

import json
from pathlib import Path

from dspark.errors import ModelMismatchError
from dspark.models.config import DrafterConfig
from dspark.models.summary import describe_heads, describe_layers
from dspark.training.calibrate import CalibrationResult
from dspark.training.feature_source import FeatureSource
from dspark.training.recipe import Recipe

RECORD = "training.json"
_COUNTS = ("blocks", "step", "hours", "peak_memory_mib")
_HELD_OUT = ("held_out_loss", "mean_committed_greedy", "mean_committed_sampled", "agree_first")


def write_card(
    directory: Path,
    config: DrafterConfig,
    *,
    command: str,
    cache: FeatureSource,
    metrics: dict[str, float],
    result: CalibrationResult,
    recipe: Recipe,
) -> None:
    """Write `README.md` and `training.json` from the run's own figures."""
    response_tokens = int((cache.index[:, 1] - cache.index[:, 2]).sum())
    loss = recipe.loss
    lines = [
        f"# {config.kind} drafter",
        "",
        f"- Shape: {describe_layers(config)}, gamma {config.gamma}, target layers "
        f"{list(config.target_layer_ids)}, {describe_heads(config)}, draft vocabulary "
        f"{config.num_draft_tokens} of {config.vocab_size}.",
        f"- Made by: `{command}`",
        f"- Data: {len(cache)} responses of the target, {response_tokens} response tokens.",
        f"- Training: {metrics['blocks']:.0f} blocks in "
        f"{metrics['step']:.0f} steps, {metrics['hours']:.2f} hours, at most "
        f"{metrics['peak_memory_mib']:.0f} MiB resident.",
        f"- Losses: {loss.hard:g} cross entropy of the label, {loss.soft:g} of the distribution, {loss.tv:g} "
        f"total variation, {loss.confidence:g} confidence; position weights fall by e in "
        f"{recipe.position_decay:g} slots; {recipe.optimiser}, {recipe.schedule}, anchors as in "
        f"{recipe.anchors}.",
        "- Held out, teacher-forced, tokens committed per round: "
        f"{metrics['mean_committed_greedy']:.2f} greedy, "
        f"{metrics['mean_committed_sampled']:.2f} sampled at temperature 1.",
        "",
        "Calibration error of the survival (percent, position 1 to gamma), held out:",
        "",
        "| | before | after |",
        "|---|---|---|",
        f"| greedy | {_percent(result.greedy_before)} | {_percent(result.greedy_after)} |",
        f"| sampled | {_percent(result.sampling_before)} | {_percent(result.sampling_after)} |",
        "",
    ]
    (directory / "README.md").write_text("\n".join(lines))
    record = {
        "command": command,
        "responses": len(cache),
        "response_tokens": response_tokens,
        **{name: metrics[name] for name in (*_COUNTS, *_HELD_OUT)},
    }
    (directory / RECORD).write_text(json.dumps(record, indent=2) + "\n")


def read_budget(directory: Path) -> dict[str, float]:
    """What a drafter was trained on, as its record says; empty without one.

    Returns:
        `trained_blocks`, `trained_hours` and `response_tokens`.

    Raises:
        ModelMismatchError: the record is damaged.
    """
    path = directory / RECORD
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text())
        return {
            "trained_blocks": int(record["blocks"]),
            "trained_hours": round(float(record["hours"]), 3),
            "response_tokens": int(record["response_tokens"]),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ModelMismatchError(f"{path} is damaged ({error!r}); remove it or train again") from error


def _percent(errors: list[float]) -> str:
    return " ".join(f"{100 * error:.1f}" for error in errors)
