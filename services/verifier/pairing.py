"""Whether a drafter fits the target, told before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dspark.decoding.types import DrafterInfo
from dspark.errors import ConfigurationError, ModelMismatchError


@dataclass(frozen=True, slots=True)
class TargetShape:
    """The sizes of a target that a drafter depends on."""

    name: str
    hidden_size: int
    vocab_size: int
    num_layers: int


def read_shape(path: Path) -> TargetShape:
    """Read the sizes from the `config.json` of a Hugging Face directory.

    Raises:
        ConfigurationError: there is none, or it lacks them.
    """
    try:
        config = json.loads((path / "config.json").read_text())
        config = config.get("text_config", config)
        return TargetShape(
            path.name, config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
        )
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"target {path} has no usable config.json ({error}); give a Hugging Face model directory"
        ) from error


class DrafterSizes(Protocol):
    """What a drafter's config and its service both say."""

    @property
    def hidden_size(self) -> int:
        """Hidden size of its target."""

    @property
    def vocab_size(self) -> int:
        """Vocabulary of its target."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Layers of the target it reads."""


def check_sizes(name: str, drafter: DrafterSizes, target: TargetShape) -> None:
    """Refuse a drafter that was trained for another target.

    Raises:
        ModelMismatchError: sizes differ, or it reads layers the target lacks.
    """
    for what, theirs, ours in (
        ("hidden size", drafter.hidden_size, target.hidden_size),
        ("vocabulary size", drafter.vocab_size, target.vocab_size),
    ):
        if theirs != ours:
            raise ModelMismatchError(
                f"drafter {name} was trained for {what} {theirs} and target {target.name} has {ours}; "
                "choose a drafter trained for this target"
            )
    if missing := [layer for layer in drafter.target_layer_ids if layer >= target.num_layers]:
        raise ModelMismatchError(
            f"drafter {name} reads layer {missing[0]} and target {target.name} has {target.num_layers} "
            "layers; choose a drafter trained for this target"
        )


def layer_check(target: TargetShape, layer_ids: Sequence[int]) -> Callable[[DrafterInfo], None]:
    """A check for drafters that connect while the verifier runs with these tapped layers."""

    def check(drafter: DrafterInfo) -> None:
        check_sizes(drafter.name, drafter, target)
        if drafter.target_layer_ids != tuple(layer_ids):
            raise ModelMismatchError(
                f"drafter {drafter.name} reads layers {list(drafter.target_layer_ids)} and this verifier "
                f"sends {list(layer_ids)}; restart the verifier to serve it"
            )

    return check
