"""When transactions are over by themselves: a heap in which what has ended meanwhile is passed over.

Invariant: what has ended takes at most as much room as what has not, and `SLACK` entries more.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

SLACK = 1000
LONGEST_MS = 100 * 365 * 24 * 3600 * 1000
"""A time-out of more than a century is none: the numbers of clients reach further than those of timers."""


class Timeouts:
    """Times are those of a clock that never goes back, in milliseconds."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> float | None:
        """When `due` is to be asked next; None when there is nothing to wait for."""
        return self._heap[0][0] if self._heap else None

    def add(self, least: int, due_ms: float) -> None:
        """That transaction is over at `due_ms`."""
        heapq.heappush(self._heap, (due_ms, least))

    def due(self, now_ms: float, limit: int) -> list[int]:
        """At most `limit` whose time has come, the most overdue first; they are forgotten."""
        found: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms and len(found) < limit:
            found.append(heapq.heappop(self._heap)[1])
        return found

    def tidy(self, live: int, is_open: Callable[[int], bool]) -> None:
        """Drop what has ended, if that is more than the `live` ones and the slack."""
        if len(self._heap) > 2 * live + SLACK:
            self._heap = [each for each in self._heap if is_open(each[1])]
            heapq.heapify(self._heap)
