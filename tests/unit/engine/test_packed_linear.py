from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from dspark.engine.linear import (
    PackedLinear,
    WeightArena,
    fuse_linears,
    make_linear,
    open_arena,
    pack_linears,
)

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
# bfloat16 rounds the result once: half a unit in the last place
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-8}
SHAPES = [(96, 64), (50, 64), (33, 128), (64, 48), (17, 20)]


def random_linear(dtype: torch.dtype, shape: tuple[int, int], *, bias: bool = False) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(shape[1], shape[0], bias=bias).to(dtype)


def exact(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    bias = None if linear.bias is None else linear.bias.double()
    return functional.linear(x.double(), linear.weight.double(), bias)


@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_a_packed_layer_computes_what_it_was_packed_from(
    cache_dir: Path, dtype: torch.dtype, shape: tuple[int, int], bias: bool
) -> None:
    linear = random_linear(dtype, shape, bias=bias)
    packed = make_linear(linear.weight, linear.bias, arena=open_arena(cache_dir))
    x = torch.randn(37, shape[1]).to(dtype)
    torch.testing.assert_close(
        packed(x).double(), exact(linear, x), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


@DTYPES
@torch.inference_mode()
def test_a_row_is_bit_identical_at_every_row_count(cache_dir: Path, dtype: torch.dtype) -> None:
    packed = make_linear(random_linear(dtype, (96, 64)).weight, arena=open_arena(cache_dir))
    x = torch.randn(70, 64).to(dtype)
    whole = packed(x)
    for count in (1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 48, 64):
        assert torch.equal(packed(x[:count]), whole[:count]), count


@DTYPES
@torch.inference_mode()
def test_fused_layers_give_their_outputs_side_by_side(cache_dir: Path, dtype: torch.dtype) -> None:
    first, second = random_linear(dtype, (96, 64), bias=True), random_linear(dtype, (32, 64), bias=True)
    x = torch.randn(5, 64).to(dtype)
    fused = fuse_linears(first, second, arena=open_arena(cache_dir))(x)
    expected = torch.cat([exact(first, x), exact(second, x)], dim=1)
    torch.testing.assert_close(fused.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@torch.inference_mode()
def test_a_gated_layer_multiplies_ups_by_their_activated_gates(cache_dir: Path) -> None:
    arena = open_arena(cache_dir)
    if arena is None:
        pytest.skip("this CPU does not multiply bfloat16 by itself")
    weight = random_linear(torch.bfloat16, (96, 64)).weight
    packed = PackedLinear(weight, None, arena=arena, is_gated=True)
    x = torch.randn(21, 64).bfloat16()
    gate, up = functional.linear(x, weight).chunk(2, dim=1)
    torch.testing.assert_close(packed(x), functional.silu(gate) * up, atol=2**-8, rtol=2**-7)


@DTYPES
@torch.inference_mode()
def test_packing_a_module_keeps_its_outputs(cache_dir: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Sequential(nn.Linear(96, 7))).to(dtype)
    x = torch.randn(2, 3, 64).to(dtype)
    expected = module(x)
    pack_linears(module, open_arena(cache_dir))
    assert not any(isinstance(child, nn.Linear) for child in module.modules())
    torch.testing.assert_close(module(x), expected, atol=2 * TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype])


@torch.inference_mode()
def test_a_float64_layer_stays_a_stock_one(cache_dir: Path) -> None:
    linear = random_linear(torch.float64, (8, 16), bias=True)
    made = make_linear(linear.weight, linear.bias, arena=open_arena(cache_dir))
    x = torch.randn(3, 16, dtype=torch.float64)
    assert type(made) is nn.Linear
    assert torch.equal(made(x), linear(x))


def int8_arena(cache_dir: Path) -> WeightArena:
    arena = open_arena(cache_dir, prefers_int8=True)
    if arena is None or not arena.kernels.has_int8:
        pytest.skip("this CPU gains nothing from weights of 8 bits")
    return arena


@pytest.mark.parametrize("shape", [(96, 64), (50, 64), (33, 128)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_weights_of_8_bits_are_off_by_at_most_half_a_unit_of_their_row(
    cache_dir: Path, shape: tuple[int, int], bias: bool
) -> None:
    linear = random_linear(torch.bfloat16, shape, bias=bias)
    linear.weight[3] = 0  # a row without a scale
    linear.weight[5] *= 1000
    packed = make_linear(linear.weight, linear.bias, arena=int8_arena(cache_dir))
    # One input at a time: each output is one weight, rounded to bfloat16.
    found = packed(torch.eye(shape[1]).bfloat16()).double()
    expected = exact(linear, torch.eye(shape[1]).bfloat16())
    unit = linear.weight.double().abs().amax(dim=1) / 127
    # A byte reads what lies below it as a fraction, which cannot be taken off where rounding ends at 127.
    assert ((found - expected).abs() <= 1.001 * unit + 2**-8 * expected.abs()).all()
    within_half = (found - expected).abs() <= 0.501 * unit + 2**-8 * expected.abs()
    assert within_half.double().mean() > 0.98


@torch.inference_mode()
def test_a_row_is_bit_identical_at_every_row_count_with_weights_of_8_bits(cache_dir: Path) -> None:
    weight = random_linear(torch.bfloat16, (96, 64)).weight
    packed = make_linear(weight, arena=int8_arena(cache_dir))
    x = torch.randn(70, 64).bfloat16()
    whole = packed(x)
    for count in range(1, 33):
        assert torch.equal(packed(x[:count]), whole[:count]), count


@torch.inference_mode()
def test_a_gated_layer_of_8_bits_is_near_the_one_of_bfloat16(cache_dir: Path) -> None:
    weight = random_linear(torch.bfloat16, (96, 64)).weight
    packed = PackedLinear(weight, None, arena=int8_arena(cache_dir), is_gated=True)
    x = torch.randn(21, 64).bfloat16()
    gate, up = functional.linear(x, weight).chunk(2, dim=1)
    expected = functional.silu(gate) * up
    assert (packed(x) - expected).norm() <= 0.02 * expected.norm()
