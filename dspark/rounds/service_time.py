"""How long requests are served, and from that, when a full queue has room again."""

from __future__ import annotations

# Weight of the newest request in the mean: the last ten or so say how long the next ones will take.
_WEIGHT = 0.2


class ServiceTime:
    """Running mean of the seconds between the opening of a request and its end, however it ended."""

    def __init__(self, first_guess_s: float = 1.0) -> None:
        """Begin with a guess, which the first request that ends replaces."""
        self._mean_s = first_guess_s
        self._is_measured = False

    @property
    def mean_s(self) -> float:
        """What the next request may take."""
        return self._mean_s

    def observe(self, seconds: float) -> None:
        """Note how long one request took."""
        weight = _WEIGHT if self._is_measured else 1.0
        self._mean_s += weight * (seconds - self._mean_s)
        self._is_measured = True

    def wait_s(self, num_waiting: int, num_running: int) -> float:
        """Seconds until all that wait, and one more, have found a place among those that run."""
        return self._mean_s * (num_waiting + 1) / max(num_running, 1)
