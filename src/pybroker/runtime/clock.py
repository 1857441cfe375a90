"""Clock of a broker. Deadlines and durations use `monotonic_ms`; `wall_ms`, which may jump, is for display and clients."""

from __future__ import annotations

import time


class Clock:
    """The clock of this machine. Tests and simulators replace it."""

    def monotonic_ms(self) -> float:
        return time.perf_counter() * 1000

    def processor_ms(self) -> float:
        return time.process_time() * 1000

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 in UTC."""
        return time.time_ns() // 1_000_000
