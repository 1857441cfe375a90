"""Reason why a subscription does not dispatch, and the time since which it has delivered nothing.

Repeated unsuccessful attempts for the same reason do not change the time.
"""

from __future__ import annotations

from pybroker.dispatch.blocked_reasons import BlockedReason


class DispatchStall:
    """Recorder of the current stall of one subscription."""

    def __init__(self, now_ms: float) -> None:
        self.reason = BlockedReason.NO_CONSUMER
        self.since_ms = now_ms
        """Start of the stall by the monotonic clock."""
        self.has_moved = False
        """Whether entries were delivered since the last stop; set by the subscription."""

    def stopped_at(self, reason: BlockedReason, now_ms: float) -> None:
        if self.has_moved or reason is not self.reason:
            self.has_moved = False
            self.reason, self.since_ms = reason, now_ms
