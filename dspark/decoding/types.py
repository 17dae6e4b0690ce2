"""The values that travel between drafter, scheduler and verifier. Numpy only; never torch.

Shape legend used everywhere in dspark:
    R requests, G gamma (drafts per block), V vocabulary, S support of a sparse distribution,
    H hidden size, L tapped target layers, T flattened tokens of one step.

Positions are absolute and 0-based in the sequence `prompt + generated`. `base_committed_len` is the
number of tokens of that sequence whose values are fixed; the last of them, at position
`base_committed_len - 1`, is the anchor token of the next block. Draft k (0-based) would stand at
position `base_committed_len + k`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.service import Service

TokenIds = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class Acceptance(Enum):
    """How drafts are judged; each rule leaves the target's output distribution unchanged.

    GREEDY: a draft survives while it is the target's argmax (temperature 0).
    REJECTION: accept with min(1, target/draft), residual on rejection (paper §2.1).
    COUPLED: draft and target choose with the same counter-based noise; a draft survives when both
        choose it, so the output depends only on (seed, prompt, target).
    """

    GREEDY = "greedy"
    REJECTION = "rejection"
    COUPLED = "coupled"


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What acts on the target's distribution, position by position. Validated at the gateway.

    `seed` keys all randomness of the request and is always set: drawn at random where the user gave none.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int = 0  # 0 <= seed < 2**64
    acceptance: Acceptance = Acceptance.REJECTION
    # None: no log-probabilities; n >= 0: those of the chosen token and of the n most probable ones.
    num_logprobs: int | None = None
    # None: logits stay as the target gives them.
    adjustments: LogitAdjustments | None = None


@dataclass(frozen=True, slots=True)
class StopParams:
    """When a request ends by tokens. Stop strings need text and belong to the gateway."""

    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SparseProbs:
    """The exact distribution one draft was drawn from.

    The drafter truncates its distribution, renormalises it and draws from the result, so these are
    not an approximation: `probs / probs.sum()` in float64 *is* the draft distribution.
    """

    # [S], unique
    token_ids: TokenIds
    # [S], > 0
    probs: Floats


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Scheduler to drafter: propose a block for this request."""

    request_id: str
    epoch: int
    base_committed_len: int
    anchor_token: int
    sampling: SamplingParams
    # 1 <= max_drafts <= gamma: as many as are worth the time to make them.
    max_drafts: int
    # drafts of the request's last block that were verified; 0 where it had none in the last round
    num_verified: int = 0
    # the same for drafts that cost nothing to make, such as copies: what the request may still commit
    max_copied: int = 0


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """Drafter to scheduler: one proposed block."""

    request_id: str
    epoch: int
    base_committed_len: int
    # [G], G <= gamma; empty where the drafter is ready and has nothing to propose
    token_ids: TokenIds
    # [G], calibrated probability that draft k survives given that all before it did
    confidence: Floats
    # one per draft for REJECTION, empty for GREEDY and COUPLED
    probs: tuple[SparseProbs, ...] = ()
    # whether it was copied from earlier text, which took no pass of a model
    is_copied: bool = False


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Scheduler to verifier: hold this request. Also how a request is restored after a crash."""

    request_id: str
    epoch: int
    # prompt and all tokens committed so far
    token_ids: tuple[int, ...]
    # tokens of the prompt among them
    prompt_len: int
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class PrefillItem:
    """Compute the next `num_tokens` tokens of an opened request.

    The chunk that reaches the last committed token also samples the next one and commits it.
    """

    request_id: str
    epoch: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class VerifyItem:
    """Verify the scheduled prefix of a block; an empty prefix is plain decoding of one token."""

    request_id: str
    epoch: int
    base_committed_len: int
    # [prefix_len]
    draft_token_ids: TokenIds
    # one per draft for REJECTION, else empty
    draft_probs: tuple[SparseProbs, ...] = ()


class VerifyStatus(Enum):
    """What became of one item of a step.

    COMMITTED: `token_ids` were appended to the request.
    PREFILLING: the chunk was computed, more of the prompt remains.
    STALE: epoch or base differ from the verifier's; nothing was done.
    UNKNOWN: the verifier holds no such request (it restarted); open it again.
    OUT_OF_PAGES: no KV pages were left for it; nothing was done.
    """

    COMMITTED = "committed"
    PREFILLING = "prefilling"
    STALE = "stale"
    UNKNOWN = "unknown"
    OUT_OF_PAGES = "out_of_pages"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one committed token under the target, before temperature."""

    logprob: float
    # the most probable tokens, best first
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """What one item of a step committed."""

    request_id: str
    epoch: int
    # the base the item was made for: committed tokens start at this position
    base_committed_len: int
    status: VerifyStatus
    # accepted drafts only
    num_accepted: int = 0
    # accepted drafts and the bonus token
    token_ids: tuple[int, ...] = ()
    # one per committed token when asked for
    logprobs: tuple[TokenLogprobs, ...] = ()
    # positions where the two best target logits lie within the near-tie margin (greedy only)
    num_near_ties: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """One forward pass of the target over all items."""

    # in the order of the items
    outcomes: tuple[VerifyOutcome, ...]
    # flattened tokens of the pass
    batch_tokens: int
    verify_ns: int
    num_free_pages: int


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """Verifier to drafter: committed tokens and their hidden states at the tapped layers.

    Attributes:
        start: absolute position of the first token.
        token_ids: [T]. All batches of a request together hold what is committed before the anchor.
        features: [T, L*H], uint16 words of bfloat16 or float32, one row per token; of width 0 where the
            drafter taps no layers.
    """

    request_id: str
    epoch: int
    start: int
    token_ids: TokenIds
    features: npt.NDArray[np.generic]

    @property
    def num_bytes(self) -> int:
        """Size of both arrays."""
        return self.token_ids.nbytes + self.features.nbytes


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What a drafter tells the scheduler about itself."""

    name: str
    gamma: int
    target_layer_ids: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    # (number of slots of all blocks, seconds of one draft), measured at start
    draft_cost: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step of the target took, as measured at start.

    Attributes:
        batch_tokens: rows of the step.
        seconds: of the step, > 0.
        num_requests: that the rows belong to.
        context_len: tokens that each of these requests holds; 0, with no requests: nobody kept it.
    """

    batch_tokens: int
    seconds: float
    num_requests: int = 0
    context_len: int = 0


@dataclass(frozen=True, slots=True)
class VerifierInfo:
    """What a verifier tells the scheduler about itself."""

    name: str
    vocab_size: int
    max_context_len: int
    page_size: int
    num_pages: int
    eos_token_ids: tuple[int, ...]
    step_cost: tuple[StepCost, ...] = ()
    dtype: str = ""
    # whether logits are bit-identical whatever else is in the batch, and why not
    is_exact: bool = False
    exact_reason: str = ""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request as the gateway hands it to the scheduler."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopParams
    # when it is served, and how fast; never what comes out
    service: Service = field(default_factory=Service)


@dataclass(frozen=True, slots=True)
class RoundStats:
    """What one round did for one request; zeros for a prefill."""

    num_drafted: int = 0
    num_scheduled: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """Scheduler to gateway: tokens committed by one round, or the end of the request."""

    request_id: str
    # number of tokens of the output before this delta
    start: int
    token_ids: tuple[int, ...]
    round: RoundStats = field(default_factory=RoundStats)
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
