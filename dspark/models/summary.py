"""Says in words what a drafter directory holds and whether it fits a target, without loading its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dspark.errors import ModelMismatchError
from dspark.models.checkpoint import WEIGHTS
from dspark.models.config import DrafterConfig
from dspark.models.config_file import read_config
from dspark.models.deepseek_v4 import holds_mtp, read_mtp_shapes
from dspark.models.fit import COPIES, Shape, check_target, check_tensors
from dspark.models.speculators_format import is_speculators


@dataclass(frozen=True, slots=True)
class DrafterSummary:
    """A drafter directory whose tensors are those of its configuration.

    Attributes:
        config: its shape.
        num_parameters: of its own tensors, copies of the target's rows not counted.
        copies: which of the target's rows its file holds as well.
        is_deepseek_v4: whether its tensors have the names of DeepSeek-V4.
    """

    config: DrafterConfig
    num_parameters: int
    copies: tuple[str, ...]
    is_deepseek_v4: bool = False

    def __str__(self) -> str:
        config = self.config
        taps = ",".join(map(str, config.target_layer_ids))
        parts = [
            f"{config.kind} ({config.architecture})",
            describe_layers(config),
            f"gamma {config.gamma}",
            describe_heads(config),
            "reads the last hidden state"
            if config.reads_last_state
            else f"taps {taps} of {config.num_target_layers} layers",
            f"{self.num_parameters / 1e6:.1f} M parameters",
        ]
        if config.draft_vocab_size:
            parts.append(f"drafts {config.draft_vocab_size} of {config.vocab_size} tokens")
        if self.is_deepseek_v4:
            parts.append("in DeepSeek-V4's naming (mtp.*)")
        if self.copies:
            parts.append(f"with copies of {' and '.join(self.copies)}")
        return ", ".join(parts)


def summarise(directory: Path) -> DrafterSummary:
    """Read the config and the names and shapes of the tensors.

    Raises:
        ModelMismatchError: it is no drafter that can be run here; says why.
    """
    config, is_v4 = read_config(directory), holds_mtp(directory)
    shapes = read_mtp_shapes(directory) if is_v4 else _read_shapes(directory / WEIGHTS)
    if is_speculators(directory):
        shapes.pop("t2d", None)
    check_tensors(config, shapes, str(directory / WEIGHTS))
    copies = tuple(name for name in COPIES if f"{name}.weight" in shapes)
    others = {f"{name}.weight" for name in COPIES} | {"d2t"}
    num_parameters = sum(math.prod(shape) for key, shape in shapes.items() if key not in others)
    return DrafterSummary(config, num_parameters, copies, is_v4)


def check_pair(directory: Path, target: Path) -> None:
    """Whether the drafter belongs to the target, as far as configurations say.

    Raises:
        ModelMismatchError: it does not; says what differs.
    """
    check_target(read_config(directory), target)


def describe_layers(config: DrafterConfig) -> str:
    """The draft layers in words."""
    return "1 layer" if config.num_hidden_layers == 1 else f"{config.num_hidden_layers} layers"


def describe_heads(config: DrafterConfig) -> str:
    """The heads in words."""
    if config.is_chain:
        return "one draft per call (confidence is the probability of the best draft)"
    markov = (
        f"{config.markov_head_type} Markov head of rank {config.markov_rank}"
        if config.markov_rank
        else "no Markov head"
    )
    if not config.has_confidence_head:
        return f"{markov}, no confidence head (confidence is the probability of the best draft)"
    reads = "with" if config.confidence_head_with_markov else "without"
    return f"{markov}, confidence head {reads} Markov features"


def _read_shapes(path: Path) -> dict[str, Shape]:
    try:
        with safe_open(path, "pt") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelMismatchError(f"{path} cannot be read: {error}") from None
