"""Timeouts of transactions, in a heap that also contains some ended transactions."""

from __future__ import annotations

import heapq
from collections.abc import Callable

SLACK = 1000
LONGEST_MS = 100 * 365 * 24 * 3600 * 1000
"""Longer timeouts count as this one, because clients can send larger numbers than timers accept."""


class Timeouts:
    """Timeouts of the transactions of one coordinator, in milliseconds of the monotonic clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> float | None:
        """Time in milliseconds (monotonic clock) at which `due` must be called next; None without transactions."""
        return self._heap[0][0] if self._heap else None

    def add(self, least: int, due_ms: float) -> None:
        heapq.heappush(self._heap, (due_ms, least))

    def due(self, now_ms: float, limit: int) -> list[int]:
        """Remove at most `limit` expired transactions from the heap, the oldest first. Return the low halves of their
        ids.
        """
        found: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms and len(found) < limit:
            found.append(heapq.heappop(self._heap)[1])
        return found

    def tidy(self, live: int, is_open: Callable[[int], bool]) -> None:
        """Remove ended transactions, for which `is_open` returns False, if most entries of the heap are such
        transactions. `live`: the number of open transactions.
        """
        if len(self._heap) > 2 * live + SLACK:
            self._heap = [each for each in self._heap if is_open(each[1])]
            heapq.heapify(self._heap)
