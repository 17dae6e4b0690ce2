"""Writes drafters in the formats of other projects; what is written can be read here again, bit for bit."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dspark.errors import ModelMismatchError
from dspark.models.checkpoint import WEIGHTS, drafter_tensors, load_drafter, read_target_tensors
from dspark.models.config import GEMMA4, DrafterConfig
from dspark.models.config_file import to_document
from dspark.models.drafter import DSparkDrafter
from dspark.models.fit import COPIES, read_target_config
from dspark.models.full_vocabulary import with_full_vocabulary
from dspark.models.speculators_format import map_to_offsets, to_speculators

# Published with every DeepSpec drafter; only its training reads it, but its models demand it.
_NUM_ANCHORS = 512
# Keys of a target that say nothing about its drafter.
_TARGET_ONLY = ("auto_map", "quantization_config", "_name_or_path", "text_config")
Raw = dict[str, Any]


def export_deepspec(
    drafter: DSparkDrafter, target: Path, out: Path, *, has_full_vocabulary: bool = False
) -> DSparkDrafter:
    """Write a directory that DeepSpec's model classes load: all their keys, the target's rows included.

    Args:
        drafter: in bfloat16.
        target: its Hugging Face directory.
        out: directory to write.
        has_full_vocabulary: give a reduced vocabulary a row for every token (see `with_full_vocabulary`).

    Returns:
        The drafter that was written.

    Raises:
        ModelMismatchError: the vocabulary is reduced, which this format cannot say.
    """
    if drafter.config.draft_vocab_size:
        if not has_full_vocabulary:
            raise ModelMismatchError(
                f"the drafter has a draft vocabulary of {drafter.config.draft_vocab_size} tokens, for which "
                "DeepSpec has no place: pass --full-vocabulary, which gives the other tokens rows that are "
                "never drafted, or export it with --format speculators"
            )
        head = read_target_tensors(target)["head"].to(drafter.lm_head.dtype)
        drafter = with_full_vocabulary(drafter, head)
    copies = {f"{name}.weight": getattr(drafter, name) for name in COPIES}
    _write(out, _deepspec_document(drafter.config, target), {**drafter_tensors(drafter), **copies})
    return drafter


def export_speculators(drafter: DSparkDrafter, target: Path, out: Path, *, verifier: str) -> DSparkDrafter:
    """Write a directory in the convention of `speculators`, which vLLM reads.

    Args:
        drafter: in bfloat16.
        target: its Hugging Face directory.
        out: directory to write.
        verifier: name or path by which the target will be loaded there.

    Returns:
        The drafter that was written: its draft ids rise with the target's.

    Raises:
        ModelMismatchError: the format has no such drafters.
    """
    architectures = json.loads((target / "config.json").read_text()).get("architectures") or []
    document = to_speculators(drafter.config, verifier=verifier, verifier_architectures=architectures)
    drafter = with_rising_vocabulary(drafter)
    tensors = drafter_tensors(drafter)
    if drafter.config.draft_vocab_size:
        # vLLM takes no rows of the target's head in their place
        maps = map_to_offsets(drafter.d2t, drafter.config.vocab_size)
        tensors |= {**maps, "lm_head.weight": drafter.lm_head}
    _write(out, document, tensors)
    return drafter


def with_rising_vocabulary(drafter: DSparkDrafter) -> DSparkDrafter:
    """The same drafter with its draft ids in the order of the target's."""
    if not drafter.config.draft_vocab_size or bool((drafter.d2t.diff() > 0).all()):
        return drafter
    config, order = drafter.config, torch.argsort(drafter.d2t)
    head = drafter.lm_head.new_zeros(config.vocab_size, config.hidden_size)
    head[drafter.d2t] = drafter.lm_head
    out = DSparkDrafter(config, drafter.embed_tokens, head, drafter.d2t[order]).to(head.dtype)
    out.own_rows = drafter.own_rows
    state = {**drafter.state_dict(), "d2t": drafter.d2t[order]}
    if config.markov_rank:
        state["markov_head.markov_w2.weight"] = state["markov_head.markov_w2.weight"][order]
    out.load_state_dict(state)
    return out.eval()


def check_export(written: DSparkDrafter, target: Path, out: Path) -> None:
    """Read a directory back and compare all numbers with those of what was written."""
    again = load_drafter(out, target, dtype=written.lm_head.dtype)
    assert again.config == written.config, (again.config, written.config)
    assert torch.equal(again.embed_tokens, written.embed_tokens), "embed_tokens"
    assert torch.equal(again.lm_head, written.lm_head), "lm_head"
    state = written.state_dict()
    for key, value in again.state_dict().items():
        assert torch.equal(value, state[key]), key


def _deepspec_document(config: DrafterConfig, target: Path) -> Raw:
    """Keys of the target's configuration where both are of one family, with those of the drafter."""
    text = read_target_config(target)
    own = to_document(config)
    del own["draft_vocab_size"]
    base: Raw = {
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        **{key: text.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }
    if text["model_type"] == own["model_type"]:
        base |= {key: value for key, value in text.items() if key not in _TARGET_ONLY}
    if config.architecture == GEMMA4:
        own |= _gemma4_geometry(own, text)
    else:
        # full attention in all layers
        base |= {"max_window_layers": config.num_target_layers, "sliding_window": None}
        own["use_sliding_window"] = False
    return {**base, **own, "num_anchors": _NUM_ANCHORS, "transformers_version": version("transformers")}


def _gemma4_geometry(own: Raw, text: Raw) -> Raw:
    """Keys of the layers with a window, which its drafters do not have and its configuration demands."""
    return {
        **{key: text[key] for key in ("head_dim", "num_key_value_heads") if key in text},
        "rope_parameters": {**(text.get("rope_parameters") or {}), **own["rope_parameters"]},
    }


def _write(out: Path, document: Raw, tensors: dict[str, Tensor]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    # copies, since safetensors refuses tensors that share their memory
    stored = {
        key: (value if value.dtype in (torch.int64, torch.bool) else value.to(torch.bfloat16)).clone()
        for key, value in tensors.items()
    }
    save_file(stored, out / WEIGHTS, metadata={"format": "pt"})
