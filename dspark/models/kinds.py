"""Makes the drafter that a configuration describes."""

from __future__ import annotations

from torch import Tensor

from dspark.models.chain import ChainDrafter
from dspark.models.config import DrafterConfig
from dspark.models.drafter import Drafter, DSparkDrafter
from dspark.models.eagle3 import Eagle3Backbone
from dspark.models.mtp import MtpBackbone


def make_drafter(
    config: DrafterConfig,
    embed_tokens: Tensor,  # [V, H]
    lm_head: Tensor,  # [V, H]
    d2t: Tensor,  # [Vd] int64
    *,
    norm: Tensor | None = None,  # [H]
) -> Drafter:
    """An untrained drafter over its target's embedding, head and, where it reads last states, last norm."""
    rows = (embed_tokens, lm_head, d2t)
    if not config.is_chain:
        return DSparkDrafter(config, *rows)
    if config.is_eagle3:
        return ChainDrafter(config, rows, Eagle3Backbone(config))
    assert norm is not None, "the target's last norm is missing"
    return ChainDrafter(config, rows, MtpBackbone(config), norm)
