"""Broker-wide limits of outbound buffers, which hold data that clients have not read.

Decides which connections may receive more messages while their clients have unread data. Below 50 % of the total, each
connection may use its full per-connection limit. Above 50 %, connections over their fair share pause. At 100 %, all
connections with unsent data pause. A connection without unsent data never pauses. A paused connection resumes when its
client has read nearly everything.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from pybroker.memory.memory_budget import Part, Settled

WATCHED_BYTES = 128 * 1024
"""Connections with less unsent data are not counted."""

K = TypeVar("K", bound=Hashable)


class OutboxShares(Generic[K]):
    """The unsent bytes of all connections of a broker.

    Invariant: the memory part is the sum over all counted connections.
    """

    def __init__(self, part: Part[object], max_bytes: int) -> None:
        self._part = part
        self._max_bytes = max_bytes
        self._unsent: dict[K, int] = {}
        self.settled: Settled[object] | None = None
        """The effect of the last report on connections that wait for memory."""

    def __len__(self) -> int:
        return len(self._unsent)

    def report(self, connection: K, unsent_bytes: int) -> bool:
        """Record the unsent bytes of a connection; the caller passes 0 below WATCHED_BYTES. Return whether the
        connection may receive more messages now.
        """
        before = self._unsent.pop(connection, 0)
        if unsent_bytes:
            self._unsent[connection] = unsent_bytes
        self.settled = self._part.count(unsent_bytes - before)
        return not unsent_bytes or unsent_bytes < self._allowed_bytes()

    def _allowed_bytes(self) -> int:
        part = self._part
        if part.room() <= 0:
            return 0
        most_bytes = part.most_bytes
        if part.used_bytes * 2 <= most_bytes:
            return min(self._max_bytes, most_bytes // 4)
        return min(self._max_bytes, most_bytes // (len(self._unsent) + 1))
