"""What the verifier sends to an MTP drafter, and what the drafter makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_targets import VOCAB, Bench, save_tiny, some_tokens

from dspark.models.chain import ChainDrafter
from dspark.models.checkpoint import build_drafter, read_target_tensors
from dspark.models.config import QWEN3_MTP, DrafterConfig

CONFIG = DrafterConfig(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    num_hidden_layers=1,
    num_target_layers=3,
    target_layer_ids=(2,),
    mask_token_id=0,
    gamma=1,
    markov_rank=0,
    has_confidence_head=False,
    confidence_head_with_markov=False,
    architecture=QWEN3_MTP,
)


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1), (torch.float64, 1e-5)], ids=str
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_first_states_are_the_targets_last_hidden_states(
    family: str, dtype: torch.dtype, bound: float, cache_dir: Path, tmp_path: Path
) -> None:
    path = save_tiny(tmp_path / "target", family)
    bench = Bench(path, dtype, cache_dir, taps=(2,))
    logits, taps = bench.run((some_tokens(20), 0, bench.pages(20)))
    drafter = build_drafter(CONFIG, read_target_tensors(path), None).to(dtype)
    assert isinstance(drafter, ChainDrafter)
    found = drafter.first_states(taps) @ drafter.lm_head.t()
    torch.testing.assert_close(found, logits, rtol=0, atol=bound)
