"""Positions in a coordinator's log that its open transactions and sinks still need. Earlier records may be deleted.

A transaction that stays open while thousands end is written again at the end of the log. So the recovery time depends
on the number of open transactions, not on their duration. The last record is always kept, because it has the highest
id.
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
    """Needed positions in the log of one coordinator."""

    def __init__(self) -> None:
        self._places: dict[PlaceKey, Position] = {}  # in the order of the log
        self._being_written: set[PlaceKey] = set()

    def __len__(self) -> int:
        return len(self._places)

    def stands(self, key: PlaceKey, position: Position) -> None:
        """Record that the complete state of `key` (a transaction or a sink) is durable in the record at `position`. The
        positions of successive calls must increase.
        """
        self._being_written.discard(key)
        self._places.pop(key, None)
        self._places[key] = position

    def ended(self, key: PlaceKey) -> None:
        """Record that a transaction has ended durably, or that a sink was deleted."""
        self._places.pop(key, None)
        self._being_written.discard(key)

    def needed_from(self, last: Position) -> Position:
        return min(next(iter(self._places.values()), last), last)

    def to_write_again(self, records: int) -> list[PlaceKey]:
        """Return the transactions and sinks whose state must be written again, oldest first; an empty list if the log,
        which has `records` records, is short enough.
        """
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
        """Record that the state of `key`, a result of `to_write_again`, was not written again."""
        self._being_written.discard(key)
