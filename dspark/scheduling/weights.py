"""Who comes first: what the tokens of a request weigh, when it begins, and who gives way for want of pages.

Losslessness. All of it follows from tiers, promises, clocks read before the round, and the number of tokens
that earlier rounds committed. None of it is a function of the drafts of the round, so whether a draft is
verified depends on its value no more than without weights; and one weight for a whole block leaves the order
within the block alone.

No request starves, whatever the others are:

- Running, it commits at least the bonus token of each round: weights divide drafts, never places in a round.
- Waiting, it is overtaken only by requests that arrive before its deadline, which lies at most
  `LONGEST_SLACK_S` behind its own arrival. All others begin after it.
- Giving way for want of pages raises its standing by one tier, so after two times it gives way like a request
  of the first tier: only while every open request is of that standing and arrived before it.
"""

from __future__ import annotations

from dspark.decoding.service import Service, ServiceTier, Sla

# Weight of a token by tier, at most 2.
_WEIGHTS = {ServiceTier.PRIORITY: 2.0, ServiceTier.DEFAULT: 1.0, ServiceTier.FLEX: 0.5}
# Seconds within which a request should begin where no time to its first token was promised.
_SLACK_S = {ServiceTier.PRIORITY: 0.5, ServiceTier.DEFAULT: 5.0, ServiceTier.FLEX: 60.0}
# Seconds after which nobody who arrives can overtake a request, whatever was promised.
LONGEST_SLACK_S = max(_SLACK_S.values())
# First to last.
_STANDINGS = {tier: standing for standing, tier in enumerate(ServiceTier)}
# The speed that weights aim at, in promised ones: as a request weighs more only while it is behind, it would
# otherwise come close to its promise and stay behind it.
_AIM = 1.1
# Seconds behind that speed after which a request weighs twice as much, and the most times it can.
_DOUBLES_AFTER_S = 0.25
_MOST_TIMES = 4.0


def weight_of(service: Service, num_later_tokens: int, decoding_s: float) -> float:
    """Weight of a request's tokens in this round: that of its tier, more the further it is behind.

    Args:
        service: tier and promise of the request.
        num_later_tokens: committed behind its first one.
        decoding_s: seconds since its first token.

    Returns:
        Above 0 and at most 8, which is below `dspark.scheduling.ranking.MAX_WEIGHT`.
    """
    weight, tokens_per_s = _WEIGHTS[service.tier], service.sla.tokens_per_s
    if tokens_per_s is None:
        return weight
    behind_s = _behind_s(_AIM * tokens_per_s, num_later_tokens, decoding_s)
    return weight * min(_MOST_TIMES, 1.0 + behind_s / _DOUBLES_AFTER_S)


def speed_late_s(sla: Sla, num_later_tokens: int, decoding_s: float) -> float:
    """Seconds by which a request is behind its promised speed; 0 where it is not, or none was promised.

    Args:
        sla: what it was promised.
        num_later_tokens: committed behind its first one.
        decoding_s: seconds since its first token.
    """
    return 0.0 if sla.tokens_per_s is None else _behind_s(sla.tokens_per_s, num_later_tokens, decoding_s)


def _behind_s(tokens_per_s: float, num_tokens: int, seconds: float) -> float:
    return max(0.0, seconds - num_tokens / tokens_per_s)


def first_token_late_s(sla: Sla, waited_s: float) -> float:
    """Seconds by which the first token of a request is late; 0 where it is not, or no time was promised."""
    return 0.0 if sla.ttft_s is None else max(0.0, waited_s - sla.ttft_s)


def deadline_s(service: Service, arrival_s: float) -> float:
    """Clock time by which a request should have its first token: the earliest deadline begins first."""
    slack_s = _SLACK_S[service.tier] if service.sla.ttft_s is None else service.sla.ttft_s
    return arrival_s + min(slack_s, LONGEST_SLACK_S)


def standing(tier: ServiceTier, num_times_given_way: int = 0) -> int:
    """Place among the tiers, 0 the first; of those that hold pages, the last one gives way first."""
    return max(0, _STANDINGS[tier] - num_times_given_way)
