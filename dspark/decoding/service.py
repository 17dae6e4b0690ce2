"""How a request is to be served against others: its tier, and what its caller was promised."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ServiceTier(Enum):
    """How urgent a request is.

    PRIORITY: before others.
    DEFAULT: like most.
    FLEX: after others, such as batch jobs that nobody waits for.
    """

    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"


@dataclass(frozen=True, slots=True)
class Sla:
    """What was promised to a request; None: nothing.

    Attributes:
        tokens_per_s: tokens per second behind its first one, above 0.
        ttft_s: seconds from arrival to first token, above 0.
    """

    tokens_per_s: float | None = None
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """Tier and promise of one request."""

    tier: ServiceTier = ServiceTier.DEFAULT
    sla: Sla = Sla()
