"""The memory that a subscription may use for entries that wait for the consumer of their key or of their chunks: a configuration
key, and a share of the broker's memory budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.dispatch.dispatcher import Dispatcher
    from pybroker.memory.broker_memory import Memory

STEP_BYTES = 1024
"""Smaller changes are not reported."""


class LookAheadShare:
    """The share of one subscription, which owns it and reports after each pump and after each departure of a consumer."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._told_bytes = 0

    def update(self, dispatcher: Dispatcher | None) -> None:
        """Count the memory of `dispatcher`, and set its limit."""
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
