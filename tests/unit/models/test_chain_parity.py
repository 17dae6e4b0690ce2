"""The engine of chain drafters against a second implementation of the equations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.types import Acceptance, DraftRequest, FeatureBatch, SamplingParams
from dspark.engine.taps import feature_words
from dspark.models.checkpoint import load_drafter
from tests.deepspec_files import (
    GAMMA,
    VOCAB,
    eagle3_config,
    gemma4_target,
    mtp_config,
    qwen3_target,
    random_tensors,
    write_drafter,
)
from tests.plain_chain import PlainChain
from tests.unit.models.test_drafter_parity import BOUNDS, GREEDY, Texts, check, make_engine, rounds, texts_of

CASES: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "eagle3-qwen3": ("qwen3", lambda: eagle3_config("qwen3")),
    "eagle3-qwen3-biases": ("qwen3", lambda: eagle3_config("qwen3", attention_bias=True)),
    "eagle3-gemma4": ("gemma4", lambda: eagle3_config("gemma4")),
    "eagle3-gemma4-own-values": ("gemma4", lambda: eagle3_config("gemma4", attention_k_eq_v=False)),
    "mtp": ("qwen3", mtp_config),
}
HIDDEN = 64


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    made = {}
    for name, make in (("qwen3", qwen3_target), ("gemma4", gemma4_target)):
        directory = tmp_path_factory.mktemp("targets") / name
        made[name] = (directory, make(directory))
    weigh_last_norm(made["qwen3"][0])
    return made


def weigh_last_norm(target: Path) -> None:
    """Give a target's last norm weights that are not all one."""
    file = target / "model.safetensors"
    tensors = load_file(file)
    weight = torch.linspace(0.5, 1.5, HIDDEN).to(tensors["model.norm.weight"].dtype)
    save_file({**tensors, "model.norm.weight": weight}, file, metadata={"format": "pt"})


def last_layer_texts(model: Any, dtype: torch.dtype) -> Texts:
    """The texts with the output of the last layer, which the last norm has not seen."""
    taken: list[Tensor] = []
    hook = model.model.layers[-1].register_forward_hook(lambda _module, _inputs, output: taken.append(output))
    texts = {}
    for name, (tokens, _) in texts_of(model, dtype, [0]).items():
        taken.clear()
        with torch.inference_mode():
            model(torch.tensor([tokens]))
        texts[name] = (tokens, taken[0].reshape(-1, HIDDEN).to(dtype))
    hook.remove()
    return texts


