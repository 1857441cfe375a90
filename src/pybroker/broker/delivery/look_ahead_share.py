"""What one subscription may remember of messages that cannot go now, for want of a consumer for their keys or for their chunks: its
key, and its share of the broker's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.dispatch.dispatcher import Dispatcher
    from pybroker.memory.broker_memory import Memory

STEP_BYTES = 1024
"""What is less is not worth telling."""


class LookAheadShare:
    """Owned by its subscription, which says after each pump and each departure what it remembers now."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._told_bytes = 0

    def update(self, dispatcher: Dispatcher | None) -> None:
        """Count what `dispatcher` remembers, and tell it what it may from now on."""
        if dispatcher is not None:
            size_bytes = dispatcher.look_ahead_size_bytes
            if size_bytes or self._told_bytes:
                self._tell(size_bytes)
                dispatcher.limit_look_ahead(self._memory.look_aheads.allowed_bytes())
        elif self._told_bytes:
            self._tell(0)

    def release(self) -> None:
        """The subscription is gone."""
        self._tell(0)

    def _tell(self, size_bytes: int) -> None:
        if size_bytes == self._told_bytes or (size_bytes and abs(size_bytes - self._told_bytes) < STEP_BYTES):
            return
        self._told_bytes = size_bytes
        self._memory.follow(self._memory.look_aheads.report(self, size_bytes))
