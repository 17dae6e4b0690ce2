"""A new drafter whose layers are copies of the target's last ones, which learns sooner than one of noise."""

from __future__ import annotations

import torch
from torch import Tensor

from dspark.models.drafter import Drafter
from dspark.models.heads import MarkovHead

LayerTensors = dict[str, Tensor]
# Of the newest state that is fused: noise of the other columns is about as large.
_SHARE_PASSED = 0.5
# Of the numbers in W1 of a Markov head: those of noise, 0.02, take long to grow.
_MARKOV_SIZE = 0.15


def copied_layers(num_layers: int, num_target_layers: int) -> tuple[int, ...]:
    """Numbers of the target layers that the layers of a drafter start as: the last ones, in order."""
    return tuple(range(max(0, num_target_layers - num_layers), num_target_layers))


@torch.no_grad()
def copy_layers(drafter: Drafter, layers: list[LayerTensors]) -> int:
    """Copy a target layer into each layer of the drafter; return how many tensors were.

    What has other names or shapes there stays as it was initialised; what is read of the target passes its
    fusion from the start. An attention of Eagle3 reads the embedding beside the state: the columns of the
    state are the target's. Norms of queries and keys that the target does not have get the size that its
    queries and keys have behind a norm.

    Args:
        drafter: initialised.
        layers: of the target, by names such as `self_attn.q_proj.weight`.
    """
    count = _open_inputs(drafter, layers)
    for index, tensors in enumerate(layers):
        for name, parameter in drafter.get_submodule(f"backbone.layers.{index}").named_parameters():
            source = tensors.get(name)
            if source is None:
                source = _norm_of(name, tensors, parameter)
            if source is not None and _fits(source, parameter):
                parameter[..., -source.shape[-1] :] = source.to(parameter.dtype)
                count += 1
    return count


@torch.no_grad()
def start_markov_head(head: MarkovHead, embed_tokens: Tensor) -> None:
    """Let W1 start as the directions in which the target's embedding [V, H] varies most, all equally long.

    Tokens that the target takes for alike are alike from the start, those too that are hardly ever trained.
    """
    rows = embed_tokens.float()
    rows = rows - rows.mean(dim=0)
    variances, directions = torch.linalg.eigh(rows.T @ rows / len(rows))
    count = min(head.markov_w1.embedding_dim, rows.shape[1])
    scaled = directions[:, -count:] * (_MARKOV_SIZE / variances[-count:].clamp_min(1e-12).sqrt())
    head.markov_w1.weight[:, :count] = rows @ scaled


def _open_inputs(drafter: Drafter, layers: list[LayerTensors]) -> int:
    """Let the newest of what is fused through, in the size that the layers of the target know.

    The last tap of DSpark and Eagle3 and the state of MTP are the last columns of their projections.
    """
    parameters = dict(drafter.named_parameters())
    size = drafter.config.hidden_size
    for name in ("backbone.fc.weight", "backbone.eh_proj.weight"):
        if name in parameters:
            parameters[name][:, -size:] += _SHARE_PASSED * torch.eye(size)
    norm = layers[-1].get("input_layernorm.weight") if layers else None
    norms = [one for name, one in parameters.items() if name.endswith("hidden_norm.weight")]
    if norm is None or norm.shape != (size,):
        return 0
    for own in norms:
        own.copy_(norm)
    return len(norms)


def _fits(source: Tensor, parameter: Tensor) -> bool:
    """Whether it is as large, or as large as its last columns."""
    if source.dim() != parameter.dim() or source.shape[:-1] != parameter.shape[:-1]:
        return False
    width, own = source.shape[-1], parameter.shape[-1]
    return width == own or (source.dim() == 2 and 2 * width == own)


def _norm_of(name: str, tensors: LayerTensors, parameter: Tensor) -> Tensor | None:
    """Weight of a norm of queries or keys for a target that has none: their root mean square, everywhere."""
    part = {"self_attn.q_norm.weight": "q_proj", "self_attn.k_norm.weight": "k_proj"}.get(name)
    if part is None or f"self_attn.{part}.weight" not in tensors:
        return None
    projection, norm = tensors[f"self_attn.{part}.weight"].float(), tensors.get("input_layernorm.weight")
    if norm is not None and norm.shape == projection.shape[1:]:
        projection = projection * norm.float()
    # inputs behind the norm are taken as independent numbers of size one
    return torch.full_like(parameter, float(projection.pow(2).sum(1).mean().sqrt()))
