"""Thread settings that must be in the environment before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping

# Our kernels' threads, torch's OpenMP threads and the other model process take turns on the same cores.
# By default OpenMP threads that have just finished spin for milliseconds and take the cores of the next one.
_QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}


def quiet_thread_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables to add; what the user has set stays."""
    return {name: value for name, value in _QUIET.items() if name not in environment}
