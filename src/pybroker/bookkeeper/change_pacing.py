"""The pauses between replacements of bookies in an open ledger's ensemble, while none of its entries is confirmed.
Pure.

Bookies that are dead stay registered until their sessions end, so a replacement may fail at once. The first change is
immediate. Each further one without a confirmed entry between them waits twice as long as the one before. Only the first
one is logged, and the last one when entries are confirmed again.
"""

from __future__ import annotations


class ChangePacing:
    """The replacements of bookies by one writer since its last confirmed entry."""

    __slots__ = ("_behind", "_changes", "_first_ms", "_has_waited", "_max_ms")

    def __init__(self, first_ms: float, max_ms: float) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._behind: int | None = None
        self._changes = 0
        self._has_waited = False

    def wait_ms(self, last_confirmed: int) -> float:
        """Return how many milliseconds to wait before the next replacement of a bookie; 0: replace now.
        `last_confirmed`: the id of the last confirmed entry. Call `waited` after the wait.
        """
        if self._behind != last_confirmed:
            self._behind, self._changes, self._has_waited = last_confirmed, 0, False
        if not self._changes or self._has_waited:
            return 0.0
        return min(self._max_ms, self._first_ms * float(2 ** min(self._changes - 1, 30)))

    def waited(self) -> None:
        self._has_waited = True

    def changed(self) -> bool:
        """Record a replacement of a bookie. Return True if the caller must log it: it is the first one since a
        confirmed entry.
        """
        self._has_waited = False
        self._changes += 1
        return self._changes == 1

    @property
    def has_unlogged(self) -> bool:
        return self._changes > 1

    def confirmed(self) -> int:
        """Record that entries are confirmed again. Return the number of replacements since the previous confirmed
        entry.
        """
        changes, self._changes, self._behind = self._changes, 0, None
        return changes
