"""The log positions of open transactions and sink marks, which determine the needed part of the log.

Each is the position of the last complete record; the log before the lowest position may be deleted. A transaction that
stays open while thousands end is written again at the end of the log, so the recovery time depends on the number of
open transactions, not on their duration. The last record is always kept, because it has the highest id.

Invariants: positions are in the order of the log; the deletable part never includes the last record.
"""

from __future__ import annotations

from pybroker.model.position import Position

FEW_RECORDS = 1000
"""A log with fewer records is never rewritten."""
RECORDS_EACH = 4
"""With more records than this for each open transaction, the oldest transactions are written again.

On average, a record is written 1.3 times.
"""
AGAIN_AT_ONCE = 128


PlaceKey = int | str
"""A transaction (its `least`), or a sink's mark (the name of the sink)."""


class LogPositions:
    """The positions in the log of one coordinator."""

    def __init__(self) -> None:
        self._places: dict[PlaceKey, Position] = {}  # in the order of the log
        self._being_written: set[PlaceKey] = set()

    def __len__(self) -> int:
        return len(self._places)

    def stands(self, key: PlaceKey, position: Position) -> None:
        """Record that the complete state of `key` is durable at `position`, which is higher than all earlier positions."""
        self._being_written.discard(key)
        self._places.pop(key, None)
        self._places[key] = position

    def ended(self, key: PlaceKey) -> None:
        """Record that the end of a transaction or mark is durable."""
        self._places.pop(key, None)
        self._being_written.discard(key)

    def needed_from(self, last: Position) -> Position:
        return min(next(iter(self._places.values()), last), last)

    def to_write_again(self, records: int) -> list[PlaceKey]:
        """Return the transactions and marks to be written again, oldest first, for a log with `records` records."""
        if self._being_written or records <= FEW_RECORDS + RECORDS_EACH * len(self._places):
            return []
        found: list[PlaceKey] = []
        for key in self._places:
            found.append(key)
            if len(found) == AGAIN_AT_ONCE:
                break
        self._being_written.update(found)
        return found

    def given_up(self, key: PlaceKey) -> None:
        """Record that a transaction or mark of `to_write_again` was not written again."""
        self._being_written.discard(key)
