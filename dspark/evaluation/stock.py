"""The stock transformers model of the same directory and dtype: baseline for speed, judge of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspark.models.target import quiet_transformers


class StockModel:
    """transformers' own forward and `generate`, untouched by any of our kernels."""

    def __init__(self, path: Path, dtype: str, *, compute_dtype: str | None = None) -> None:
        """Load the model.

        Args:
            path: a prepared target directory.
            dtype: name of the torch type of weights and computation.
            compute_dtype: of the computation where it is another one; the weights stay rounded to `dtype`.
        """
        from transformers import AutoModelForCausalLM

        with quiet_transformers():
            model: Any = AutoModelForCausalLM.from_pretrained(
                path, dtype=getattr(torch, dtype), local_files_only=True
            )
        model = model if compute_dtype is None else model.to(getattr(torch, compute_dtype))
        self.model = model.eval().requires_grad_(False)

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        eos_token_ids: Sequence[int],
        *,
        prompt_lookup: int | None = None,
    ) -> list[tuple[int, ...]]:
        """Greedy outputs, end-of-text token included.

        Args:
            prompts: token ids; several are padded on the left and decoded as one batch.
            max_new_tokens: limit of each output.
            eos_token_ids: tokens that end it earlier.
            prompt_lookup: drafts per round found by prompt lookup (one prompt only); None: plain.
        """
        pad = eos_token_ids[0] if eos_token_ids else 0
        width = max(len(prompt) for prompt in prompts)
        rows = [[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        with quiet_transformers():
            output = self.model.generate(
                input_ids=torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                eos_token_id=list(eos_token_ids) or None,
                pad_token_id=pad,
                prompt_lookup_num_tokens=prompt_lookup,
            )
        return [cut_after(row, eos_token_ids) for row in output[:, width:].tolist()]

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int], prompt_len: int) -> Tensor:
        """Logits that chose each token after the prompt, by teacher forcing, [T, V] float64."""
        logits: Tensor = self.model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
        return logits[prompt_len - 1 : len(token_ids) - 1].double()


def cut_after(token_ids: Sequence[int], stop_token_ids: Sequence[int]) -> tuple[int, ...]:
    """The tokens up to the first stop token, which stays; padding behind it goes."""
    for place, token_id in enumerate(token_ids):
        if token_id in stop_token_ids:
            return tuple(token_ids[: place + 1])
    return tuple(token_ids)
