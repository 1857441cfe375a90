"""The reason why dispatch of a subscription stopped, and the time since which nothing was delivered.

Invariant: `since_ms` changes only if the reason changes or something was delivered since the last stop. So repeated
attempts that deliver nothing do not hide the duration of a stall.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.dispatch.blocked_reasons import BlockedReason

if TYPE_CHECKING:
    from pybroker.runtime.clock import Clock


class DispatchStall:
    """Owned by its subscription."""

    def __init__(self, clock: Clock) -> None:
        self.reason = BlockedReason.NO_CONSUMER
        self.since_ms = clock.monotonic_ms()
        """By the monotonic clock."""
        self.has_moved = False
        """Whether entries were delivered since the last stop; set by the subscription."""
        self._clock = clock

    def stopped_at(self, reason: BlockedReason) -> None:
        if self.has_moved or reason is not self.reason:
            self.has_moved = False
            self.reason, self.since_ms = reason, self._clock.monotonic_ms()
