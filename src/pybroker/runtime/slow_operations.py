"""Log of slow operations: at most one warning per kind of operation and second."""

from __future__ import annotations

import math

from pybroker.runtime import logs
from pybroker.runtime.clock import Clock

LOG_INTERVAL_MS = 1000.0


class SlowOperations:
    """Logs operations that take at least `threshold_ms`.

    Callers on the hot path compare with `threshold_ms` themselves, so a fast operation costs no call.
    """

    def __init__(self, clock: Clock, threshold_ms: float) -> None:
        """`threshold_ms` 0 disables the log."""
        self._clock = clock
        self.threshold_ms = math.inf
        self._next_log_ms: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}
        self.set_threshold(threshold_ms)

    def set_threshold(self, threshold_ms: float) -> None:
        """Change the threshold; 0 disables the log."""
        self.threshold_ms = threshold_ms or math.inf

    def took(self, operation: str, took_ms: float, **fields: object) -> None:
        """Log the operation if it was slow. `operation` is one of a few constants; `fields` name the object of the
        operation.
        """
        if took_ms < self.threshold_ms:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_log_ms.get(operation, -math.inf):
            self._unlogged[operation] = self._unlogged.get(operation, 0) + 1
            return
        self._next_log_ms[operation] = now_ms + LOG_INTERVAL_MS
        unlogged = self._unlogged.pop(operation, 0)
        logs.warning("operation.slow", None, operation=operation, took_ms=round(took_ms), unlogged=unlogged, **fields)
