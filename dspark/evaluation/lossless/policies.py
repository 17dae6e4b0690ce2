"""Ways to choose how much of a block is verified: those that ship, and that of Appendix A, which must not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dspark.scheduling.allocation import (
    allocate_early_stop,
    allocate_fixed,
    allocate_threshold,
    early_stop_budget,
)
from dspark.scheduling.capacity import CapacityCurve
from dspark.scheduling.ranking import RankedDrafts, rank_drafts
from dspark.scheduling.survival import survival

# Prefix length of one block, whose confidences come one by one.
Policy = Callable[[Iterator[float]], int]

# SPS(1, 2, 3) = 1.0, 0.5, 0.45 (paper, Appendix A)
APPENDIX_A_CURVE = CapacityCurve.from_points([(1, 1.0), (2, 1 / 0.5), (3, 1 / 0.45)])
# A step of four tokens costs this much more than one of one token.
_EXTRA_COSTS = (0.15, 0.9, 1.8)
_THRESHOLDS = (0.2, 0.5, 0.8)
# Confidences of a request beside the one looked at; the last ties with much.
_OTHER_BLOCKS = ((0.3, 0.9), (0.7, 0.6), (0.5, 0.5))

# Of the request looked at, against 1 of the other.
_WEIGHTS = (0.5, 4.0)


def early_stop(curve: CapacityCurve) -> Policy:
    """Algorithm 1 as it ships for few drafts: one by one."""
    return lambda confidences: allocate_early_stop([confidences], curve)[0]


def early_stop_at_once(curve: CapacityCurve) -> Policy:
    """Algorithm 1 as it ships for many drafts: from a ranking of all of them."""

    def choose(confidences: Iterator[float]) -> int:
        ranked = _rank(list(confidences))
        return ranked.prefix_lens(early_stop_budget(ranked, curve))[0]

    return choose


def fixed(prefix_len: int) -> Policy:
    """The same length always; 0 is plain decoding."""
    return lambda confidences: allocate_fixed([len(list(confidences))], prefix_len)[0]


def threshold(least: float) -> Policy:
    """Up to the first confidence below it."""
    return lambda confidences: allocate_threshold([confidences], least)[0]


def early_stop_beside(other: Sequence[float], curve: CapacityCurve, weight: float) -> Policy:
    """Algorithm 1 for a block whose request weighs so many times as much as one beside it."""
    return lambda confidences: allocate_early_stop([confidences, other], curve, weights=[weight, 1.0])[0]


def beside(other: Sequence[float], budget: int, *, comes_first: bool, weight: float = 1.0) -> Policy:
    """The share of a block in a budget that it fills together with another request's block of weight 1."""

    def choose(confidences: Iterator[float]) -> int:
        own = list(confidences)
        blocks = (own, other) if comes_first else (other, own)
        weights = (weight, 1.0) if comes_first else (1.0, weight)
        return _rank(*blocks, weights=weights).prefix_lens(budget)[0 if comes_first else 1]

    return choose


def _rank(*blocks: Sequence[float], weights: Sequence[float] | None = None) -> RankedDrafts:
    confidences = [np.array(block, dtype=np.float32) for block in blocks]
    return rank_drafts(confidences, None if weights is None else np.array(weights))


def retrospective(curve: CapacityCurve) -> Policy:
    """The negative control: compares all prefixes with all confidences in view, so it looks ahead."""

    def choose(confidences: Iterator[float]) -> int:
        alive = survival(np.array(list(confidences)))
        speeds = [
            (1.0 + alive[:length].sum()) * curve.steps_per_second(1 + length)
            for length in range(len(alive) + 1)
        ]
        return int(np.argmax(speeds))

    return choose


def shipped_policies(gamma: int) -> dict[str, dict[str, Policy]]:
    """Every policy that may decide about sampled requests, in many forms, by its name."""
    curves = {
        f"+{100 * extra:.0f} %": CapacityCurve.from_points([(1, 1.0), (4, 1.0 + extra)])
        for extra in _EXTRA_COSTS
    }
    # Tiers and promises weigh a block as a whole.
    curve, other = CapacityCurve.from_points([(1, 1.0), (6, 2.5)]), _OTHER_BLOCKS[-1]
    return {
        # Earlier rounds decide which of the two it is.
        "auto": {
            **{f"as early stop, {name}": early_stop(curve) for name, curve in curves.items()},
            **{
                f"as barrier, {budget} drafts": beside(other, budget, comes_first=True)
                for budget in range(2 * gamma + 1)
            },
        },
        "off": {"0 drafts": fixed(0)},
        "fixed": {f"{length} drafts": fixed(length) for length in range(1, gamma + 1)},
        "threshold": {f"{least:g}": threshold(least) for least in _THRESHOLDS},
        "early-stop": {
            **{f"one by one, {name}": early_stop(curve) for name, curve in curves.items()},
            **{f"at once, {name}": early_stop_at_once(curve) for name, curve in curves.items()},
            "appendix A": early_stop(APPENDIX_A_CURVE),
            **{f"weight {weight:g}": early_stop_beside(other, curve, weight) for weight in _WEIGHTS},
        },
        # The barrier's budget does not depend on this round's drafts: any will do, beside any other block.
        "barrier": {
            **{
                f"{budget} drafts beside {block}": beside(block, budget, comes_first=budget % 2 == 0)
                for budget in range(2 * gamma + 1)
                for block in _OTHER_BLOCKS
            },
            **{
                f"{budget} drafts, weight {weight:g}": beside(other, budget, comes_first=True, weight=weight)
                for budget in range(2 * gamma + 1)
                for weight in _WEIGHTS
            },
        },
    }
