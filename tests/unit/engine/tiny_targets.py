"""Tiny random targets on disk, and what the stock transformers forward computes for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dspark.engine.attention import RaggedStep
from dspark.engine.layout import Span, causal_layout
from dspark.engine.loading import LoadedTarget, load_target
from dspark.engine.pages import PagePool
from dspark.engine.target import make_pool
from dspark.models.target import quiet_transformers

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
VOCAB = 97


def save_tiny(path: Path, family: str, **changes: object) -> Path:
    """A random model of the family in a Hugging Face directory, saved in float32."""
    config_class, model_class = FAMILIES[family]
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "eos_token_id": 2,
        "initializer_range": 0.2,
    }
    torch.manual_seed(7)
    with quiet_transformers():
        model = model_class(config_class(**{**settings, **changes}))
        # Norms of 1 would hide a norm that is left out, biases of 0 a bias.
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
        model.save_pretrained(path)
    return path


@torch.inference_mode()
def stock(path: Path, dtype: torch.dtype, token_ids: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """Logits [T, V] and hidden states of all layers by transformers alone."""
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
    output = model(torch.tensor([list(token_ids)]), output_hidden_states=True)
    return output.logits[0], [states[0] for states in output.hidden_states]


class Bench:
    """A loaded tiny target over its own pool, run without the engine."""

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype,
        cache_dir: Path,
        *,
        taps: Sequence[int] = (),
        use_kernels: bool = True,
    ) -> None:
        self.target: LoadedTarget = load_target(
            path, dtype=dtype, target_layer_ids=taps, use_kernels=use_kernels, cache_dir=cache_dir
        )
        self.pool: PagePool = make_pool(self.target, 1024, cache_dir)

    def pages(self, num_tokens: int) -> list[int]:
        return self.pool.allocate(-(-num_tokens // self.pool.page_size))

    @torch.inference_mode()
    def run(self, *parts: tuple[Sequence[int], int, Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Logits and taps of all rows of parts (tokens, start, pages)."""
        spans = [Span(start, len(tokens), pages) for tokens, start, pages in parts]
        positions, layout = causal_layout(spans, self.pool.page_size)
        token_ids = torch.tensor([token for tokens, _, _ in parts for token in tokens])
        hidden, taps = self.target.forward.hidden(token_ids, positions, RaggedStep(self.pool, layout))
        return self.target.forward.logits(hidden), taps


def some_tokens(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (length,), generator=generator).tolist()
