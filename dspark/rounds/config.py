"""Limits of the round loop."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.rounds.policies import CohortSetting


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """How much the loop takes on and how long it bears with peers that fail."""

    # requests that hold pages of the verifier at once
    max_running: int = 64
    # requests that wait beyond them; the next one is refused
    max_waiting: int = 256
    # prompt tokens of one step while others are decoding: bounds the gap in their streams
    prefill_tokens: int = 128
    # prompt tokens of one step when nobody is decoding
    prefill_tokens_alone: int = 512
    # cohorts of requests in flight; "auto" measures which number is faster
    cohorts: CohortSetting = "1"
    # a draft that takes longer counts as a failure; the round goes on without
    draft_timeout_s: float = 1.0
    # pause after a failure of a peer; doubles with every further one up to the longest
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    # a request that made no progress for so long because of its peers ends with an error
    patience_s: float = 60.0
    # forward passes that may fail in a row before the requests in them end with an error
    max_engine_errors: int = 3
    # rounds a request may stay without a block while the drafter answers, before its features are
    # computed again by a fresh prefill; doubles each time
    rounds_before_resync: int = 16
