"""How much may pass in a time: a rate with bursts of one period."""

from __future__ import annotations

from math import ceil


class TokenBucket:
    """Lets `units` pass in each period; the caller passes the time, monotonic milliseconds.

    Invariant: what is saved up never exceeds one period's worth, however long nobody asked. Debt is allowed: what is larger
    than a period's worth would otherwise never pass; it has to be made up for before anything else goes.
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
        """How many whole units may pass now; 0 or less for none."""
        elapsed_ms = max(0.0, now_ms - self._updated_ms)
        self._updated_ms = now_ms
        refilled = self._available + elapsed_ms * self.units / self.period_ms
        self._available = min(refilled, max(self.units, self._available))
        return int(self._available)

    def spend(self, units: int) -> None:
        """`units` passed."""
        self._available -= units

    def add(self, units: int) -> None:
        """Let so many pass in addition; they can be saved up until the next time, not for longer."""
        self._available = min(self._available, self.units) + units

    def wait_ms(self) -> int:
        """How long after the last look at it there will be a unit; 0 when there is one."""
        return max(0, ceil((1 - self._available) * self.period_ms / self.units))
