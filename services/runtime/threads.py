"""Thread settings that must be in the environment before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping

# Two model processes take turns on the same cores. By default OpenMP threads of the process that has just
# finished spin for milliseconds and steal the cores of the other one.
_QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}


def quiet_thread_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables to add; what the user has set stays."""
    return {name: value for name, value in _QUIET.items() if name not in environment}
