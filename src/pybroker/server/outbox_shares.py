"""Which connections get messages while their clients have not taken those of before: what waits for them is memory.

Pure. Only connections with more than a little unsent are known here. While half of what outboxes may take together is free, each
may fill its own up to the bound of one connection; above that those stop that have more than their share; when nothing is free, all
stop. A connection without anything unsent never does, so that clients that do not read stop nobody else. Who has stopped goes on
when its client has taken nearly everything.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from pybroker.memory.memory_budget import Part, Settled

WATCHED_BYTES = 128 * 1024
"""From so much unsent on a connection is known here: less is what the next write takes."""

K = TypeVar("K", bound=Hashable)


class OutboxShares(Generic[K]):
    """Owned by the server context. Invariant: the part counts what is known of all connections, and nothing else."""

    def __init__(self, part: Part[object], max_bytes: int) -> None:
        """`max_bytes`: what one connection may have unsent, however much there is for all."""
        self._part = part
        self._max_bytes = max_bytes
        self._unsent: dict[K, int] = {}
        self.settled: Settled[object] | None = None
        """What follows from the last report for others that wait for memory."""

    def __len__(self) -> int:
        """How many connections have something unsent."""
        return len(self._unsent)

    def report(self, connection: K, unsent_bytes: int) -> bool:
        """`connection` has so much unsent, 0 for next to nothing; whether it gets more now."""
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
