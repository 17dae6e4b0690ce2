"""Draft layers against the layers of `transformers` that they are copies of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dspark.models.backbone import Backbone
from dspark.models.config_file import read_config
from tests.deepspec_files import gemma4_config, gemma4_target, qwen3_config, qwen3_target, write_drafter

NUM_SLOTS = 5


def attend_block(scale: float) -> Any:
    """Attention without context: every slot sees every slot."""

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        del layer
        groups = query.shape[1] // key.shape[1]
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)

    return attend


def stock(model: Any, layer: int, states: Tensor, positions: Tensor) -> Tensor:
    """A layer of the target that hides nothing from any position."""
    kind = (model.config.layer_types[layer],) if model.config.model_type == "gemma4_text" else ()
    rotary = model.model.rotary_emb(states[None], positions[None], *kind)
    nothing_hidden = torch.zeros(1, 1, NUM_SLOTS, NUM_SLOTS)
    out = model.model.layers[layer](
        states[None], position_embeddings=rotary, attention_mask=nothing_hidden, shared_kv_states={}
    )
    return (out[0] if isinstance(out, tuple) else out)[0]


@pytest.mark.parametrize("family", ["qwen3", "gemma4"])
def test_without_context_a_draft_layer_is_the_targets_layer_with_nothing_hidden(
    family: str, tmp_path: Path
) -> None:
    make, config = {
        "qwen3": (qwen3_target, qwen3_config()),
        "gemma4": (gemma4_target, gemma4_config()),
    }[family]
    # the target of the tests has the rope of a published Gemma
    rope = config["rope_parameters"].get("full_attention")
    if rope is not None:
        rope["rope_theta"] = 1e6
    model = make(tmp_path / "target")
    shape = read_config(write_drafter(tmp_path / "drafter", config, {}))
    backbone = Backbone(shape)
    layer = 1  # of a Gemma a global one
    theirs = model.model.layers[layer]
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        if family == "gemma4":
            theirs.layer_scalar.fill_(0.7)
        backbone.layers[0].load_state_dict(theirs.state_dict())
        states = torch.randn(NUM_SLOTS, shape.hidden_size, generator=generator)
        positions = torch.arange(30, 30 + NUM_SLOTS)
        rotary = backbone.rotary(positions, torch.float32)
        mine = backbone.layers[0](0, states, rotary, attend_block(shape.attention_scale))
        torch.testing.assert_close(mine, stock(model, layer, states, positions), rtol=1e-5, atol=1e-5)
