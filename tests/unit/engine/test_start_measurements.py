"""What is checked and measured at start, and that it is measured once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from tiny_targets import Bench, save_tiny

from dspark.engine.exactness import check_exactness
from dspark.engine.measurements import Measurements
from dspark.engine.precision import choose_dtype
from dspark.engine.profile import measure_step_cost
from dspark.engine.target import TargetEngine


def test_the_cost_of_a_step_is_measured_at_every_size_that_fits(tiny_llama: Path, cache_dir: Path) -> None:
    bench = Bench(tiny_llama, torch.float32, cache_dir)
    points = measure_step_cost(bench.target, bench.pool)
    # 1024 tokens are 64 pages, 16 for each request of eight rows.
    assert [size for size, _ in points] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert all(seconds > 0 for _, seconds in points)
    assert bench.pool.num_free == bench.pool.num_pages


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_exact_mode_holds_with_the_kernels(tiny_llama: Path, cache_dir: Path, dtype: torch.dtype) -> None:
    bench = Bench(tiny_llama, dtype, cache_dir)
    if bench.pool.kernels is None:
        pytest.skip("no compiler here")
    exactness = check_exactness(bench.target, bench.pool)
    assert exactness.is_exact, exactness.reason
    assert bench.pool.num_free == bench.pool.num_pages


def test_the_exactness_check_notices_a_batch_that_matters(tiny_llama: Path, cache_dir: Path) -> None:
    bench = Bench(tiny_llama, torch.float32, cache_dir)
    inner = bench.target.forward

    class Crowded:
        use_kernels = True
        hidden = staticmethod(inner.hidden)

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return inner.logits(hidden) + 1e-3 * hidden.shape[0]

    object.__setattr__(bench.target, "forward", Crowded())
    exactness = check_exactness(bench.target, bench.pool)
    assert not exactness.is_exact
    assert "one by one" in exactness.reason


def test_a_pool_too_small_for_the_check_says_so(tiny_llama: Path, cache_dir: Path) -> None:
    bench = Bench(tiny_llama, torch.float32, cache_dir)
    bench.pool.allocate(bench.pool.num_pages - 2)
    assert check_exactness(bench.target, bench.pool).reason == "the KV pool is too small to check"


def test_auto_chooses_the_dtype_that_was_measured_faster(tiny_llama: Path, tmp_path: Path) -> None:
    measurements = Measurements(tiny_llama, tmp_path)
    measurements.record("dtype", {"bfloat16": 0.002, "float32": 0.001})
    choice = choose_dtype("auto", tiny_llama, measurements=measurements, cache_dir=tmp_path)
    assert choice.dtype is torch.float32
    assert "1.00 ms in float32 and 2.00 ms in bfloat16" in choice.reason


def test_auto_measures_once(tiny_llama: Path, cache_dir: Path, tmp_path: Path) -> None:
    measurements = Measurements(tiny_llama, tmp_path)
    first = choose_dtype("auto", tiny_llama, measurements=measurements, cache_dir=cache_dir)
    again = choose_dtype("auto", tiny_llama, measurements=measurements, cache_dir=cache_dir)
    assert first == again


def test_measurements_belong_to_their_weights(tiny_llama: Path, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other", "llama", num_hidden_layers=1)
    Measurements(tiny_llama, tmp_path).record("dtype", {"bfloat16": 1.0})
    assert Measurements(tiny_llama, tmp_path).recall("dtype") == {"bfloat16": 1.0}
    assert Measurements(other, tmp_path).recall("dtype") is None


def test_a_measurement_is_dated_and_can_be_forgotten(tiny_llama: Path, tmp_path: Path) -> None:
    measurements = Measurements(tiny_llama, tmp_path)
    assert measurements.made_at("step-cost-float32") is None
    before = datetime.now(UTC)
    for name in ("step-cost-float32", "step-cost-bfloat16", "dtype"):
        measurements.record(name, 1)
    made_at = measurements.made_at("step-cost-float32")
    assert made_at is not None
    assert abs(made_at - before) < timedelta(seconds=60)
    measurements.forget("step-cost-*")
    assert measurements.made_at("step-cost-bfloat16") is None
    assert measurements.recall("dtype") == 1


def test_a_broken_record_is_measured_again(tiny_llama: Path, tmp_path: Path) -> None:
    measurements = Measurements(tiny_llama, tmp_path)
    measurements.record("dtype", 1)
    for file in (tmp_path / "measurements").iterdir():
        file.write_text("{")
    assert measurements.recall("dtype") is None


def test_a_loaded_engine_describes_itself(tiny_llama: Path, cache_dir: Path) -> None:
    engine = TargetEngine.load(tiny_llama, pool_tokens=4096, cache_dir=cache_dir)
    info = engine.info
    assert (info.name, info.vocab_size, info.eos_token_ids) == ("llama", 97, (2,))
    assert (info.page_size, info.num_pages, info.max_context_len) == (16, 256, 256)
    assert info.dtype in ("bfloat16", "float32")
    assert info.dtype in engine.dtype_reason
    assert [size for size, _ in info.step_cost][:3] == [1, 2, 3]
    assert engine.num_free_pages == 256
