"""The store's keys, values and compare-and-set scripts.

Keys of a request share a hash tag, so that scripts over them are legal in a cluster:
    dspark:{id}:state    hash: epoch, version, phase, prompt_len, committed_len, params, finish_reason
    dspark:{id}:tokens   prompt and committed output, uint32 little-endian
    dspark:{id}:events   stream of committed tokens; the id of an entry is the output length after it, so
                         that a reader who has n tokens resumes behind `n-0`

`epoch` fences owners: 16 hexadecimal digits, compared as text, since Lua's numbers end at 2**53. A write is
applied when its epoch is not lower than the stored one and its base equals `committed_len`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict
from enum import IntEnum
from typing import Any

from dspark.decoding.logit_adjustments import LogitAdjustments
from dspark.decoding.service import Service, ServiceTier, Sla
from dspark.decoding.types import Acceptance, FinishReason, GenerationRequest, SamplingParams, StopParams


class WriteResult(IntEnum):
    """What became of a write.

    OK: applied, or the same write had been applied before.
    STALE_EPOCH: another owner has taken over; nothing was written.
    CONFLICT: the stored length is not the base of the write; nothing was written.
    MISSING: the store does not hold the request (flushed, expired, restarted).
    """

    OK = 0
    STALE_EPOCH = 1
    CONFLICT = 2
    MISSING = 3


# Milliseconds since 2020 in the high bits: an owner that starts later has the higher epoch, also after the
# store lost everything. The low bits count what one owner opens anew.
_EPOCH_START_MS = 1_577_836_800_000
_OPENS_BITS = 20

_TAIL = """
local function remember(ttl)
  for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ttl) end
end
local function finish(output_len, reason)
  redis.call('HSET', KEYS[1], 'phase', 'finished', 'finish_reason', reason)
  redis.call('XADD', KEYS[3], output_len .. '-1', 'finish', reason)
end
"""

# KEYS: state, tokens, events. ARGV: epoch, params, prompt_len, output_len, tokens, output, finish, ttl_ms
CREATE_SCRIPT = (
    _TAIL
    + """
local stored = redis.call('HGET', KEYS[1], 'epoch')
if stored and stored > ARGV[1] then return {1, 0} end
-- Not always: a server out of memory refuses a script at its first write, unless that is a DEL.
if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) > 0 then redis.call('DEL', KEYS[1], KEYS[2], KEYS[3]) end
local output_len = tonumber(ARGV[4])
local committed_len = ARGV[3] + output_len
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'version', 0, 'phase', 'running', 'params', ARGV[2],
  'prompt_len', ARGV[3], 'committed_len', committed_len)
redis.call('SET', KEYS[2], ARGV[5])
if output_len > 0 then redis.call('XADD', KEYS[3], output_len .. '-0', 'start', 0, 'tokens', ARGV[6]) end
if ARGV[7] ~= '' then finish(output_len, ARGV[7]) end
remember(ARGV[8])
return {0, committed_len}
"""
)

# KEYS: as above. ARGV: epoch, base, count, tokens, finish, ttl_ms, max_events
COMMIT_SCRIPT = (
    _TAIL
    + """
local state = redis.call('HMGET', KEYS[1], 'epoch', 'committed_len', 'prompt_len', 'phase')
if not state[1] then return {3, 0} end
local len = tonumber(state[2])
if state[1] > ARGV[1] then return {1, len} end
if redis.call('STRLEN', KEYS[2]) ~= 4 * len then return {3, 0} end
local base, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local is_repeated = count > 0 and base + count <= len
  and redis.call('GETRANGE', KEYS[2], 4 * base, 4 * (base + count) - 1) == ARGV[4]
