"""Drafters in the formats of other projects: the same drafter there and back, and the conventions of each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark.errors import ModelMismatchError
from dspark.models.checkpoint import load_drafter, save_drafter
from dspark.models.config_file import read_config
from dspark.models.drafter import DSparkDrafter
from dspark.models.export import check_export, export_deepspec, export_speculators
from dspark.models.full_vocabulary import with_full_vocabulary
from dspark.models.summary import summarise
from tests.deepspec_files import (
    MASK,
    TAPS,
    VOCAB,
    gemma4_config,
    heads_of,
    qwen3_config,
    random_tensors,
    write_drafter,
)
from tests.tiny_drafters import TINY, random_drafter

HEADS: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "gated": {"markov_head_type": "gated", "confidence_head_with_markov": False},
    "rnn": {"markov_head_type": "rnn"},
    "none": {"markov_rank": 0, "has_confidence_head": False},
}
# not in order
DRAFT_IDS = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2))[:24]


def reduced(directory: Path, target: Path, ids: torch.Tensor = DRAFT_IDS, **heads: Any) -> DSparkDrafter:
    """A drafter directory of ours with a draft vocabulary, loaded."""
    config = replace(
        TINY,
        vocab_size=VOCAB,
        hidden_size=64,
        num_target_layers=4,
        mask_token_id=MASK,
        draft_vocab_size=len(ids),
        **{"target_layer_ids": tuple(TAPS), **heads},
    )
    save_drafter(random_drafter(config, ids, std=0.25), directory)
    return load_drafter(directory, target)


def published(directory: Path, target: Path, kind: str) -> DSparkDrafter:
    """A drafter directory as DeepSpec publishes it, loaded."""
    config = gemma4_config() if kind == "gemma4" else qwen3_config(**heads_of(kind))
    if not config["markov_rank"]:
        del config["markov_head_type"], config["confidence_head_with_markov"]
    write_drafter(directory, config, random_tensors(config, target))
    return load_drafter(directory, target)


def logits_of(drafter: DSparkDrafter, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [N, G, V] of blocks, -inf where nothing is drafted."""
    base = hidden @ drafter.lm_head.t()
    if drafter.markov_head is not None:
        base = base + drafter.markov_head.bias(
            drafter.markov_head.over_blocks(drafter.markov_head.embed(tokens), hidden)
        )
    whole = base.new_full((*hidden.shape[:-1], drafter.config.vocab_size), -torch.inf)
    whole[..., drafter.d2t] = base
    return whole


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn", "none", "gemma4"])
def test_an_exported_deepspec_directory_is_the_published_one_again(
    kind: str, targets: dict[str, Path], tmp_path: Path
) -> None:
    target = targets["gemma4" if kind == "gemma4" else "qwen3"]
    drafter = published(tmp_path / "theirs", target, kind)
    check_export(export_deepspec(drafter, target, tmp_path / "ours"), target, tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    for key, value in theirs.items():
        assert ours[key].dtype == torch.bfloat16, key
        assert torch.equal(value, ours[key]), key
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "ours"))
    assert before.keys() <= after.keys()
    # the first two are the target's
    free = {"initializer_range", "use_bidirectional_attention", "rope_parameters", "transformers_version"}
    same = before.keys() - free
    assert {key: after[key] for key in same} == {key: before[key] for key in same}


