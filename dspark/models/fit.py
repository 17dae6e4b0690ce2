"""Whether a drafter belongs to a target, and whether its tensors are those its configuration asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from dspark.errors import ModelMismatchError
from dspark.models.config import DrafterConfig
from dspark.models.kinds import make_drafter

Shape = tuple[int, ...]

_SHOWN = 4
# Copies of the target's rows, which a file may hold.
COPIES = ("embed_tokens", "lm_head")


def check_target(config: DrafterConfig, target: Path) -> None:
    """Compare with the `config.json` of a target directory.

    Raises:
        ModelMismatchError: the drafter was made for another target; names what differs.
    """
    text = read_target_config(target)
    if config.is_gemma and not str(text["model_type"]).startswith("gemma4"):
        raise ModelMismatchError(
            f"a {config.architecture} drafts for Gemma 4, "
            f"but {target} is of the family {text['model_type']!r}"
        )
    pairs = {
        "vocab_size": (config.vocab_size, text["vocab_size"]),
        "hidden_size": (config.hidden_size, text["hidden_size"]),
        "num_target_layers": (config.num_target_layers, text["num_hidden_layers"]),
    }
    differ = [f"{key} {mine} against {its}" for key, (mine, its) in pairs.items() if mine != its]
    if differ:
        raise ModelMismatchError(
            f"the drafter was made for another target than {target}: {', '.join(differ)}; "
            "pass the pair that belongs together"
        )


def check_tensors(config: DrafterConfig, shapes: Mapping[str, Shape], where: str) -> None:
    """Compare the tensors of a file, by name and shape, with those of the configuration.

    Raises:
        ModelMismatchError: a tensor is missing, has another shape, or belongs to nothing.
    """
    expected = expected_shapes(config)
    if missing := expected.keys() - shapes.keys():
        raise ModelMismatchError(f"{where} lacks {_named(missing)}; {_reason(config, missing)}")
    optional = {f"{name}.weight": (rows, config.hidden_size) for name, rows in _copied_rows(config).items()}
    known = {**expected, **optional}
    if unknown := shapes.keys() - known.keys():
        raise ModelMismatchError(
            f"{where} holds {_named(unknown)}, which nothing here would use; {_reason(config, unknown)}"
        )
    for key in sorted(shapes):
        if shapes[key] != known[key]:
            raise ModelMismatchError(
                f"{where}: {key} has shape {shapes[key]}, the configuration says {known[key]}"
            )


def expected_shapes(config: DrafterConfig) -> dict[str, Shape]:
    """Tensors that a file must hold, by DeepSpec's names."""
    with torch.device("meta"):
        rows = torch.empty(config.vocab_size, config.hidden_size)
        ids = torch.empty(config.num_draft_tokens, dtype=torch.int64)
        state = make_drafter(config, rows, rows, ids, norm=rows[0]).state_dict()
    shapes = {key.removeprefix("backbone."): tuple(value.shape) for key, value in state.items()}
    if not config.draft_vocab_size:
        del shapes["d2t"]
    return shapes


def _copied_rows(config: DrafterConfig) -> dict[str, int]:
    return dict(zip(COPIES, (config.vocab_size, config.num_draft_tokens), strict=True))


def _reason(config: DrafterConfig, keys: Iterable[str]) -> str:
    """What in the configuration the first of these tensors hangs on."""
    first = min(keys)
    if first.startswith("markov_head"):
        kind = config.markov_head_type
        return f"config.json has markov_rank {config.markov_rank} and markov_head_type {kind!r}"
    if first.startswith("confidence_head"):
        return f"config.json has enable_confidence_head {config.has_confidence_head}"
    if first == "d2t":
        return f"config.json has draft_vocab_size {config.draft_vocab_size}, and the two come together"
    return (
        f"config.json describes a {config.architecture} of {config.num_hidden_layers} layers "
        f"with attention_bias {config.attention_bias} and attention_k_eq_v {config.attention_k_eq_v}"
    )


def _named(keys: Iterable[str]) -> str:
    names = sorted(keys)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def read_target_config(target: Path) -> dict[str, Any]:
    """The `config.json` of a target, or the part of it about text.

    Raises:
        ModelMismatchError: it is not there, or not of a target; says what it lacks.
    """
    path = target / "config.json"
    try:
        document = json.loads(path.read_text())
        text: dict[str, Any] = document.get("text_config") or document
    except (OSError, ValueError, AttributeError) as error:
        raise ModelMismatchError(f"{path} is not the config of a target: {error}") from None
    for key in ("model_type", "vocab_size", "hidden_size", "num_hidden_layers"):
        if key not in text:
            raise ModelMismatchError(f"{path} is not the config of a target: it lacks {key}")
    return text
