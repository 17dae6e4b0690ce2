"""Drafter directories: DeepSpec's `config.json` and `model.safetensors`, plus `d2t` for a reduced vocabulary.

Those in the convention of `speculators` are read too (see speculators_format.py).

Written files leave out `embed_tokens` and `lm_head`: they are the target's, and a loader aliases them.
Published DeepSpec files hold copies (DeepSpec section 1.7). One that is the target's, bit for bit, is
skipped; one that differs is kept and used, since it is what the drafter was trained with.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dspark.errors import ModelMismatchError
from dspark.models.config import DrafterConfig
from dspark.models.config_file import read_config, write_config
from dspark.models.deepseek_v4 import holds_mtp, read_mtp
from dspark.models.drafter import Drafter
from dspark.models.fit import COPIES, check_target, check_tensors
from dspark.models.kinds import make_drafter
from dspark.models.speculators_format import is_speculators, map_from_offsets

WEIGHTS = "model.safetensors"
# As models of text name them, and as models of text and images do.
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "")
_EMBED_NAMES = tuple(f"{prefix}embed_tokens.weight" for prefix in _PREFIXES)
_HEAD_NAMES = ("lm_head.weight", "language_model.lm_head.weight", *_EMBED_NAMES)
_NORM_NAMES = tuple(f"{prefix}norm.weight" for prefix in _PREFIXES)
_log = logging.getLogger(__name__)


def _to_module_key(key: str) -> str:
    """DeepSpec's flat keys live under `backbone.` here, except the heads and the map."""
    is_own = key.startswith(("markov_head.", "confidence_head.")) or key == "d2t"
    return key if is_own else f"backbone.{key}"


def save_drafter(drafter: Drafter, directory: Path) -> None:
    """Write config and bfloat16 weights."""
    directory.mkdir(parents=True, exist_ok=True)
    write_config(drafter.config, directory)
    save_file(drafter_tensors(drafter), directory / WEIGHTS, metadata={"format": "pt"})


def drafter_tensors(drafter: Drafter) -> dict[str, Tensor]:
    """What a file of it holds, by DeepSpec's names: bfloat16 weights, a map if any, rows of its own."""
    tensors: dict[str, Tensor] = {}
    for key, value in drafter.state_dict().items():
        if key == "d2t":
            if drafter.config.draft_vocab_size:
                tensors[key] = value.to(torch.int32)
            continue
        tensors[key.removeprefix("backbone.")] = value.to(torch.bfloat16).contiguous()
    for name in drafter.own_rows:
        tensors[f"{name}.weight"] = getattr(drafter, name).to(torch.bfloat16).contiguous()
    return tensors


def read_target_tensors(target: Path) -> dict[str, Tensor]:
    """Input embedding, output projection and last norm of a target directory, as `embed`, `head`, `norm`.

    Raises:
        ModelMismatchError: the directory holds no safetensors weights with these tensors.
    """
    wanted = {*_EMBED_NAMES, *_HEAD_NAMES, *_NORM_NAMES}
    found: dict[str, Tensor] = {}
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in wanted.intersection(file.keys()):
                found[key] = file.get_tensor(key)
    parts = {"embed": _EMBED_NAMES, "head": _HEAD_NAMES, "norm": _NORM_NAMES}
    result: dict[str, Tensor] = {}
    for part, names in parts.items():
        name = next((one for one in names if one in found), None)
        if name is None:
            raise ModelMismatchError(f"{target} holds no safetensors weights with any of {', '.join(names)}")
        result[part] = found[name]
    return result


def read_target_layer(target: Path, layer: int) -> dict[str, Tensor]:
    """Tensors of one decoder layer of a target directory, by names such as `self_attn.q_proj.weight`."""
    prefixes = tuple(f"{prefix}layers.{layer}." for prefix in _PREFIXES)
    found: dict[str, Tensor] = {}
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                prefix = next((one for one in prefixes if key.startswith(one)), None)
                if prefix is not None:
                    found[key.removeprefix(prefix)] = file.get_tensor(key)
    return found


def build_drafter(config: DrafterConfig, target: dict[str, Tensor], d2t: Tensor | None) -> Drafter:
    """An untrained drafter over the target's embedding and head.

    Raises:
        ModelMismatchError: the target's shapes are not those the configuration names.
    """
    shape = tuple(target["embed"].shape)
    if shape != (config.vocab_size, config.hidden_size):
        raise ModelMismatchError(
            f"the drafter was made for a target with vocabulary {config.vocab_size} and hidden size "
            f"{config.hidden_size}, this target's embedding has {shape[0]} rows of {shape[1]}: pass the pair "
            "that belongs together"
        )
    ids = torch.arange(config.vocab_size) if d2t is None else d2t.to(torch.int64)
    return make_drafter(config, target["embed"], target["head"], ids, norm=target.get("norm"))


def load_drafter(directory: Path, target: Path, *, dtype: torch.dtype = torch.bfloat16) -> Drafter:
    """Load a drafter directory over its target.

    Raises:
        ModelMismatchError: files missing, keys or shapes that do not fit, or another target; says which.
    """
    config = read_config(directory)
    check_target(config, target)
    stored = _read_weights(directory)
    path = directory / WEIGHTS
    check_tensors(config, {key: tuple(value.shape) for key, value in stored.items()}, str(path))
    copies = {name: stored.pop(f"{name}.weight", None) for name in COPIES}
    tensors, d2t = read_target_tensors(target), stored.pop("d2t", None)
    if d2t is not None and not 0 <= int(d2t.min()) <= int(d2t.max()) < config.vocab_size:
        raise ModelMismatchError(f"{path}: d2t names tokens beyond vocab_size {config.vocab_size}")
    drafter = build_drafter(config, _cast(tensors, dtype), d2t).to(dtype)
    state = {_to_module_key(key): value.to(dtype) for key, value in stored.items()}
    drafter.load_state_dict(state, strict=False)
    _take_copies(drafter, copies, tensors, directory)
    return drafter.eval()


def _read_weights(directory: Path) -> dict[str, Tensor]:
    if holds_mtp(directory):
        return read_mtp(directory)
    path = directory / WEIGHTS
    if not path.is_file():
        raise ModelMismatchError(f"{directory} holds no {WEIGHTS}")
    try:
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise ModelMismatchError(f"{path} cannot be read: {error}") from None
    return map_from_offsets(tensors, str(path)) if is_speculators(directory) else tensors


def _cast(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The target's rows in a dtype; a head that is the embedding stays one tensor with it."""
    cast = {key: value.to(dtype) for key, value in tensors.items()}
    return {**cast, "head": cast["embed"]} if tensors["head"] is tensors["embed"] else cast


def _take_copies(
    drafter: Drafter, copies: dict[str, Tensor | None], target: dict[str, Tensor], directory: Path
) -> None:
    """Keep the stored copies of embedding and head that are not the target's rows."""
    head = target["head"][drafter.d2t] if drafter.config.draft_vocab_size else target["head"]
    for (name, copy), theirs in zip(copies.items(), (target["embed"], head), strict=True):
        if copy is None or torch.equal(copy, theirs.to(copy.dtype)):
            continue
        _log.warning(
            "%s: %s.weight differs from the target's rows and is used in their place; "
            "if drafts are rejected often, see whether this is the drafter's target",
            directory,
            name,
        )
        setattr(drafter, name, copy.to(drafter.embed_tokens.dtype))
        drafter.own_rows |= {name}