def test_a_reduced_vocabulary_is_refused_by_deepspec_with_both_ways_out(
    targets: dict[str, Path], tmp_path: Path
) -> None:
    drafter = reduced(tmp_path / "drafter", targets["qwen3"])
    with pytest.raises(ModelMismatchError, match=r"--full-vocabulary, .* --format speculators"):
        export_deepspec(drafter, targets["qwen3"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", HEADS)
def test_a_filled_vocabulary_has_the_same_probabilities_and_zero_elsewhere(
    kind: str, targets: dict[str, Path], tmp_path: Path
) -> None:
    drafter = reduced(tmp_path / "drafter", targets["qwen3"], **HEADS[kind]).float()
    head = torch.randn(VOCAB, 64, generator=torch.Generator().manual_seed(3))
    head[drafter.d2t] = drafter.lm_head
    grown = with_full_vocabulary(drafter, head)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(9, 4, 64, generator=generator)
    tokens = torch.randint(0, VOCAB, (9, 4), generator=generator)
    with torch.no_grad():
        before, after = (torch.softmax(logits_of(one, hidden, tokens), -1) for one in (drafter, grown))
        assert torch.all(after[before == 0] == 0)
        assert (before - after).abs().max() < 1e-6
        assert before.amax(-1).min() < 0.99, "what is compared is not only certainties"
        if drafter.confidence_head is not None and grown.confidence_head is not None:
            heads = [one.markov_head.embed(tokens) for one in (drafter, grown) if one.markov_head]
            pairs = zip((drafter.confidence_head, grown.confidence_head), heads, strict=True)
            first, second = (confidence(hidden, embedded) for confidence, embedded in pairs)
            assert (first - second).abs().max() < 1e-5


def test_a_filled_vocabulary_goes_through_deepspecs_format(targets: dict[str, Path], tmp_path: Path) -> None:
    drafter = reduced(tmp_path / "drafter", targets["qwen3"])
    written = export_deepspec(drafter, targets["qwen3"], tmp_path / "out", has_full_vocabulary=True)
    check_export(written, targets["qwen3"], tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert "d2t" not in tensors
    assert tensors["markov_head.markov_w2.weight"].shape == (VOCAB, TINY.markov_rank + 1)
    embed = load_file(targets["qwen3"] / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(tensors["lm_head.weight"], embed)


def loaded_again(drafter: DSparkDrafter, target: Path, out: Path) -> DSparkDrafter:
    check_export(export_speculators(drafter, target, out, verifier="a/target"), target, out)
    return load_drafter(out, target)


@pytest.mark.parametrize("kind", HEADS)
def test_the_speculators_convention_gives_the_same_drafter_back(
    kind: str, targets: dict[str, Path], tmp_path: Path
) -> None:
    ids = torch.sort(DRAFT_IDS).values
    drafter = reduced(tmp_path / "drafter", targets["qwen3"], ids, **HEADS[kind])
    again = loaded_again(drafter, targets["qwen3"], tmp_path / "out")
    assert again.config == drafter.config
    assert not again.own_rows
    for key, value in drafter.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key


def test_conventions_are_converted_not_copied(targets: dict[str, Path], tmp_path: Path) -> None:
    drafter = reduced(tmp_path / "drafter", targets["qwen3"])
    export_speculators(drafter, targets["qwen3"], tmp_path / "out", verifier="a/target")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    ids = np.sort(DRAFT_IDS.numpy())
    # the output of layer k is entry k + 1 of transformers' hidden states
    assert config["aux_hidden_state_layer_ids"] == [layer + 1 for layer in TAPS]
    assert config["block_size"] == TINY.gamma
    assert config["sample_from_anchor"] is True
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == TINY.gamma
    verifier = {"name_or_path": "a/target", "architectures": ["Qwen3ForCausalLM"]}
    assert config["speculators_config"]["verifier"] == verifier
    assert tensors["d2t"].dtype == torch.int64
    assert (tensors["d2t"].numpy() + np.arange(len(ids))).tolist() == ids.tolist()
    assert np.flatnonzero(tensors["t2d"].numpy()).tolist() == ids.tolist()
    # rows of the head lie as t2d picks them from the target's
    embed = load_file(targets["qwen3"] / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(tensors["lm_head.weight"], embed[tensors["t2d"]])
    rows = dict(zip(drafter.d2t.tolist(), drafter.markov_head.markov_w2.weight, strict=True))
    for row, token in zip(tensors["markov_head.markov_w2.weight"], ids.tolist(), strict=True):
        assert torch.equal(row, rows[token])


def test_a_tap_of_the_embedding_is_layer_0_of_speculators(targets: dict[str, Path], tmp_path: Path) -> None:
    drafter = reduced(tmp_path / "drafter", targets["qwen3"], target_layer_ids=(-1, 2))
    again = loaded_again(drafter, targets["qwen3"], tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["aux_hidden_state_layer_ids"] == [0, 3]
    assert again.config.target_layer_ids == (-1, 2)


def test_a_drafter_of_the_whole_vocabulary_shares_the_targets_rows(
    targets: dict[str, Path], tmp_path: Path
) -> None:
    drafter = published(tmp_path / "drafter", targets["qwen3"], "vanilla")
    again = loaded_again(drafter, targets["qwen3"], tmp_path / "out")
    assert again.config == drafter.config
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert not {"embed_tokens.weight", "lm_head.weight", "d2t", "t2d"} & tensors.keys()


def written_by_them(directory: Path, drafter: DSparkDrafter, target: Path, **changes: Any) -> Path:
    export_speculators(drafter, target, directory, verifier="a/target")
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return directory


def test_what_speculators_leaves_out_has_its_defaults(targets: dict[str, Path], tmp_path: Path) -> None:
    drafter = published(tmp_path / "drafter", targets["qwen3"], "vanilla")
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    path = written_by_them(
        tmp_path / "out",
        drafter,
        targets["qwen3"],
        transformer_layer_config=sizes,
        sample_from_anchor=None,
        block_size=None,
        markov_rank=None,
        enable_confidence_head=None,
    )
    config = read_config(path)
    assert (config.gamma, config.markov_rank, config.has_confidence_head) == (8, 256, True)
    assert (config.num_attention_heads, config.intermediate_size, config.rope_theta) == (32, 22016, 10000.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sample_from_anchor": False}, "sample_from_anchor is false"),
        ({"speculators_model_type": "eagle3"}, "speculators_model_type 'eagle3'"),
        ({"speculators_model_type": "dflash", "sample_from_anchor": None}, "sample_from_anchor is false"),
        ({"num_target_layers": None}, "num_target_layers is missing, .* add it beside block_size"),
        ({"target_hidden_size": 128}, "target_hidden_size 128 is not hidden_size 64"),
        ({"transformer_layer_config": {"model_type": "llama"}}, "model_type 'llama'"),
        ({"aux_hidden_state_layer_ids": None}, "lacks the key 'aux_hidden_state_layer_ids'"),
        ({"aux_hidden_state_layer_ids": [1, 4]}, "cannot be tapped"),
    ],
)
def test_a_speculators_config_that_cannot_run_is_refused_by_its_key(
    changes: dict[str, Any], message: str, targets: dict[str, Path], tmp_path: Path
) -> None:
    drafter = published(tmp_path / "drafter", targets["qwen3"], "vanilla")
    path = written_by_them(tmp_path / "out", drafter, targets["qwen3"], **changes)
    with pytest.raises(ModelMismatchError, match=message):
        read_config(path)


def test_maps_that_name_different_tokens_are_refused(targets: dict[str, Path], tmp_path: Path) -> None:
    drafter = reduced(tmp_path / "drafter", targets["qwen3"])
    export_speculators(drafter, targets["qwen3"], tmp_path / "out", verifier="a/target")
    file = tmp_path / "out" / "model.safetensors"
    tensors = load_file(file)
    # ids where offsets belong
    save_file({**tensors, "d2t": torch.sort(drafter.d2t).values}, file)
    with pytest.raises(ModelMismatchError, match="t2d and d2t name different tokens"):
        load_drafter(tmp_path / "out", targets["qwen3"])


def test_speculators_has_no_layers_of_gemma(targets: dict[str, Path], tmp_path: Path) -> None:
    drafter = published(tmp_path / "drafter", targets["gemma4"], "gemma4")
    with pytest.raises(ModelMismatchError, match="--format deepspec"):
        export_speculators(drafter, targets["gemma4"], tmp_path / "out", verifier="a/target")


def test_both_formats_count_the_same_parameters(targets: dict[str, Path], tmp_path: Path) -> None:
    drafter = reduced(tmp_path / "drafter", targets["qwen3"])
    export_speculators(drafter, targets["qwen3"], tmp_path / "out", verifier="a/target")
    ours, theirs = summarise(tmp_path / "drafter"), summarise(tmp_path / "out")
    assert ours.num_parameters == theirs.num_parameters
    assert theirs.copies == ("lm_head",)


def test_speculators_own_classes_read_the_config(targets: dict[str, Path], tmp_path: Path) -> None:
    speculators = pytest.importorskip("speculators")
    drafter = reduced(tmp_path / "drafter", targets["qwen3"])
    export_speculators(drafter, targets["qwen3"], tmp_path / "out", verifier="a/target")
    config = speculators.SpeculatorModelConfig.from_pretrained(str(tmp_path / "out"))
    shape = drafter.config
    assert type(config).__name__ == "DSparkSpeculatorConfig"
    assert config.block_size == shape.gamma
    assert config.draft_vocab_size == shape.draft_vocab_size
    assert config.transformer_layer_config.head_dim == shape.head_dim
    assert config.speculators_config.proposal_methods[0].speculative_tokens == shape.gamma
    # written by their classes, it is read here again
    config.save_pretrained(tmp_path / "theirs")
    assert read_config(tmp_path / "theirs") == shape