if not is_repeated then
  if base ~= len then return {2, len} end
  if count > 0 then
    redis.call('APPEND', KEYS[2], ARGV[4])
    len = len + count
    redis.call('HSET', KEYS[1], 'committed_len', len)
    redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[7], (len - state[3]) .. '-0',
      'start', base - state[3], 'tokens', ARGV[4])
  end
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
redis.call('HINCRBY', KEYS[1], 'version', 1)
if ARGV[5] ~= '' and state[4] ~= 'finished' then finish(len - state[3], ARGV[5]) end
remember(ARGV[6])
return {0, len}
"""
)


# KEYS: state, tokens. ARGV: the stored epoch, the new one
CLAIM_SCRIPT = """
local stored = redis.call('HGET', KEYS[1], 'epoch')
if not stored then return {3} end
if stored ~= ARGV[1] then return {1} end
redis.call('HSET', KEYS[1], 'epoch', ARGV[2])
local state = redis.call('HMGET', KEYS[1], 'params', 'prompt_len', 'committed_len')
return {0, state[1], state[2], state[3], redis.call('GET', KEYS[2]) or ''}
"""


def owner_epoch(now_ms: int) -> int:
    """The epoch an owner that starts at this Unix time in milliseconds begins with."""
    return max(0, now_ms - _EPOCH_START_MS) << _OPENS_BITS


def epoch_after(stored: int, own: int) -> int:
    """The epoch of an owner that starts with `own` and takes over from one that got to `stored`.

    Not `stored + 1`: the other may yet open the request anew, which counts its own epoch up.
    """
    return max(own, ((stored >> _OPENS_BITS) + 1) << _OPENS_BITS)


def epoch_text(epoch: int) -> str:
    """An epoch as its ordered text."""
    assert 0 <= epoch < 1 << 64, epoch
    return f"{epoch:016x}"


def request_keys(request_id: str) -> tuple[str, str, str]:
    """Keys of state, tokens and events."""
    prefix = f"dspark:{{{request_id}}}"
    return f"{prefix}:state", f"{prefix}:tokens", f"{prefix}:events"


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as the store holds them."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def unpack_tokens(data: bytes) -> tuple[int, ...]:
    """The inverse."""
    return struct.unpack(f"<{len(data) // 4}I", data)


def params_text(request: GenerationRequest) -> str:
    """Everything but the prompt that another owner needs to go on with the request."""
    sampling, stop = request.sampling, request.stop
    adjustments = sampling.adjustments
    return json.dumps(
        {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
            "acceptance": sampling.acceptance.value,
            "num_logprobs": sampling.num_logprobs,
            "adjustments": None if adjustments is None else asdict(adjustments),
            "max_new_tokens": stop.max_new_tokens,
            "stop_token_ids": sorted(stop.stop_token_ids),
            "service": {"tier": request.service.tier.value, **asdict(request.service.sla)},
        }
    )


def request_of(request_id: str, params: str | bytes, prompt: Sequence[int]) -> GenerationRequest:
    """The inverse.

    Raises:
        ValueError: the text is not what `params_text` writes.
    """
    try:
        fields = json.loads(params)
        fields["acceptance"] = Acceptance(fields["acceptance"])
        fields["adjustments"] = _adjustments_of(fields.get("adjustments"))
        stop = StopParams(fields.pop("max_new_tokens"), frozenset(fields.pop("stop_token_ids")))
        service = _service_of(fields.pop("service", None))
        return GenerationRequest(request_id, tuple(prompt), SamplingParams(**fields), stop, service)
    except (TypeError, KeyError) as error:
        raise ValueError(f"parameters of another version: {error}") from error


def _adjustments_of(fields: dict[str, Any] | None) -> LogitAdjustments | None:
    """Those of a request; an owner of an earlier version stored none."""
    if fields is None:
        return None
    fields["logit_bias"] = tuple((token_id, value) for token_id, value in fields["logit_bias"])
    fields["ending_token_ids"] = tuple(fields["ending_token_ids"])
    return LogitAdjustments(**fields)


def _service_of(fields: dict[str, Any] | None) -> Service:
    """Tier and promise of a request; an owner of an earlier version stored neither."""
    if fields is None:
        return Service()
    return Service(ServiceTier(fields["tier"]), Sla(fields["tokens_per_s"], fields["ttft_s"]))


def finish_text(reason: FinishReason | None) -> str:
    """A finish reason as the scripts take it; empty while the request runs."""
    return reason.value if reason else ""
