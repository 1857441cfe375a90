"""Flow control in bytes. Permits count messages, so the window estimates the size of a message."""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.client.frames import ReceivedEntry
from pybroker.errors import ProtocolViolation
from pybroker.wire.entry_metadata import message_count, metadata_span

FIRST_PERMITS = 64
MAX_PERMITS = 20_000


class FlowWindow:
    """The permits of one consumer. Pure.

    Invariant: at most `max_permits` permits are outstanding. Received messages may exceed them by one batch, because
    brokers send whole entries.
    """

    def __init__(
        self, window_bytes: int, *, first_permits: int = FIRST_PERMITS, max_permits: int = MAX_PERMITS
    ) -> None:
        self._window_bytes = window_bytes
        self._max_permits = max_permits
        self._target = min(first_permits, max_permits)
        self._outstanding = 0
        self._mean_bytes = 0.0

    def consumed(self, entries: Sequence[ReceivedEntry]) -> None:
        messages = 0
        size_bytes = 0
        for entry in entries:
            messages += messages_of(entry.data)
            size_bytes += len(entry.data)
        self.consumed_messages(messages, size_bytes)

    def consumed_messages(self, messages: int, size_bytes: int) -> None:
        if not messages:
            return
        self._outstanding -= messages  # negative if a batch exceeded the permits; the next ones compensate
        if not size_bytes:
            return  # messages that were skipped do not change the estimate
        mean_bytes = size_bytes / messages
        # Adapt at once to larger messages, which cost memory, and slowly to smaller ones, which only cost a round trip.
        self._mean_bytes = mean_bytes if mean_bytes > self._mean_bytes else (3 * self._mean_bytes + mean_bytes) / 4
        fitting = max(self._window_bytes / max(self._mean_bytes, 1), 1)
        self._target = int(min(fitting, self._max_permits, 4 * self._target))

    def due(self) -> int:
        """Return the number of permits to send now; 0 while more than half of the previous permits are outstanding."""
        if self._outstanding * 2 > self._target:
            return 0
        permits = self._target - self._outstanding
        self._outstanding = self._target
        return permits


def messages_of(entry: bytes) -> int:
    """Return the number of permits that an entry uses: its number of messages, or 1 if its metadata is damaged."""
    try:
        return message_count(entry, *metadata_span(entry))
    except ProtocolViolation:
        return 1
