"""What a run learns by: losses and their weights, anchors, optimiser, schedule; ours and the published."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import nn

from dspark.models.drafter import Drafter
from dspark.training.blocks import AnchorRule
from dspark.training.losses import LossWeights
from dspark.training.muon import Muon

_WARM_UP_STEPS = 20
_FALL_SHARE = 0.4
_COSINE_WARM_UP_SHARE = 0.04


class OptimiserKind(StrEnum):
    """What moves the matrices of the backbone; AdamW moves everything else."""

    MUON = "muon"
    ADAMW = "adamw"


class Schedule(StrEnum):
    """How the learning rate moves over a run."""

    # 20 steps up, constant, linear to zero over the last 40 %.
    TRAPEZOID = "trapezoid"
    # 20 steps up, then constant: for averaged weights.
    CONSTANT = "constant"
    # Up over the first 4 %, then half a cosine to zero (DeepSpec section 4.3, without its overshoot).
    COSINE = "cosine"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything about learning that is not the model, the data or the time.

    Attributes:
        position_decay: decay of the position weights, in slots.
        learning_rate: of the weight matrices; with Muon the rest has three quarters of it.
        growing_share: of the run in which blocks grow from one slot to gamma.
        averaged_share: of the run, its last part, over which the weights are averaged for the drafter that
            comes out.
        start_share: weight of the numbers the run begins with in the drafter that comes out.
        block_lens: slots of the blocks of one step after the other, over and over; empty: gamma in all.
    """

    loss: LossWeights
    position_decay: float
    anchors: AnchorRule
    optimiser: OptimiserKind
    schedule: Schedule
    learning_rate: float
    growing_share: float = 0.0
    averaged_share: float = 0.0
    start_share: float = 0.0
    block_lens: tuple[int, ...] = ()


RECIPES: Mapping[str, Recipe] = {
    "dspark": Recipe(
        LossWeights(soft=1.0, tv=1.0, confidence=0.5),
        position_decay=4.0,
        anchors=AnchorRule.SERVING,
        optimiser=OptimiserKind.MUON,
        schedule=Schedule.TRAPEZOID,
        learning_rate=2e-3,
    ),
    # DeepSpec sections 4.1 to 4.3. Its L1 norm is twice the total variation, so 0.9 of it is 1.8 here.
    "published": Recipe(
        LossWeights(hard=0.1, soft=0.0, tv=1.8, confidence=1.0),
        position_decay=4.0,
        anchors=AnchorRule.PUBLISHED,
        optimiser=OptimiserKind.ADAMW,
        schedule=Schedule.COSINE,
        learning_rate=6e-4,
    ),
}


# Weight of a step of a chain against the one before (DeepSpec section 7).
_STEP_DECAY = 0.8


def for_chains(recipe: Recipe) -> Recipe:
    """The recipe with the loss that DeepSpec has for chains.

    That is the cross entropy of the target's distribution alone, with 0.8 to the power of the step as weight.
    """
    loss = LossWeights(hard=0.0, soft=1.0, tv=0.0, confidence=0.0)
    return replace(recipe, loss=loss, position_decay=-1 / math.log(_STEP_DECAY))


def rate_share(schedule: Schedule, *, step: int, total_steps: int | None, progress: float) -> float:
    """Share of the base learning rate at a step.

    Args:
        schedule: the form.
        step: steps done.
        total_steps: of the whole run; None where the run has hours instead.
        progress: share of the run that is done, 0 to 1.
    """
    if schedule is not Schedule.COSINE:
        warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
        if schedule is Schedule.CONSTANT:
            return warm
        return warm * min(1.0, max(0.0, (1 - progress) / _FALL_SHARE))
    if total_steps is None:
        # A clock at zero says nothing of the first step: it takes a thousandth of the way.
        warm, fallen = max(progress, 1e-3) / _COSINE_WARM_UP_SHARE, progress - _COSINE_WARM_UP_SHARE
        return warm if warm < 1 else _half_cosine(fallen / (1 - _COSINE_WARM_UP_SHARE))
    warm_up = int(_COSINE_WARM_UP_SHARE * total_steps)
    if step < warm_up:
        return (step + 1) / warm_up
    return _half_cosine((step - warm_up) / (total_steps - warm_up))


def block_len_at(recipe: Recipe, *, step: int, progress: float, gamma: int) -> int:
    """Slots of the blocks of a step.

    While blocks grow: one for half of the growing share, then 2 to gamma for equally long each. After that as
    `Recipe.block_lens` says, and never more than gamma.
    """
    growing_share = recipe.growing_share
    if progress >= growing_share or gamma == 1:
        lens = recipe.block_lens or (gamma,)
        return min(lens[step % len(lens)], gamma)
    grown = 2 * progress / growing_share - 1
    return 1 if grown < 0 else 2 + int(grown * (gamma - 1))


def _half_cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0)))


def make_optimisers(drafter: Drafter, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Optimisers over all parameters, at their base learning rates."""
    matrices, others = _split_parameters(drafter)
    rate = recipe.learning_rate
    if recipe.optimiser is OptimiserKind.ADAMW:
        return [torch.optim.AdamW([*matrices, *others], lr=rate, betas=(0.9, 0.999), weight_decay=0.0)]
    return [
        Muon(matrices, lr=rate, weight_decay=0.01, dtype=drafter.lm_head.dtype),
        torch.optim.AdamW(others, lr=0.75 * rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _split_parameters(drafter: Drafter) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices of the backbone, and everything else."""
    matrices = [one for one in drafter.backbone.parameters() if one.dim() == 2]
    known = {id(one) for one in matrices}
    return matrices, [one for one in drafter.parameters() if id(one) not in known]
