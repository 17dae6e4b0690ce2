"""The field `logit_bias`: a JSON object whose keys are token ids, which JSON can only spell as strings."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

# (token id, bias), rising ids
LogitBias = tuple[tuple[int, float], ...]

LARGEST_BIAS = 100.0
MAX_BIASES = 1024
# Of the decimal digits of an id that a 32-bit number can hold.
_MAX_DIGITS = 10


def as_biases(value: object) -> LogitBias:
    """The biases in the order of their ids; null is none."""
    if value is None or value == ():
        return ()
    if not isinstance(value, dict):
        raise PydanticCustomError(
            "logit_bias", 'it must be an object of token ids and biases, such as {"1234": -100}'
        )
    if len(value) > MAX_BIASES:
        raise PydanticCustomError("logit_bias", f"it holds {len(value)} tokens; send at most {MAX_BIASES}")
    biases = {_token_id_of(key): _bias_of(key, bias) for key, bias in value.items()}
    if len(biases) < len(value):
        raise PydanticCustomError("logit_bias", "it names a token twice; send each id once")
    return tuple(sorted(biases.items()))


def _token_id_of(key: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) <= _MAX_DIGITS):
        raise PydanticCustomError(
            "logit_bias", '{key} is no token id; use whole numbers such as "1234"', {"key": repr(key[:40])}
        )
    return int(key)


def _bias_of(key: str, bias: object) -> float:
    # A comparison that NaN fails too.
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= LARGEST_BIAS:
        raise PydanticCustomError(
            "logit_bias",
            "the bias of token {key} must be a number from -{limit} to {limit}",
            {"key": key[:40], "limit": f"{LARGEST_BIAS:g}"},
        )
    return float(bias)
