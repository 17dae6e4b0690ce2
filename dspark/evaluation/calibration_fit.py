"""Fits a drafter's calibration on rounds really decoded (sequential scaling, paper §3.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dspark.errors import ConfigurationError
from dspark.evaluation.block_log import BlockLog
from dspark.evaluation.generation import Engines, Generation, LocalDecoder
from dspark.evaluation.requests import make_requests
from dspark.evaluation.tasks import TaskPrompt
from dspark.rounds.interfaces import Drafter
from dspark.scheduling.calibration import SequentialScaling
from dspark.scheduling.formats.temperatures import Temperatures

Floats = npt.NDArray[np.float32]
# float32 confidences are no closer to 0 and 1 than this once they are logits again.
_SMALLEST = 1e-6
_LEAST_BLOCKS = 200


@dataclass(frozen=True, slots=True)
class DecodedBlocks:
    """Blocks verified in full, of one kind of sampling.

    Attributes:
        logits: [N, G] of the confidence head, before any scaling.
        survived: [N, G], 1 where the draft and all before it were accepted.
    """

    logits: Floats
    survived: Floats


@dataclass(frozen=True, slots=True)
class Fit:
    """A scaling fitted on all blocks, and errors on blocks they were not fitted on.

    Attributes:
        before: calibration error of the survival at each position with the scaling in use.
        after: with one fitted on every other block, on the blocks left out.
    """

    scaling: SequentialScaling
    before: list[float]
    after: list[float]
    num_blocks: int


async def decode_blocks(
    engines: Engines,
    prompts: Sequence[TaskPrompt],
    *,
    temperature: float,
    in_use: SequentialScaling,
    max_new_tokens: int,
    streams: int,
) -> DecodedBlocks:
    """Decode all prompts with full blocks and keep confidences and outcomes.

    Args:
        engines: with a drafter.
        prompts: encoded.
        temperature: 0 is greedy.
        in_use: the scaling the engine applies, which is taken out again.
        max_new_tokens: limit of each output.
        streams: prompts side by side.
    """
    assert engines.drafter is not None, "there is nothing to calibrate without a drafter"
    logs: list[BlockLog] = []

    def watch(drafter: Drafter) -> Drafter:
        logs.append(BlockLog(drafter))
        return logs[0]

    requests = make_requests(
        prompts,
        max_new_tokens,
        engines.target.info.eos_token_ids,
        temperature=temperature,
        seed=1,
        label=f"t{temperature:g}-",
    )
    outputs: list[Generation] = []
    async with LocalDecoder(engines, policy="fixed", wrap=watch) as decoder:
        for start in range(0, len(requests), streams):
            outputs += await decoder.generate(requests[start : start + streams])
    prompt_lens = [len(prompt.token_ids) for prompt in prompts]
    confidence, survived = logs[0].outcomes(outputs, prompt_lens, engines.drafter.info.gamma)
    return DecodedBlocks(raw_logits(confidence, in_use), survived)


def raw_logits(confidence: Floats, in_use: SequentialScaling) -> Floats:
    """Logits of the confidence head from calibrated confidences [N, G]."""
    return in_use.undo(np.clip(confidence.astype(np.float64), _SMALLEST, 1.0 - _SMALLEST)).astype(np.float32)


def fit(blocks: DecodedBlocks, in_use: SequentialScaling, *, has_offsets: bool = True) -> Fit:
    """Fit a scaling; the errors reported are on held-out blocks.

    Raises:
        ConfigurationError: too few blocks to say anything.
    """
    num_blocks = len(blocks.logits)
    if num_blocks < _LEAST_BLOCKS:
        raise ConfigurationError(
            f"only {num_blocks} whole blocks were decoded and {_LEAST_BLOCKS} are needed; "
            "raise --limit or --tokens, or name more --prompts"
        )
    is_fitted_on = np.arange(num_blocks) % 2 == 0
    trial = SequentialScaling.fit(
        blocks.logits[is_fitted_on], blocks.survived[is_fitted_on], has_offsets=has_offsets
    )
    held_out = blocks.logits[~is_fitted_on], blocks.survived[~is_fitted_on]
    return Fit(
        scaling=SequentialScaling.fit(blocks.logits, blocks.survived, has_offsets=has_offsets),
        before=in_use.survival_errors(*held_out),
        after=trial.survival_errors(*held_out),
        num_blocks=num_blocks,
    )


def fit_temperatures(blocks: DecodedBlocks, origin: str) -> Temperatures:
    """Fit temperatures alone, for engines that know no offsets; errors against the head as it is.

    Args:
        blocks: of one kind of sampling.
        origin: what they are, in words.

    Raises:
        ConfigurationError: too few blocks to say anything.
    """
    fitted = fit(blocks, SequentialScaling.identity(blocks.logits.shape[1]), has_offsets=False)
    return replace(
        Temperatures.of(fitted.scaling),
        num_blocks=fitted.num_blocks,
        before=tuple(fitted.before),
        after=tuple(fitted.after),
        origin=origin,
    )
