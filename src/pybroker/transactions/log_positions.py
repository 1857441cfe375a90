"""Where in the log the transactions stand that have not ended, and the marks of sinks, and so what of the log is needed.

Each has one place, that of the last record which says all of it; everything before the lowest place may go. Where one stays open
while thousands end behind it, it is written again at the end, and its place moves there: reading the log after a restart takes
time for what is open, not for how long it was. The last record of all stays whatever it says, as it tells the highest id.

Invariants: places are in the order of the log; what may go never grows beyond the record before the last one.
"""

from __future__ import annotations

from pybroker.model.position import Position

FEW_RECORDS = 1000
"""So many are not worth writing anything again."""
RECORDS_EACH = 4
"""With more for each transaction that is open, the oldest are written again: on the average a record is written 1.3 times."""
AGAIN_AT_ONCE = 128


PlaceKey = int | str
"""A transaction by its `least`, or a sink's mark by its name."""


class LogPositions:
    """Owned by the log of a coordinator."""

    def __init__(self) -> None:
        self._places: dict[PlaceKey, Position] = {}  # in the order of the log
        self._being_written: set[PlaceKey] = set()

    def __len__(self) -> int:
        return len(self._places)

    def stands(self, key: PlaceKey, position: Position) -> None:
        """A record that says all of it is durable at `position`, behind all others."""
        self._being_written.discard(key)
        self._places.pop(key, None)
        self._places[key] = position

    def ended(self, key: PlaceKey) -> None:
        """Nothing of it is needed any more; that it has ended is durable."""
        self._places.pop(key, None)
        self._being_written.discard(key)

    def needed_from(self, last: Position) -> Position:
        """The first record that is needed, of a log that ends at `last`."""
        return min(next(iter(self._places.values()), last), last)

    def to_write_again(self, records: int) -> list[PlaceKey]:
        """What to write again now, the oldest first, when `records` are kept of the log."""
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
        """It was not written again."""
        self._being_written.discard(key)
