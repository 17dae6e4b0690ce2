"""What /metrics shows: the scheduler's speculation counters in vLLM's schema, and times seen at this edge."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.backend import ServingInfo
from gateway.generation.statistics import ResponseStatistics

# Seconds. They hold the values that service-level objectives are usually set at.
_FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 40, 80)
_PER_TOKEN_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.2,
    0.5,
    1,
)
_DURATION_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)


class GatewayMetrics:
    """Prometheus objects of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._scheduler = _SchedulerCollector()
        self._registry.register(self._scheduler)
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished responses.")
        self._generation_tokens = self._counter("generation_tokens", "Output tokens of finished responses.")
        self._choices = Counter(
            "dspark:request_success",
            "Choices by why they ended.",
            ["finished_reason"],
            registry=self._registry,
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "Request read to first token.", _FIRST_TOKEN_BUCKETS
        )
        self._per_token = self._histogram(
            "time_per_output_token_seconds", "Seconds per token after the first delta.", _PER_TOKEN_BUCKETS
        )
        self._duration = self._histogram(
            "e2e_request_latency_seconds", "Request read to last token.", _DURATION_BUCKETS
        )
        self.open_responses = Gauge(
            "dspark:gateway_open_responses", "Responses this gateway is working on.", registry=self._registry
        )
        self.requests = Counter(
            "dspark:gateway_requests",
            "Generation requests by tier.",
            ["service_tier"],
            registry=self._registry,
        )
        self.http_errors = Counter(
            "dspark:gateway_http_errors", "Error responses by status.", ["status"], registry=self._registry
        )

    def observe_end(self, statistics: ResponseStatistics) -> None:
        """Record a response that ended, by whatever cause."""
        self._prompt_tokens.inc(statistics.prompt_tokens)
        self._generation_tokens.inc(statistics.completion_tokens)
        if statistics.first_token_s is not None:
            self._first_token.observe(statistics.first_token_s)
        if statistics.per_token_s is not None:
            self._per_token.observe(statistics.per_token_s)
        self._duration.observe(statistics.duration_s)

    def observe_choice(self, finish_reason: str) -> None:
        """Record why one choice ended: "stop", "length" or "abort"."""
        self._choices.labels(finish_reason).inc()

    def exposition(self, info: ServingInfo | None) -> bytes:
        """Text for Prometheus; without the scheduler's part when it does not answer."""
        self._scheduler.info = info
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"dspark:{name}", text, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"dspark:{name}", text, buckets=buckets, registry=self._registry)


class _SchedulerCollector:
    """Shows the scheduler's own counters, so that they agree with it to the last token."""

    info: ServingInfo | None = None

    def collect(self) -> Iterator[Metric]:
        if self.info is None:
            return
        counters = self.info.counters
        for name, text, count in (
            ("spec_decode_num_drafts", "Blocks verified.", counters.num_drafts),
            ("spec_decode_num_draft_tokens", "Draft tokens verified.", counters.num_draft_tokens),
            ("spec_decode_num_accepted_tokens", "Draft tokens accepted.", counters.num_accepted_tokens),
            ("spec_decode_num_proposed_tokens", "Draft tokens proposed.", counters.num_proposed_tokens),
            ("committed_tokens", "Tokens committed.", counters.num_committed_tokens),
            ("rounds", "Rounds run.", counters.num_rounds),
            ("num_preemptions", "Requests preempted for want of pages.", counters.num_preemptions),
        ):
            yield CounterMetricFamily(f"dspark:{name}", text, value=count)
        yield self._accepted_by_position()
        used = 1 - counters.num_free_pages / counters.num_pages if counters.num_pages else 0.0
        for name, text, value in (
            ("num_requests_running", "Requests running.", self.info.num_running),
            ("num_requests_waiting", "Requests waiting.", self.info.num_waiting),
            ("kv_cache_usage_perc", "Share of KV pages in use; 1 is all.", used),
            ("verifier_ready", "1 while the verifier answers.", self.info.is_verifier_ready),
            ("drafter_ready", "1 while the drafter answers.", self.info.is_drafter_ready),
            ("store_healthy", "1 while the store takes writes.", self.info.is_store_healthy),
        ):
            yield GaugeMetricFamily(f"dspark:{name}", text, value=float(value))

    def _accepted_by_position(self) -> CounterMetricFamily:
        assert self.info is not None
        family = CounterMetricFamily(
            "dspark:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted by position in the block.",
            labels=["position"],
        )
        for position, count in enumerate(self.info.counters.num_accepted_tokens_per_pos):
            family.add_metric([str(position)], count)
        return family
