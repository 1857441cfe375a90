"""Where time comes from: rules take it as an argument, performers ask the one clock they were given.

Deadlines and durations use `monotonic_ms`; `wall_ms` is only for what people and clients read, and may jump.
"""

from __future__ import annotations

import time


class Clock:
    """The time of this machine; tests give another."""

    def monotonic_ms(self) -> float:
        """Milliseconds since some fixed moment; never goes back."""
        return time.perf_counter() * 1000

    def processor_ms(self) -> float:
        """Milliseconds of processors that this process has used; never goes back."""
        return time.process_time() * 1000

    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000
