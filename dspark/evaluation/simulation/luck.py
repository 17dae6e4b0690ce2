"""What a request's target says and which drafts it would accept: drawn once, before anything is scheduled.

Everything is a function of (seed, request, position): never of a policy, a load or a batch. Policies are so
compared on identical luck, and the output is the same text under all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark.decoding.rng import Purpose, uniforms
from dspark.decoding.types import Floats, TokenIds
from dspark.evaluation.simulation.trace import DOMAINS, TraceRequest
from dspark.scheduling.calibration import SequentialScaling

VOCAB_SIZE = 50_000
# Neighbouring positions are hard or easy together.
_SEGMENT_LEN = 16
# Slope of the log-odds' logistic against a normal of the same width: keeps a domain's mean acceptance in
# spite of the spread (MacKay's approximation, pi/8).
_LOGISTIC_WIDTH = np.pi / 8.0
_DOMAIN_LEN = 8


@dataclass(frozen=True, slots=True)
class Story:
    """All that may happen to one request. L is its output length, G the block length.

    Attributes:
        request: as the trace has it.
        text: [L + G] what the target says; the output is its first L tokens.
        confidence: [L + 1, G] of a block whose first draft stands at this position of the output.
        num_right: [L + 1] how many drafts of that block the target would say, too.
    """

    request: TraceRequest
    text: TokenIds
    confidence: Floats
    num_right: npt.NDArray[np.int64]


class Luck:
    """The stories of a trace, drawn when first asked for."""

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        *,
        seed: int,
        gamma: int,
        confidence_offset: float = 0.0,
        spread: float = 1.0,
    ) -> None:
        """Fix all luck.

        Args:
            trace: the requests; each has its luck by its place.
            seed: 0 <= seed < 2**32.
            gamma: drafts of a block.
            confidence_offset: added to the log-odds of every confidence; 0 is calibrated, above is too sure.
            spread: standard deviation of the log-odds from position to position, which the drafter knows: 0
                makes every block of a request look alike.
        """
        assert 0 <= seed < 2**32, seed
        self._trace = trace
        self._seed = seed
        self._gamma = gamma
        self._spread = spread
        self._scaling = SequentialScaling((1.0,) * gamma, (confidence_offset,) * gamma)
        self._stories: dict[int, Story] = {}

    @property
    def trace(self) -> Sequence[TraceRequest]:
        """The requests."""
        return self._trace

    @property
    def gamma(self) -> int:
        """Drafts of a block."""
        return self._gamma

    def story(self, index: int) -> Story:
        """The story of the request at this place of the trace."""
        if index not in self._stories:
            self._stories[index] = self._draw(index)
        return self._stories[index]

    def _draw(self, index: int) -> Story:
        request = self._trace[index]
        num_positions = request.output_len + self._gamma
        text = (self._uniforms(index, num_positions, Purpose.BONUS) * VOCAB_SIZE).astype(np.int32)
        # [L + 1, G] positions of the drafts of all blocks
        places = np.arange(request.output_len + 1)[:, None] + np.arange(self._gamma)
        ease = self._ease(index, num_positions + 1) - request.difficulty
        logits = _block_logits(request.domain, self._gamma, self._spread) + ease[places]
        acceptance = SequentialScaling.identity(self._gamma).apply(logits)
        outcomes = self._uniforms(index, num_positions + 1, Purpose.ACCEPT)
        is_right = outcomes[places] < acceptance
        num_right = np.cumprod(is_right, axis=1).sum(axis=1)
        return Story(request, text, self._scaling.apply(logits).astype(np.float32), num_right)

    def _ease(self, index: int, num_positions: int) -> npt.NDArray[np.float64]:
        """Log-odds by position around the mean: half the variance by segment, half by token."""
        num_segments = -(-num_positions // _SEGMENT_LEN)
        segments = np.repeat(self._normals(index, num_segments, Purpose.RACE_GROUP), _SEGMENT_LEN)
        tokens = self._normals(index, num_positions, Purpose.DRAFT)
        ease: npt.NDArray[np.float64] = self._spread * np.sqrt(0.5) * (segments[:num_positions] + tokens)
        return ease

    def _normals(self, index: int, count: int, purpose: Purpose) -> npt.NDArray[np.float64]:
        """Box and Muller's, from two uniforms each."""
        radius = np.sqrt(-2.0 * np.log(self._uniforms(index, count, purpose, draw=0)))
        angle = 2.0 * np.pi * self._uniforms(index, count, purpose, draw=1)
        normals: npt.NDArray[np.float64] = radius * np.cos(angle)
        return normals

    def _uniforms(self, index: int, count: int, purpose: Purpose, draw: int = 0) -> npt.NDArray[np.float64]:
        key = self._seed << 32 | index
        return uniforms([key] * count, range(count), purpose, [draw] * count)


def _block_logits(domain: str, gamma: int, spread: float) -> npt.NDArray[np.float64]:
    """[G] log-odds at which the mean acceptance over all positions is that of the domain."""
    first, last = DOMAINS[domain]
    acceptance = first + (last - first) * np.minimum(np.arange(gamma) / (_DOMAIN_LEN - 1), 1.0)
    logits: npt.NDArray[np.float64] = np.log(acceptance / (1.0 - acceptance))
    return logits * float(np.sqrt(1.0 + _LOGISTIC_WIDTH * spread**2))
