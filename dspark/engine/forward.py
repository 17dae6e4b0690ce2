"""What the engine asks of a model, and the stock answer: transformers' own forward over one flattened row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dspark.engine.attention import RaggedStep
from dspark.engine.linear import open_arena, pack_linears
from dspark.models.config import EMBEDDING_TAP


class ModelConfig(Protocol):
    """What the engine reads from a model's config."""

    model_type: str
    hidden_act: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]


class CausalModel(Protocol):
    """A decoder-only model of transformers: `model` holds the layers, `lm_head` makes logits."""

    config: Any  # ModelConfig; transformers types it as the base of all configs
    model: Any
    lm_head: Any

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Modules directly below this one."""
        ...


class TargetForward(Protocol):
    """A target model over the flattened tokens of one step."""

    # whether its attention runs through the CPU kernels
    use_kernels: bool

    def hidden(self, token_ids: Tensor, positions: Tensor, step: RaggedStep) -> tuple[Tensor, Tensor]:
        """Hidden states [T, H] after the last norm, and tapped layer outputs [T, L*H].

        Args:
            token_ids: [T] int64.
            positions: [T] int64.
            step: where the rows stand, and the pages they see.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows of `hidden` [N, H] to logits [N, V]."""
        ...


class StockForward:
    """The model class as transformers wrote it; only attention and linear layers are ours."""

    def __init__(
        self,
        model: CausalModel,
        target_layer_ids: Sequence[int],
        *,
        use_kernels: bool = True,
        cache_dir: Path | None = None,
    ) -> None:
        self.use_kernels = use_kernels
        self._model = model
        self._taps: dict[int, Tensor] = {}
        self._layer_ids = tuple(target_layer_ids)
        self._hidden_size = model.config.hidden_size
        if use_kernels:
            pack_linears(model, open_arena(cache_dir))
        for layer_id in self._layer_ids:
            is_embedding = layer_id == EMBEDDING_TAP
            module = model.model.embed_tokens if is_embedding else model.model.layers[layer_id]
            module.register_forward_hook(self._tap_into(layer_id))

    def hidden(self, token_ids: Tensor, positions: Tensor, step: RaggedStep) -> tuple[Tensor, Tensor]:
        """See TargetForward."""
        output = self._model.model(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, ragged=step
        )
        hidden: Tensor = output.last_hidden_state[0]
        taps = [self._taps.pop(layer_id) for layer_id in self._layer_ids]
        return hidden, torch.cat(taps, dim=-1) if taps else hidden.new_empty((hidden.shape[0], 0))

    def logits(self, hidden: Tensor) -> Tensor:
        """See TargetForward."""
        logits: Tensor = self._model.lm_head(hidden)
        return logits

    def _tap_into(self, layer_id: int) -> Callable[[nn.Module, object, Tensor | tuple[Tensor, ...]], None]:
        def tap(_module: nn.Module, _inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
            states = output[0] if isinstance(output, tuple) else output
            self._taps[layer_id] = states.reshape(-1, self._hidden_size)

        return tap
