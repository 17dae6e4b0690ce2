"""Training in bfloat16 and in float32: the same objective, the same gradients up to rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from dspark import processor
from dspark.models.checkpoint import build_drafter
from dspark.models.drafter import DSparkDrafter
from dspark.training import precision
from dspark.training.blocks import BlockBatch
from dspark.training.fused_loss import load_fused_loss
from dspark.training.losses import LossWeights, Teacher
from dspark.training.muon import Muon, orthogonalise
from dspark.training.objective import run_blocks
from dspark.training.precision import set_training_dtype, training_dtype
from tests.tiny_drafters import TINY

pytestmark = pytest.mark.timeout(120)
DTYPES = [torch.bfloat16, torch.float32]
SAMPLES, WIDTH, ANCHORS, GAMMA, HIDDEN, VOCAB = 2, 24, 6, 3, 32, 64
CONFIG = replace(
    TINY,
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    head_dim=8,
    num_hidden_layers=1,
    mask_token_id=4,
    gamma=GAMMA,
    markov_rank=16,
    draft_vocab_size=0,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    max_position_embeddings=128,
)


def make_drafter(dtype: torch.dtype) -> DSparkDrafter:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(VOCAB, HIDDEN, generator=generator) * 0.3
    drafter = build_drafter(CONFIG, {"embed": rows.bfloat16(), "head": rows.bfloat16()}, None)
    drafter.initialise(generator, torch.ones(HIDDEN))
    return set_training_dtype(drafter, dtype)


def make_batch() -> BlockBatch:
    generator = torch.Generator().manual_seed(1)
    head = make_drafter(torch.float32).lm_head
    num_slots = SAMPLES * ANCHORS * GAMMA
    last = (torch.randn(num_slots, HIDDEN, generator=generator) * 2).bfloat16()
    tokens = torch.randint(0, VOCAB, (SAMPLES * ANCHORS, GAMMA + 1), generator=generator)
    return BlockBatch(
        features=torch.randn(SAMPLES * WIDTH, 2 * HIDDEN, generator=generator).bfloat16(),
        token_ids=torch.zeros(SAMPLES * WIDTH, dtype=torch.int64),
        token_starts=tuple(range(0, (SAMPLES + 1) * WIDTH, WIDTH)),
        block_starts=tuple(range(0, (SAMPLES + 1) * ANCHORS, ANCHORS)),
        anchors=torch.arange(8, 8 + ANCHORS).repeat(SAMPLES),
        tokens=tokens,
        is_valid=torch.ones(SAMPLES * ANCHORS, GAMMA, dtype=torch.bool),
        teacher=Teacher(last, (last.float() @ head.t()).logsumexp(-1), tokens[:, 1:].reshape(-1)),
    )


def gradients(dtype: torch.dtype, *, use_kernel: bool) -> tuple[float, torch.Tensor]:
    drafter = make_drafter(dtype)
    fused = load_fused_loss(VOCAB) if use_kernel else None
    assert not use_kernel or fused is not None, "this machine has a compiler"
    value, _ = run_blocks(drafter, make_batch(), LossWeights(hard=0.1), decay=4.0, fused=fused)
    value.backward()
    parts = [one.grad for one in drafter.parameters() if one.grad is not None]
    assert all(part.dtype == torch.float32 for part in parts)
    return float(value.detach()), torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("use_kernel", [False, True])
def test_both_dtypes_give_one_loss_and_one_gradient(use_kernel: bool) -> None:
    (half_loss, half), (full_loss, full) = (gradients(dtype, use_kernel=use_kernel) for dtype in DTYPES)
    assert half_loss == pytest.approx(full_loss, rel=0.02)
    assert (half - full).norm() < 0.1 * full.norm()


def test_in_float32_the_kernel_and_autograd_agree_to_five_digits() -> None:
    (loss, eager), (fused_loss, fused) = (
        gradients(torch.float32, use_kernel=use_kernel) for use_kernel in (False, True)
    )
    assert fused_loss == pytest.approx(loss, rel=1e-5)
    assert (fused - eager).norm() < 1e-4 * eager.norm()


def make_muon(dtype: torch.dtype, matrix: nn.Parameter) -> torch.optim.Optimizer:
    return Muon([matrix], lr=0.1, weight_decay=0.01, dtype=dtype)


def take_muon_steps(make: Callable[[nn.Parameter], torch.optim.Optimizer], shape: tuple[int, int]) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    matrix = nn.Parameter(torch.randn(shape, generator=generator))
    optimiser = make(matrix)
    for _ in range(3):
        matrix.grad = torch.randn(shape, generator=generator)
        optimiser.step()
    return matrix.detach()


@pytest.mark.parametrize("shape", [(8, 24), (24, 8)])
def test_muon_steps_as_torchs_in_bfloat16_and_nearly_so_in_float32(shape: tuple[int, int]) -> None:
    def torchs(matrix: nn.Parameter) -> torch.optim.Optimizer:
        return torch.optim.Muon([matrix], lr=0.1, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")

    expected = take_muon_steps(torchs, shape)
    for dtype, bound in ((torch.bfloat16, 1e-6), (torch.float32, 0.02)):
        ours = take_muon_steps(partial(make_muon, dtype), shape)
        assert (ours - expected).abs().max() < bound


@pytest.mark.parametrize("turn", [False, True])
def test_muon_takes_the_longer_side_of_a_matrix_in_blocks(turn: bool) -> None:
    torch.manual_seed(3)
    gradient = torch.randn(192, 48)
    update = orthogonalise(gradient.t() if turn else gradient, torch.float32)
    update = update.t() if turn else update
    for start in range(0, 192, 64):
        block = orthogonalise(gradient[start : start + 64], torch.float32)
        assert torch.allclose(update[start : start + 64], block, atol=1e-5)
    sizes = torch.linalg.svdvals(update[:64])
    assert sizes.min() > 0.3
    assert sizes.max() < 1.3
    assert torch.linalg.svdvals(update).max() > 1.4


@pytest.mark.parametrize(
    ("cpuinfo", "has_onednn", "dtype"),
    [
        ({"flags": "fma avx2"}, False, torch.float32),
        # torch multiplies it there, but by float32 products and conversions
        ({"flags": "avx512f avx512_vnni"}, True, torch.float32),
        ({"flags": "avx512f avx512_bf16"}, True, torch.bfloat16),
        ({"flags": "avx512f amx_bf16"}, True, torch.bfloat16),
        ({"flags": "avx512f amx_bf16"}, False, torch.float32),
        ({"Features": "asimd bf16"}, True, torch.bfloat16),
        ({}, True, torch.float32),
    ],
)
def test_bfloat16_needs_instructions_that_torch_uses(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: dict[str, str], has_onednn: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(processor, "cpuinfo", lambda: cpuinfo)
    monkeypatch.setattr(precision, "has_onednn_bfloat16", lambda: has_onednn)
    assert training_dtype() == dtype
