"""What the scheduler tells Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import Counter, Gauge, Histogram, Info

from dspark.decoding.service import ServiceTier
from dspark.rounds.stats import LoopStats, RoundReport
from services.scheduler.store import RedisStore

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_BLOCK = tuple(range(17))

DRAFT_SECONDS = Histogram(
    "dspark_round_draft_seconds", "Seconds until a round had its drafts.", buckets=_SECONDS
)
PLAN_SECONDS = Histogram("dspark_round_plan_seconds", "Seconds of planning a round.", buckets=_SECONDS)
STEP_SECONDS = Histogram(
    "dspark_round_step_seconds", "Seconds a round waited for its step.", buckets=_SECONDS
)
TRANSPORT_SECONDS = Histogram(
    "dspark_round_transport_seconds", "Seconds of a step that are not the forward pass.", buckets=_SECONDS
)
BATCH_TOKENS = Histogram("dspark_round_batch_tokens", "Flattened tokens of a step.", buckets=_TOKENS)
PREFILL_TOKENS = Counter("dspark_round_prefill_tokens", "Prompt tokens computed.")
SCHEDULED = Histogram("dspark_round_prefix_len", "Drafts scheduled of a request in a round.", buckets=_BLOCK)
ACCEPTED = Counter(
    "dspark_round_accepted_drafts", "Drafts accepted, by who made them: a model or a copy.", ["made_by"]
)
COMMITTED = Histogram("dspark_round_committed", "Tokens a request committed in a round.", buckets=_BLOCK)

POLICY = Info("dspark_scheduler_policy", "How prefixes and the number of cohorts are chosen.")
COHORTS = Gauge("dspark_scheduler_cohorts", "Cohorts of requests in flight.")
RUNNING = Gauge("dspark_scheduler_running_requests", "Requests that hold pages.")
WAITING = Gauge("dspark_scheduler_waiting_requests", "Requests that wait.")
DRAFTER_UP = Gauge("dspark_scheduler_drafter_up", "Whether the drafter answers.")
VERIFIER_UP = Gauge("dspark_scheduler_verifier_up", "Whether the verifier answers.")
REOPENS = Gauge("dspark_scheduler_reopens", "Times a request was opened again, since start.")
RESUMES = Gauge("dspark_scheduler_resumes", "Requests of a lost scheduler gone on with, since start.")
PREEMPTIONS = Gauge("dspark_scheduler_preemptions", "Requests that gave way for want of pages, since start.")
DRAFT_FAILURES = Gauge("dspark_scheduler_draft_failures", "Drafts that failed, since start.")
STEP_FAILURES = Gauge("dspark_scheduler_step_failures", "Steps that failed, since start.")

TIER = Gauge("dspark_scheduler_tier_requests", "Requests that have not ended, by tier.", ["service_tier"])
LATE = Gauge("dspark_scheduler_late_requests", "Requests behind the speed or first token promised to them.")
MOST_LATE = Gauge(
    "dspark_scheduler_most_late_seconds", "Seconds by which the last of the late requests is behind."
)

COST_ERROR = Gauge(
    "dspark_scheduler_cost_error", "How far the cost of steps was mispredicted lately, as a share."
)

STORE_UP = Gauge("dspark_store_up", "Whether writes reach the store.")
STORE = Gauge("dspark_store_events", "What happened at the store, since start.", ["event"])


class RoundMetrics:
    """A `RoundObserver`."""

    def on_round(self, report: RoundReport) -> None:
        """Take note of one round."""
        DRAFT_SECONDS.observe(report.draft_s)
        PLAN_SECONDS.observe(report.plan_s)
        STEP_SECONDS.observe(report.step_s)
        TRANSPORT_SECONDS.observe(max(0.0, report.step_s - report.verify_s))
        BATCH_TOKENS.observe(report.batch_tokens)
        PREFILL_TOKENS.inc(report.num_prefill_tokens)
        for request in report.verified:
            SCHEDULED.observe(request.num_scheduled)
            COMMITTED.observe(request.num_committed)
            ACCEPTED.labels("copy" if request.is_copied else "model").inc(request.num_accepted)


def expose_policy(policy: str, cohorts: str) -> None:
    """Show by name how prefixes and the number of cohorts are chosen."""
    POLICY.info({"policy": policy, "cohorts": cohorts})


def expose_loop(stats: Callable[[], LoopStats]) -> None:
    """Have the gauges read the loop whenever they are asked."""
    COHORTS.set_function(lambda: stats().num_cohorts)
    RUNNING.set_function(lambda: stats().num_running)
    WAITING.set_function(lambda: stats().num_waiting)
    DRAFTER_UP.set_function(lambda: stats().is_drafter_ready)
    VERIFIER_UP.set_function(lambda: stats().is_verifier_ready)
    REOPENS.set_function(lambda: stats().counters.num_reopens)
    RESUMES.set_function(lambda: stats().num_resumed)
    PREEMPTIONS.set_function(lambda: stats().counters.num_preemptions)
    DRAFT_FAILURES.set_function(lambda: stats().num_draft_failures)
    for tier in ServiceTier:
        TIER.labels(tier.value).set_function(partial(_num_of_tier, stats, tier))
    LATE.set_function(lambda: stats().service.num_late)
    MOST_LATE.set_function(lambda: stats().service.most_late_s)
    COST_ERROR.set_function(lambda: stats().cost_error)
    STEP_FAILURES.set_function(lambda: stats().counters.num_step_failures)


def _num_of_tier(stats: Callable[[], LoopStats], tier: ServiceTier) -> int:
    return stats().service.num_by_tier.get(tier, 0)


def expose_store(store: RedisStore) -> None:
    """Have the gauges read the store whenever they are asked."""
    STORE_UP.set_function(lambda: store.is_healthy)
    STORE.labels("flush").set_function(lambda: store.stats.num_flushes)
    STORE.labels("write").set_function(lambda: store.stats.num_writes)
    STORE.labels("failure").set_function(lambda: store.stats.num_failures)
    STORE.labels("stale").set_function(lambda: store.stats.num_stale)
    STORE.labels("recreated").set_function(lambda: store.stats.num_recreated)
    STORE.labels("dropped").set_function(lambda: store.stats.num_dropped)
