"""What the drafter tells Prometheus."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import Counter, Gauge, Histogram

from dspark.decoding.types import FeatureBatch
from services.drafter.engine import TimedDraft

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)

DRAFT_SECONDS = Histogram("dspark_draft_seconds", "Seconds of one draft forward.", buckets=_SECONDS)
WAIT_SECONDS = Histogram(
    "dspark_draft_wait_seconds", "Seconds a draft waited for features and for the engine.", buckets=_SECONDS
)
REQUESTS = Counter("dspark_draft_requests", "Requests asked for a block.")
BLOCKS = Counter("dspark_draft_blocks", "Blocks proposed.")
TOKENS = Counter("dspark_draft_tokens", "Draft tokens proposed.")
NOT_READY = Counter("dspark_draft_not_ready", "Requests that got no block, as features were missing.")
FEATURE_ROWS = Counter("dspark_draft_feature_rows", "Rows of target features received.")
FEATURE_BYTES = Counter("dspark_draft_feature_bytes", "Bytes of target features received.")
CALIBRATION_ERROR = Gauge(
    "dspark_draft_calibration_error",
    "Expected calibration error of conditional confidences lately.",
    ["requests", "position"],
)


def expose_calibration(errors: Callable[[], Mapping[str, Sequence[float]]]) -> None:
    """Have the gauges read the engine whenever they are asked."""
    for name, found in errors().items():
        for position in range(len(found)):
            CALIBRATION_ERROR.labels(name, position + 1).set_function(
                functools.partial(lambda name, position: errors()[name][position], name, position)
            )


def observe_draft(draft: TimedDraft, *, num_requests: int, total_s: float) -> None:
    """Take note of one draft that took `total_s` with its waiting."""
    draft_s = draft.draft_ns / 1e9
    DRAFT_SECONDS.observe(draft_s)
    WAIT_SECONDS.observe(max(0.0, total_s - draft_s))
    REQUESTS.inc(num_requests)
    BLOCKS.inc(len(draft.blocks))
    TOKENS.inc(sum(len(block.token_ids) for block in draft.blocks))
    NOT_READY.inc(num_requests - len(draft.blocks))


def observe_features(batches: Sequence[FeatureBatch]) -> None:
    """Take note of features that arrived."""
    FEATURE_ROWS.inc(sum(len(batch.token_ids) for batch in batches))
    FEATURE_BYTES.inc(sum(batch.num_bytes for batch in batches))
