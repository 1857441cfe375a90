"""Token bucket: a rate with bursts of one period. Pure; times are monotonic milliseconds."""

from __future__ import annotations

from math import ceil


class TokenBucket:
    """Permits `units` in each period. Unused units accumulate up to the units of one period.

    The balance may become negative, because a request for more than the units of one period would otherwise never be
    permitted; the debt is repaid first.
    """

    __slots__ = ("_available", "_updated_ms", "period_ms", "units")

    def __init__(self, units: int, period_ms: int, now_ms: float) -> None:
        assert units > 0
        assert period_ms > 0
        self.units = units
        self.period_ms = period_ms
        self._available: float = units
        self._updated_ms = now_ms

    def available(self, now_ms: float) -> int:
        """Return the number of whole units available; 0 or less for none."""
        elapsed_ms = max(0.0, now_ms - self._updated_ms)
        self._updated_ms = now_ms
        refilled = self._available + elapsed_ms * self.units / self.period_ms
        self._available = min(refilled, max(self.units, self._available))
        return int(self._available)

    def spend(self, units: int) -> None:
        """Use units, even if the balance becomes negative."""
        self._available -= units

    def add(self, units: int) -> None:
        """Permit additional `units`, even beyond those of one period. Before that, discard the unused additional units of
        earlier calls.
        """
        self._available = min(self._available, self.units) + units

    def wait_ms(self) -> int:
        """Return the milliseconds from the last call of `available` until a unit is available."""
        return max(0, ceil((1 - self._available) * self.period_ms / self.units))
