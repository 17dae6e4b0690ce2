"""What the verifier tells Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from dspark.decoding.types import StepResult

_SECONDS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

VERIFY_SECONDS = Histogram("dspark_verify_seconds", "Seconds of one step of the target.", buckets=_SECONDS)
BATCH_TOKENS = Histogram("dspark_verify_batch_tokens", "Flattened tokens of one step.", buckets=_TOKENS)
COMMITTED = Counter("dspark_verify_committed_tokens", "Tokens committed.")
ACCEPTED = Counter("dspark_verify_accepted_tokens", "Drafts accepted.")
NEAR_TIES = Counter("dspark_verify_near_ties", "Greedy positions within the near-tie margin.")
OUTCOMES = Counter("dspark_verify_outcomes", "Items of steps by what became of them.", ["status"])
FREE_PAGES = Gauge("dspark_verify_free_pages", "KV pages no request holds.")
FEATURE_BATCHES_DROPPED = Counter(
    "dspark_verify_features_dropped", "Feature batches dropped because the drafter did not take them in time."
)
FEATURE_STREAM_UP = Gauge(
    "dspark_verify_feature_stream_up", "Whether the feature stream to the drafter stands."
)


def observe_step(result: StepResult) -> None:
    """Take note of one step."""
    VERIFY_SECONDS.observe(result.verify_ns / 1e9)
    BATCH_TOKENS.observe(result.batch_tokens)
    FREE_PAGES.set(result.num_free_pages)
    ACCEPTED.inc(sum(outcome.num_accepted for outcome in result.outcomes))
    COMMITTED.inc(sum(len(outcome.token_ids) for outcome in result.outcomes))
    NEAR_TIES.inc(sum(outcome.num_near_ties for outcome in result.outcomes))
    for status in {outcome.status for outcome in result.outcomes}:
        OUTCOMES.labels(status.value).inc(sum(outcome.status is status for outcome in result.outcomes))
