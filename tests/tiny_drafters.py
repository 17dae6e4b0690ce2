"""A drafter small enough for tests, with random weights that make every token likely somewhere."""

from __future__ import annotations

import torch

from dspark.models.config import DrafterConfig
from dspark.models.drafter import DSparkDrafter

TINY = DrafterConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_hidden_layers=2,
    num_target_layers=6,
    target_layer_ids=(1, 3),
    mask_token_id=5,
    gamma=4,
    markov_rank=8,
    draft_vocab_size=48,
    max_position_embeddings=256,
)


def random_drafter(
    config: DrafterConfig, draft_ids: torch.Tensor, *, std: float, seed: int = 0
) -> DSparkDrafter:
    """Normal matrices of this deviation; `draft_ids` are the target ids it can draft."""
    generator = torch.Generator().manual_seed(seed)
    embed, head = (torch.randn(config.vocab_size, config.hidden_size, generator=generator) for _ in range(2))
    drafter = DSparkDrafter(config, embed, head, draft_ids)
    drafter.initialise(generator, torch.ones(config.hidden_size))
    for parameter in drafter.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, std, generator=generator)
    for name, parameter in drafter.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(parameter, 0.0, std, generator=generator)
    return drafter.eval()
