"""The trimmed entries of a managed ledger, for readers that store a position and ask whether later entries are missing.

All topics share the ledger ids, so the list of existing ledgers does not show whether a ledger between them was
trimmed. Therefore the last trimmed ledgers are recorded with their entry counts; of older ones, only the highest ledger
id.

Invariants: trimmed entries after a position are always reported, and no others. A position in a ledger at or before
`until` has certainly lost entries: too many ledgers were trimmed after it, or it belongs to an earlier topic of the
same name.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

from pybroker.model.position import Position

MAX_REMEMBERED = 64
"""Maximum number of recorded ledgers. Each takes some ten bytes in every stored managed ledger info."""


class TrimmedLedgers:
    """The trimmed ledgers of one managed ledger as rows of (ledger id, number of entries), ascending."""

    def __init__(self, until: int, rows: Iterable[tuple[int, int]] = ()) -> None:
        self.until = until
        self._rows: list[tuple[int, int]] = []
        self.add(rows)

    @property
    def rows(self) -> Sequence[tuple[int, int]]:
        return self._rows

    def add(self, rows: Iterable[tuple[int, int]]) -> None:
        for ledger_id, entry_count in rows:
            if entry_count:
                insort(self._rows, (ledger_id, entry_count))
        excess = len(self._rows) - MAX_REMEMBERED
        if excess > 0:
            self.until = max(self.until, self._rows[excess - 1][0])
            del self._rows[:excess]

    def with_rows(self, rows: Iterable[tuple[int, int]]) -> TrimmedLedgers:
        return TrimmedLedgers(self.until, [*self._rows, *rows])

    def lost_between(self, start: Position, end: Position) -> list[tuple[Position, Position | None]]:
        """Return the ranges of trimmed entries from `start` up to, but not including, `end`. A range is its first
        position and the position after its last entry; the latter is None if it is no longer known.
        """
        lost: list[tuple[Position, Position | None]] = []
        if start.ledger_id <= self.until:
            lost.append((start, None))
        for ledger_id, entry_count in self._rows:
            first = max(start, Position(ledger_id, 0))
            last = min(end, Position(ledger_id, entry_count))
            if first < last:
                lost.append((first, last))
        return lost
