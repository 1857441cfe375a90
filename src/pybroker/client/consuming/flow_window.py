"""How many messages a consumer may ask for, so that about so many bytes are on their way: permits count messages, not bytes."""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.client.frames import ReceivedEntry
from pybroker.errors import ProtocolViolation
from pybroker.wire.entry_metadata import message_count, metadata_span

FIRST_PERMITS = 64
MAX_PERMITS = 20_000


class FlowWindow:
    """Decides only. `consumed` is told of what was taken, `due` says what to ask for.

    Invariant: what was asked for and did not come is at most `MAX_PERMITS`. A batch may overdraw the permits, as brokers
    send whole entries.
    """

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._target = FIRST_PERMITS
        self._outstanding = 0
        self._mean_bytes = 0.0

    def consumed(self, entries: Sequence[ReceivedEntry]) -> None:
        """These came and were taken."""
        messages = 0
        size_bytes = 0
        for entry in entries:
            messages += messages_of(entry.data)
            size_bytes += len(entry.data)
        if not messages:
            return
        self._outstanding -= messages  # below zero where brokers sent more: they wait until that is made good
        mean_bytes = size_bytes / messages
        # Larger ones count at once, smaller ones slowly: too much on its way costs memory, too little a round trip.
        self._mean_bytes = mean_bytes if mean_bytes > self._mean_bytes else (3 * self._mean_bytes + mean_bytes) / 4
        self._target = int(min(max(self._window_bytes / max(self._mean_bytes, 1), 1), MAX_PERMITS, 4 * self._target))

    def due(self) -> int:
        """Permits to give now, 0 for none: not before half of them are used up."""
        if self._outstanding * 2 > self._target:
            return 0
        permits = self._target - self._outstanding
        self._outstanding = self._target
        return permits


def messages_of(entry: bytes) -> int:
    """How many messages the broker counts for `entry`: 1 for one that does not say, or does not parse."""
    try:
        return message_count(entry, *metadata_span(entry))
    except ProtocolViolation:
        return 1
