"""Drafter directories: DeepSpec's `config.json` and `model.safetensors`, plus `d2t` for a reduced vocabulary.

Written files leave out `embed_tokens` and `lm_head`: they are the target's, and a loader aliases them.
Published DeepSpec files hold copies, which are skipped for the same reason (DeepSpec section 1.7).
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dspark.errors import ModelMismatchError
from dspark.models.config import DrafterConfig, read_config, write_config
from dspark.models.drafter import DSparkDrafter

WEIGHTS = "model.safetensors"
SHARED_KEYS = frozenset({"embed_tokens.weight", "lm_head.weight"})
_EMBED_NAMES = ("model.embed_tokens.weight", "embed_tokens.weight")
_HEAD_NAMES = ("lm_head.weight", *_EMBED_NAMES)
_NORM_NAMES = ("model.norm.weight", "norm.weight")


def _to_module_key(key: str) -> str:
    """DeepSpec's flat keys live under `backbone.` here, except the heads and the map."""
    is_own = key.startswith(("markov_head.", "confidence_head.")) or key == "d2t"
    return key if is_own else f"backbone.{key}"


def save_drafter(drafter: DSparkDrafter, directory: Path) -> None:
    """Write config and bfloat16 weights."""
    directory.mkdir(parents=True, exist_ok=True)
    write_config(drafter.config, directory)
    tensors: dict[str, Tensor] = {}
    for key, value in drafter.state_dict().items():
        if key == "d2t":
            if drafter.config.draft_vocab_size:
                tensors[key] = value.to(torch.int32)
            continue
        tensors[key.removeprefix("backbone.")] = value.to(torch.bfloat16).contiguous()
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def read_target_tensors(target: Path) -> dict[str, Tensor]:
    """Input embedding, output projection and last norm of a target directory, as `embed`, `head`, `norm`.

    Raises:
        ModelMismatchError: the directory holds no safetensors weights with these tensors.
    """
    found: dict[str, Tensor] = {}
    for path in sorted(target.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - safe_open is no mapping
                if key in {*_EMBED_NAMES, *_HEAD_NAMES, *_NORM_NAMES}:
                    found[key] = file.get_tensor(key)
    parts = {"embed": _EMBED_NAMES, "head": _HEAD_NAMES, "norm": _NORM_NAMES}
    result: dict[str, Tensor] = {}
    for part, names in parts.items():
        name = next((one for one in names if one in found), None)
        if name is None:
            raise ModelMismatchError(f"{target} holds no safetensors weights with any of {', '.join(names)}")
        result[part] = found[name]
    return result


def build_drafter(config: DrafterConfig, target: dict[str, Tensor], d2t: Tensor | None) -> DSparkDrafter:
    """An untrained drafter over the target's embedding and head.

    Raises:
        ModelMismatchError: the target's shapes are not those the configuration names.
    """
    shape = tuple(target["embed"].shape)
    if shape != (config.vocab_size, config.hidden_size):
        raise ModelMismatchError(
            f"the drafter was made for a target with vocabulary {config.vocab_size} and hidden size "
            f"{config.hidden_size}, this target has {shape[0]} and {shape[1]}: pass the pair that belongs "
            "together"
        )
    ids = torch.arange(config.vocab_size) if d2t is None else d2t.to(torch.int64)
    return DSparkDrafter(config, target["embed"], target["head"], ids)


def load_drafter(directory: Path, target: Path, *, dtype: torch.dtype = torch.bfloat16) -> DSparkDrafter:
    """Load a drafter directory over its target.

    Raises:
        ModelMismatchError: files missing, keys or shapes that do not fit, or another target; says which.
    """
    config = read_config(directory)
    path = directory / WEIGHTS
    if not path.is_file():
        raise ModelMismatchError(f"{directory} holds no {WEIGHTS}")
    with safe_open(path, "pt") as file:
        stored = {key: file.get_tensor(key) for key in file.keys() if key not in SHARED_KEYS}  # noqa: SIM118
    d2t = stored.pop("d2t", None)
    if (d2t is None) != (config.draft_vocab_size == 0):
        raise ModelMismatchError(f"{directory}: draft_vocab_size and the tensor d2t must come together")
    tensors = read_target_tensors(target)
    drafter = build_drafter(config, {key: value.to(dtype) for key, value in tensors.items()}, d2t).to(dtype)
    drafter.d2t = drafter.d2t.to(torch.int64)
    state = {_to_module_key(key): value.to(dtype) for key, value in stored.items()}
    expected = {key: value for key, value in drafter.state_dict().items() if key != "d2t"}
    missing, unknown = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or unknown:
        raise ModelMismatchError(f"{path}: missing tensors {missing[:4]}, unknown tensors {unknown[:4]}")
    for key, value in state.items():
        if value.shape != expected[key].shape:
            raise ModelMismatchError(
                f"{path}: {key} has shape {tuple(value.shape)}, "
                f"the configuration says {tuple(expected[key].shape)}"
            )
    drafter.load_state_dict(state, strict=False)
    return drafter.eval()
