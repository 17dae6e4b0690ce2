"""The tier and the promise of a request: what it asks for, within what its key may have."""

from __future__ import annotations

from dspark.decoding.service import Service, ServiceTier
from dspark.errors import InvalidRequestError
from dspark.scheduling.weights import standing
from gateway.keys import ApiKey


def service_of(asked: str | None, key: ApiKey | None) -> Service:
    """Tier and promise of a request.

    A request of a key is served as the key is, or lower where it asks for that; the promise of the key holds
    for its own tier only. Without keys every tier may be asked for, and nothing is promised.

    Args:
        asked: the field `service_tier`; None and "auto" leave it to the key.
        key: of the request; None where no keys are asked for.

    Raises:
        InvalidRequestError: the tier is above that of the key. It is not lowered silently.
    """
    own = key.service if key is not None else Service()
    if asked in (None, "auto"):
        return own
    tier = ServiceTier(asked)
    if key is None or standing(tier) > standing(own.tier):
        return Service(tier)
    if standing(tier) < standing(own.tier):
        raise InvalidRequestError(
            f"service_tier asks for {tier.value}, but the tier of this API key is {own.tier.value}; send auto"
            " or leave it out.",
            field="service_tier",
        )
    return own
