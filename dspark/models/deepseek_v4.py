"""DeepSeek-V4's naming of a DSpark drafter: `dspark_*` keys in the target's own config, tensors `mtp.*`.

The names are turned into DeepSpec's (DeepSpec section 8.5). Layers that nothing here computes are refused by
name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspark.errors import ModelMismatchError
from dspark.models.config import QWEN3

Raw = dict[str, Any]
Shape = tuple[int, ...]

# What DeepSpec calls these keys.
_KEYS = {
    "dspark_block_size": "block_size",
    "dspark_noise_token_id": "mask_token_id",
    "dspark_target_layer_ids": "target_layer_ids",
    "dspark_markov_rank": "markov_rank",
}
_LAYER = re.compile(
    r"(self_attn\.[qkvo]_proj|self_attn\.[qk]_norm|mlp\.(gate|up|down)_proj|(input|post_attention)_layernorm)"
    r"\.(weight|bias)"
)
# What layers of other kinds are told by, in the first part of a name that is not of a layer above.
_KINDS = {
    "hyper-connections": re.compile(r"hc_"),
    "a mixture of experts": re.compile(r".*(experts|\.gate\.)"),
    "attention of another kind": re.compile(r"(self_)?attn"),
}
_SHOWN = 3


def is_deepseek_v4(raw: Mapping[str, Any]) -> bool:
    """Whether a parsed `config.json` is of a target whose drafter has these names."""
    return "dspark_block_size" in raw


def holds_mtp(directory: Path) -> bool:
    """Whether the drafter in a directory has these names."""
    path = directory / "config.json"
    return path.is_file() and is_deepseek_v4(json.loads(path.read_text()))


def to_deepspec(raw: Raw, directory: Path) -> Raw:
    """The keys of DeepSpec for a parsed `config.json`, whose tensors lie in the same directory.

    Raises:
        KeyError: a key is missing.
        ModelMismatchError: tensors are missing or of other shapes, or layers of a kind that cannot be run.
    """
    num_layers = raw["n_mtp_layers"]
    shapes = {name: shape for name, shape in _shapes(directory).items() if name.startswith("mtp.")}
    found = _describe(raw)
    _check_heads(raw, shapes, found)
    if unknown := _unknown(shapes, num_layers):
        raise ModelMismatchError(
            f"{found}; its projection, norms and heads fit, but the layers need {_kinds(unknown)}, which "
            "cannot be run here; give a drafter with layers of Qwen3 or Gemma 4"
        )
    return {
        **{key: value for key, value in raw.items() if key != "layer_types"},
        **{name: raw[key] for key, name in _KEYS.items()},
        "architectures": [QWEN3],
        "num_target_layers": raw["num_hidden_layers"],
        "num_hidden_layers": num_layers,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def read_mtp_shapes(directory: Path) -> dict[str, Shape]:
    """Shapes of the drafter's tensors by DeepSpec's names.

    Raises:
        ModelMismatchError: a file cannot be read.
    """
    num_layers = _num_layers(directory)
    shapes = {_deepspec_name(name, num_layers): shape for name, shape in _shapes(directory).items()}
    return {**{name: shape for name, shape in shapes.items() if name}, "confidence_head.proj.bias": (1,)}


def read_mtp(directory: Path) -> dict[str, Tensor]:
    """The drafter's tensors by DeepSpec's names. The confidence head has no bias, which is one of 0.

    Raises:
        ModelMismatchError: a file cannot be read.
    """
    num_layers, tensors = _num_layers(directory), {"confidence_head.proj.bias": torch.zeros(1)}
    for path in _files(directory):
        with _opened(path) as file:
            for key in file.keys():  # noqa: SIM118 - no mapping
                if name := _deepspec_name(key, num_layers):
                    tensors[name] = file.get_tensor(key)
    return tensors


def _deepspec_name(name: str, num_layers: int) -> str:
    """DeepSpec's name of a tensor; empty: it is none of the drafter's."""
    if (known := _head_names(num_layers).get(name)) is not None:
        return known
    match = re.fullmatch(r"mtp\.(\d+)\.(.+)", name)
    return f"layers.{match[1]}.{match[2]}" if match else ""


def _head_names(num_layers: int) -> dict[str, str]:
    """DeepSpec's names of what is no layer."""
    last = f"mtp.{num_layers - 1}"
    return {
        "mtp.0.main_proj.weight": "fc.weight",
        "mtp.0.main_norm.weight": "hidden_norm.weight",
        f"{last}.norm.weight": "norm.weight",
        **{f"{last}.markov_head.{part}.weight": f"markov_head.{part}.weight" for part in _MARKOV},
        f"{last}.confidence_head.proj.weight": "confidence_head.proj.weight",
    }


_MARKOV = ("markov_w1", "markov_w2")


def _check_heads(raw: Raw, shapes: Mapping[str, Shape], found: str) -> None:
    """Compare what is no layer with the configuration."""
    hidden, vocab, rank = raw["hidden_size"], raw["vocab_size"], raw["dspark_markov_rank"]
    expected = {
        "fc.weight": (hidden, hidden * len(raw["dspark_target_layer_ids"])),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        **{f"markov_head.{part}.weight": (vocab, rank) for part in _MARKOV},
        "confidence_head.proj.weight": (1, hidden + rank),
    }
    for name, theirs in _head_names(raw["n_mtp_layers"]).items():
        if name not in shapes:
            raise ModelMismatchError(f"{found}; {name} is missing, give a directory with all mtp.* tensors")
        if shapes[name] != expected[theirs]:
            raise ModelMismatchError(
                f"{found}; {name} has shape {shapes[name]}, the configuration says {expected[theirs]}"
            )


def _describe(raw: Raw) -> str:
    taps = ",".join(map(str, raw["dspark_target_layer_ids"]))
    return (
        f"a DSpark drafter in DeepSeek-V4's naming: {raw['n_mtp_layers']} mtp layers, gamma "
        f"{raw['dspark_block_size']}, Markov head of rank {raw['dspark_markov_rank']}, confidence head "
        f"without bias, taps {taps} of {raw['num_hidden_layers']} layers"
    )


def _unknown(shapes: Mapping[str, Shape], num_layers: int) -> list[str]:
    """Names of tensors that belong to no layer we have, without `mtp.`."""
    known = _head_names(num_layers)
    parts = [name.split(".", 2) for name in shapes if name not in known]
    return sorted(f"{number}.{rest}" for _, number, rest in parts if not _LAYER.fullmatch(rest))


def _kinds(unknown: list[str]) -> str:
    """What the tensors say the layers are made of, each with examples."""
    found: dict[str, list[str]] = {}
    for name in unknown:
        rest = name.split(".", 1)[1]
        kind = next((kind for kind, pattern in _KINDS.items() if pattern.match(rest)), "other parts")
        found.setdefault(kind, []).append(f"mtp.{name}")
    return " and ".join(
        f"{kind} ({', '.join(names[:_SHOWN])}{_more(len(names))})" for kind, names in sorted(found.items())
    )


def _more(count: int) -> str:
    return f" and {count - _SHOWN} more" if count > _SHOWN else ""


def _num_layers(directory: Path) -> int:
    number: int = json.loads((directory / "config.json").read_text())["n_mtp_layers"]
    return number


def _shapes(directory: Path) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for path in _files(directory):
        with _opened(path) as file:
            shapes |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    return shapes


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise ModelMismatchError(f"{path} cannot be read: {error}") from None