def as_published(features: Tensor, target: Path, config: dict[str, Any]) -> Tensor:
    """The target's last hidden states from outputs of its last layer."""
    rows, weight = features.double(), load_file(target / "model.safetensors")["model.norm.weight"].double()
    return rows / torch.sqrt((rows**2).mean(-1, keepdim=True) + config["rms_norm_eps"]) * weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_chains_over_growing_contexts_are_those_of_the_equations(
    case: str, dtype: torch.dtype, targets: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    family, make = CASES[case]
    directory, model = targets[family]
    config = make()
    path = write_drafter(tmp_path / case, config, random_tensors(config, directory))
    engine, plain = make_engine(path, directory, dtype), PlainChain(path, embedding_dtype=dtype)
    texts = (
        last_layer_texts(model, dtype)
        if case == "mtp"
        else texts_of(model, dtype, config["target_layer_ids"])
    )
    for name, length, block in rounds(engine, texts):
        tokens, features = texts[name]
        rows = as_published(features, directory, config) if case == "mtp" else features
        expected = plain.chain(rows[:length], tokens[: length + 1], block.token_ids.tolist(), GAMMA)
        check(block, expected, None, BOUNDS[dtype])


def eagle3(targets: dict[str, tuple[Path, Any]], path: Path, **changes: Any) -> Path:
    config = eagle3_config("qwen3", **changes)
    return write_drafter(path, config, random_tensors(config, targets["qwen3"][0]))


def random_text(seed: int, length: int = 12) -> tuple[np.ndarray, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (length,), generator=generator)
    return tokens.numpy().astype(np.int32), torch.randn(length, 2 * HIDDEN, generator=generator)


def push(engine: Any, name: str, text: tuple[np.ndarray, Tensor], start: int, stop: int) -> None:
    tokens, rows = text
    engine.push(FeatureBatch(name, 1, start, tokens[start:stop], feature_words(rows[start:stop])))


def request(name: str, base: int, anchor: int, sampling: SamplingParams = GREEDY, count: int = GAMMA) -> Any:
    return DraftRequest(name, 1, base, anchor, sampling, count)


def test_drafts_leave_nothing_behind_that_the_next_round_would_see(
    targets: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    path, target, text = eagle3(targets, tmp_path), targets["qwen3"][0], random_text(1)
    often, once = (make_engine(path, target, torch.float32) for _ in range(2))
    for start, stop in ((0, 3), (3, 4), (4, 7), (7, 9)):
        push(often, "a", text, start, stop)
        often.absorb()
        blocks = [often.draft([request("a", stop + 1, int(text[0][stop]))]) for _ in range(2)]
        assert blocks[0][0].token_ids.tolist() == blocks[1][0].token_ids.tolist(), "asked twice"
    push(once, "a", text, 0, 9)
    (block,) = once.draft([request("a", 10, int(text[0][9]))])
    assert block.token_ids.tolist() == blocks[0][0].token_ids.tolist()
    np.testing.assert_allclose(block.confidence, blocks[0][0].confidence, rtol=1e-4)


def test_features_computed_again_replace_those_from_their_position_on(
    targets: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    path, target, text = eagle3(targets, tmp_path), targets["qwen3"][0], random_text(1)
    again, once = (make_engine(path, target, torch.float32) for _ in range(2))
    push(again, "a", text, 0, 8)
    again.draft([request("a", 9, int(text[0][8]))])
    push(again, "a", text, 5, 11)
    push(once, "a", text, 0, 11)
    mine, its = (engine.draft([request("a", 12, int(text[0][11]))])[0] for engine in (again, once))
    np.testing.assert_allclose(mine.confidence, its.confidence, rtol=1e-4)
    assert mine.token_ids.tolist() == its.token_ids.tolist()


def test_blocks_of_different_lengths_and_kinds_drafted_together_are_those_drafted_alone(
    targets: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    path, target = eagle3(targets, tmp_path), targets["qwen3"][0]
    together = make_engine(path, target, torch.float32)
    biased = LogitAdjustments(logit_bias=((7, 50.0),))
    samplings = [
        GREEDY,
        SamplingParams(temperature=0.8, seed=4, acceptance=Acceptance.REJECTION),
        SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY, adjustments=biased),
        SamplingParams(temperature=1.0, seed=5, acceptance=Acceptance.COUPLED),
    ]
    asked, alone = [], []
    for number, sampling in enumerate(samplings):
        text, name = random_text(number), str(number)
        asked.append(request(name, 8 + number, int(text[0][7 + number]), sampling, number + 1))
        single = make_engine(path, target, torch.float32)
        for engine in (together, single):
            push(engine, name, text, 0, 7 + number)
        alone += single.draft([asked[-1]])
    for block, other in zip(together.draft(asked), alone, strict=True):
        assert block.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(block.confidence, other.confidence, rtol=1e-4)
        assert len(block.probs) == len(other.probs)
    assert alone[2].token_ids.tolist() == [7, 7, 7]
    assert [len(block.probs) for block in alone] == [0, 2, 0, 0]


def test_a_draft_vocabulary_limits_what_is_drafted_and_names_the_targets_ids(
    targets: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    target, config = targets["qwen3"][0], eagle3_config("qwen3", draft_vocab_size=8)
    ids = torch.arange(3, 35, 4, dtype=torch.int32)
    kept = {name: one for name, one in random_tensors(config, target).items() if name != "lm_head.weight"}
    path = write_drafter(tmp_path, config, {**kept, "d2t": ids})
    assert load_drafter(path, target).lm_head.shape == (8, HIDDEN)
    engine, text = make_engine(path, target, torch.float32), random_text(2)
    push(engine, "a", text, 0, 6)
    (block,) = engine.draft([request("a", 7, int(text[0][6]))])
    assert set(block.token_ids.tolist()) <= set(ids.tolist())


def test_a_context_without_a_feature_waits_for_one(
    targets: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    engine = make_engine(eagle3(targets, tmp_path), targets["qwen3"][0], torch.float32)
    text = random_text(3)
    push(engine, "a", text, 4, 4)
    assert engine.draft([request("a", 5, 1)]) == []
    push(engine, "a", text, 4, 5)
    assert len(engine.draft([request("a", 6, int(text[0][5]))])) == 1
