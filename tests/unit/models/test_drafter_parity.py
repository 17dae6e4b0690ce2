"""The draft engine against a second implementation of the equations, on targets that `transformers` runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dspark.decoding.types import Acceptance, DraftBlock, DraftRequest, FeatureBatch, SamplingParams
from dspark.engine.draft_base import PagedDraftEngine
from dspark.engine.draft_loading import context_pool, make_draft_engine
from dspark.engine.taps import feature_words
from dspark.models.checkpoint import load_drafter
from tests.deepspec_files import (
    GAMMA,
    VOCAB,
    gemma4_config,
    gemma4_target,
    heads_of,
    qwen3_config,
    qwen3_target,
    random_tensors,
    write_drafter,
)
from tests.plain_drafter import PlainDrafter

GREEDY = SamplingParams(temperature=0.0, acceptance=Acceptance.GREEDY)
SAMPLED = SamplingParams(temperature=1.0, seed=3, acceptance=Acceptance.REJECTION)
# prompt, then what each round commits
LENGTHS = (7, 1, 4)
# of log-probabilities and of confidence logits
BOUNDS = {torch.float32: 2e-4, torch.bfloat16: 0.15}

Texts = dict[str, tuple[list[int], Tensor]]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    made = {}
    for name, make in (("qwen3", qwen3_target), ("gemma4", gemma4_target)):
        directory = tmp_path_factory.mktemp("targets") / name
        made[name] = (directory, make(directory))
    return made


def texts_of(model: Any, dtype: torch.dtype, taps: list[int]) -> Texts:
    """Three texts and the outputs of the tapped layers over them."""
    generator = torch.Generator().manual_seed(1)
    texts = {}
    for name in "abc":
        tokens = torch.randint(0, VOCAB, (sum(LENGTHS) + 1,), generator=generator)
        with torch.inference_mode():
            states = model(tokens[None], output_hidden_states=True).hidden_states
        # entry 0 holds the embeddings
        texts[name] = (tokens.tolist(), torch.cat([states[layer + 1][0] for layer in taps], dim=-1).to(dtype))
    return texts


def make_engine(path: Path, target: Path, dtype: torch.dtype) -> PagedDraftEngine:
    drafter = load_drafter(path, target, dtype=dtype)
    pool = context_pool(drafter.config, 16, dtype=dtype)
    return make_draft_engine(drafter, pool, {})


def rounds(engine: PagedDraftEngine, texts: Texts) -> list[tuple[str, int, DraftBlock]]:
    """Draft for all texts at each length; the first greedily, the others sampled."""
    found, start = [], 0
    for count in LENGTHS:
        length = start + count
        requests = []
        for name, (tokens, features) in texts.items():
            token_ids = np.array(tokens[start:length], dtype=np.int32)
            engine.push(FeatureBatch(name, 1, start, token_ids, feature_words(features[start:length])))
            sampling = GREEDY if name == "a" else SAMPLED
            requests.append(DraftRequest(name, 1, length + 1, tokens[length], sampling, GAMMA))
        found += [(block.request_id, length, block) for block in engine.draft(requests)]
        start = length
    assert len(found) == len(LENGTHS) * len(texts)
    return found


def check(block: DraftBlock, logits: Tensor, confidences: Tensor | None, bound: float) -> None:
    """The distribution of every slot, the choice where it was greedy, and the confidences."""
    log_probs = logits.log_softmax(-1).numpy()
    for slot, token in enumerate(block.token_ids):
        if block.probs:
            support = block.probs[slot]
            np.testing.assert_allclose(
                np.log(support.probs), log_probs[slot][support.token_ids], rtol=0, atol=bound
            )
            assert len(support.token_ids) > 3, "a distribution that shows the logits"
        else:
            assert log_probs[slot].max() - log_probs[slot][token] <= bound
    if confidences is None:
        peak = np.exp(log_probs.max(-1))
        confidences = torch.from_numpy(np.log(peak / (1 - peak)))
    found = np.log(block.confidence.astype(np.float64) / (1 - block.confidence.astype(np.float64)))
    np.testing.assert_allclose(found, confidences.numpy(), rtol=0, atol=bound)


CASES: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "qwen3-vanilla": ("qwen3", qwen3_config),
    "qwen3-gated": ("qwen3", lambda: qwen3_config(**heads_of("gated"))),
    "qwen3-rnn": ("qwen3", lambda: qwen3_config(**heads_of("rnn"))),
    "qwen3-dflash": ("qwen3", lambda: qwen3_config(**heads_of("none"))),
    "qwen3-confidence-of-hidden-alone": (
        "qwen3",
        lambda: qwen3_config(**heads_of("vanilla", with_markov=False)),
    ),
    "qwen3-no-confidence-head": (
        "qwen3",
        lambda: qwen3_config(**(heads_of("vanilla") | {"enable_confidence_head": False})),
    ),
    "qwen3-biases": ("qwen3", lambda: qwen3_config(attention_bias=True)),
    "qwen3-embedding-tap": ("qwen3", lambda: qwen3_config(target_layer_ids=[-1, 0, 2])),
    "gemma4-vanilla": ("gemma4", gemma4_config),
    "gemma4-rnn": ("gemma4", lambda: gemma4_config(**heads_of("rnn"))),
    "gemma4-dflash": ("gemma4", lambda: gemma4_config(**heads_of("none"))),
    "gemma4-own-values": ("gemma4", lambda: gemma4_config(attention_k_eq_v=False)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_blocks_over_growing_contexts_are_those_of_the_equations(
    case: str, dtype: torch.dtype, targets: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    family, make = CASES[case]
    directory, model = targets[family]
    config = make()
    path = write_drafter(tmp_path / case, config, random_tensors(config, directory))
    engine = make_engine(path, directory, dtype)
    plain = PlainDrafter(path, embedding_dtype=dtype)
    texts = texts_of(model, dtype, config["target_layer_ids"])
    for name, length, block in rounds(engine, texts):
        tokens, features = texts[name]
        expected = plain.block(features[:length], tokens[length], block.token_ids.tolist())
        check(block, expected.logits, expected.confidences, BOUNDS[dtype])
