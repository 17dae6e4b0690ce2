"""What the scheduler tells the gateway about itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark.decoding.types import DrafterInfo, VerifierInfo
from dspark.rounds.stats import LoopStats


@dataclass(frozen=True, slots=True)
class SpeculationCounters:
    """Sums since the scheduler started."""

    # blocks verified
    num_drafts: int = 0
    # draft tokens verified
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    # [gamma], by position in the block
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    # draft tokens proposed, scheduled or not
    num_proposed_tokens: int = 0
    num_committed_tokens: int = 0
    num_rounds: int = 0
    num_free_pages: int = 0
    num_pages: int = 0
    num_preemptions: int = 0
    num_near_ties: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerInfo:
    """What is served and how it fares."""

    target_name: str
    # empty when there is none
    drafter_name: str = ""
    # 0 without a drafter
    gamma: int = 0
    max_context_len: int = 0
    eos_token_ids: tuple[int, ...] = ()
    vocab_size: int = 0
    is_verifier_ready: bool = False
    is_drafter_ready: bool = False
    is_store_healthy: bool = False
    num_running: int = 0
    num_waiting: int = 0
    is_exact: bool = False
    counters: SpeculationCounters = field(default_factory=SpeculationCounters)


def describe(
    stats: LoopStats, verifier: VerifierInfo | None, drafter: DrafterInfo | None, *, is_store_healthy: bool
) -> SchedulerInfo:
    """Put together what the loop counts and what its peers said about themselves.

    Args:
        stats: of the loop, now.
        verifier: what it last said; None before it answered.
        drafter: what it last said, also while it is away; None where there is none.
        is_store_healthy: whether state is kept, or is not meant to be.
    """
    counters = stats.counters
    return SchedulerInfo(
        target_name=verifier.name if verifier else "",
        drafter_name=drafter.name if drafter else "",
        gamma=drafter.gamma if drafter else 0,
        max_context_len=verifier.max_context_len if verifier else 0,
        eos_token_ids=verifier.eos_token_ids if verifier else (),
        vocab_size=verifier.vocab_size if verifier else 0,
        is_verifier_ready=stats.is_verifier_ready,
        is_drafter_ready=stats.is_drafter_ready,
        is_store_healthy=is_store_healthy,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        is_exact=verifier.is_exact if verifier else False,
        counters=SpeculationCounters(
            num_drafts=counters.num_drafts,
            num_draft_tokens=counters.num_draft_tokens,
            num_accepted_tokens=counters.num_accepted_tokens,
            num_accepted_tokens_per_pos=tuple(counters.num_accepted_tokens_per_pos),
            num_proposed_tokens=counters.num_proposed_tokens,
            num_committed_tokens=counters.num_committed_tokens,
            num_rounds=counters.num_rounds,
            num_free_pages=stats.num_free_pages,
            num_pages=stats.num_pages,
            num_preemptions=counters.num_preemptions,
            num_near_ties=counters.num_near_ties,
        ),
    )
