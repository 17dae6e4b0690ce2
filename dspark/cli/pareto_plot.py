"""The figure of `dspark bench pareto`: throughput against speed per user, and drafts against load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dspark.evaluation.chart import Panel, Series

if TYPE_CHECKING:
    from dspark.evaluation.pareto import LoadPoint

# By streams, then by policy.
Points = Mapping[int, Mapping[str, "LoadPoint"]]


def panels_of(points: Points) -> list[Panel]:
    """Throughput by speed per user and by load, and what a request has verified by load.

    Args:
        points: of at least one load, the same policies in each.
    """
    policies = list(next(iter(points.values())))
    by_user = [
        Series(policy, [(by[policy].user_tokens_per_s, by[policy].tokens_per_s) for by in points.values()])
        for policy in policies
    ]
    by_load = [
        Series(policy, [(streams, by[policy].tokens_per_s) for streams, by in points.items()])
        for policy in policies
    ]
    verified = [
        Series(policy, [(streams, by[policy].mean_verified) for streams, by in points.items()])
        for policy in policies
    ]
    return [
        Panel("Throughput against speed per user", "tokens/s of a user", "tokens/s", by_user, is_x_log=True),
        Panel("Throughput by load", "streams", "tokens/s", by_load, is_x_log=True),
        Panel("Verified drafts of a request and round", "streams", "drafts", verified, is_x_log=True),
    ]
