"""The engine's forward against transformers alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_targets import Bench, save_tiny, some_tokens, stock

from dspark.engine.forward import StockForward
from dspark.engine.lean import LeanForward

FLOATS = [torch.float32, torch.float64]
# Of the largest logit: bfloat16 keeps 8 bits, and two orders of rounding meet over three layers.
BF16_TOLERANCE = 0.05
MODELS = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1, "head_dim": 64}),
    "llama-no-groups": ("llama", {"num_key_value_heads": 4}),
    "llama-odd-heads": ("llama", {"head_dim": 80}),
    "llama-gelu": ("llama", {"hidden_act": "gelu"}),
    "llama-scaled-rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True, "head_dim": 64}),
}
EACH_MODEL = pytest.mark.parametrize("name", list(MODELS))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: save_tiny(folder / name, family, **changes) for name, (family, changes) in MODELS.items()}


@EACH_MODEL
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_mixed_ragged_batch_has_the_logits_of_the_stock_forward(
    models: dict[str, Path], cache_dir: Path, name: str, dtype: torch.dtype
) -> None:
    bench = Bench(models[name], dtype, cache_dir)
    sequences = [some_tokens(length, seed=length) for length in (1, 16, 21, 50)]
    pages = [bench.pages(len(sequence)) for sequence in sequences]
    # The last two requests have a computed context already.
    bench.run((sequences[2][:18], 0, pages[2]), (sequences[3][:33], 0, pages[3]))
    logits, _ = bench.run(
        (sequences[2][18:], 18, pages[2]),
        (sequences[0], 0, pages[0]),
        (sequences[3][33:], 33, pages[3]),
        (sequences[1], 0, pages[1]),
    )
    expected = torch.cat(
        [
            stock(models[name], dtype, sequence)[0][start:]
            for sequence, start in (
                (sequences[2], 18),
                (sequences[0], 0),
                (sequences[3], 33),
                (sequences[1], 0),
            )
        ]
    )
    # The stock norms compute in float32 whatever the dtype.
    tolerance = 1e-5 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(logits, expected, atol=tolerance, rtol=tolerance)


@EACH_MODEL
def test_bfloat16_logits_are_as_near_to_the_truth_as_the_stock_ones(
    models: dict[str, Path], cache_dir: Path, name: str
) -> None:
    tokens = some_tokens(60)
    truth, _ = stock(models[name], torch.float64, tokens)
    theirs, _ = stock(models[name], torch.bfloat16, tokens)
    bench = Bench(models[name], torch.bfloat16, cache_dir)
    ours, _ = bench.run((tokens, 0, bench.pages(len(tokens))))
    error = (ours.double() - truth).square().mean().sqrt()
    their_error = (theirs.double() - truth).square().mean().sqrt()
    assert error < 1.5 * their_error
    assert (ours.double() - truth).abs().max() < BF16_TOLERANCE * truth.abs().max() + 4 * their_error


@EACH_MODEL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_are_bit_identical_in_any_company_and_chunking(
    models: dict[str, Path], cache_dir: Path, name: str, dtype: torch.dtype
) -> None:
    bench = Bench(models[name], dtype, cache_dir)
    if bench.pool.kernels is None:
        pytest.skip("exact mode needs the kernels")
    if not isinstance(bench.target.forward, LeanForward):
        pytest.skip("exact mode is promised for the lean forward")
    tokens, other = some_tokens(45), some_tokens(30, seed=5)
    pages, other_pages = bench.pages(45), bench.pages(30)
    whole, _ = bench.run((tokens, 0, pages))
    single = torch.cat([bench.run(([token], place, pages))[0] for place, token in enumerate(tokens)])
    beside, _ = bench.run((other, 0, other_pages), (tokens[30:], 30, pages))
    assert torch.equal(single, whole)
    assert torch.equal(beside[30:], whole[30:])


@pytest.mark.parametrize("use_kernels", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_embedding_can_be_tapped_beside_layers(
    models: dict[str, Path], cache_dir: Path, dtype: torch.dtype, use_kernels: bool
) -> None:
    tokens = some_tokens(20)
    taps = {}
    for layers in ((-1, 1), (1,)):
        bench = Bench(models["llama"], dtype, cache_dir, taps=layers, use_kernels=use_kernels)
        logits, taps[layers] = bench.run((tokens, 0, bench.pages(20)))
    expected_logits, states = stock(models["llama"], dtype, tokens)
    width = states[0].shape[-1]
    # a copy of rows of the embedding, with no rounding in it
    assert torch.equal(taps[-1, 1][:, :width], states[0])
    assert torch.equal(taps[-1, 1][:, width:], taps[1,])
    assert (logits - expected_logits).abs().max() <= BF16_TOLERANCE * expected_logits.abs().max()


@pytest.mark.parametrize("name", ["llama", "qwen3", "llama-gelu"])
@pytest.mark.parametrize("use_kernels", [True, False])
def test_taps_are_the_raw_outputs_of_their_layers(
    models: dict[str, Path], cache_dir: Path, name: str, use_kernels: bool
) -> None:
    bench = Bench(models[name], torch.float32, cache_dir, taps=(0, 1), use_kernels=use_kernels)
    tokens = some_tokens(20)
    _, taps = bench.run((tokens, 0, bench.pages(20)))
    _, states = stock(models[name], torch.float32, tokens)
    torch.testing.assert_close(taps, torch.cat([states[1], states[2]], dim=-1), atol=2e-4, rtol=2e-4)


def test_the_last_layer_is_tapped_before_the_last_norm(models: dict[str, Path], cache_dir: Path) -> None:
    lean = Bench(models["llama"], torch.float32, cache_dir, taps=(2,))
    plain = Bench(models["llama"], torch.float32, cache_dir, taps=(2,), use_kernels=False)
    tokens = some_tokens(20)
    _, ours = lean.run((tokens, 0, lean.pages(20)))
    _, hooked = plain.run((tokens, 0, plain.pages(20)))
    torch.testing.assert_close(ours, hooked, atol=2e-4, rtol=2e-4)


def test_models_without_a_lean_forward_run_the_stock_one(models: dict[str, Path], cache_dir: Path) -> None:
    assert isinstance(Bench(models["llama-gelu"], torch.float32, cache_dir).target.forward, StockForward)
    assert isinstance(Bench(models["llama"], torch.float64, cache_dir).target.forward, StockForward)
