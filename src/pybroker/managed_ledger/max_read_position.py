"""The max read position of a managed ledger: readers receive no entries at or after the first message of an open
transaction, and no aborted messages. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyroaring import BitMap

from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.model.position import Position

_NOTHING: dict[int, BitMap] = {}


class ReadLimit:
    """The entries of one managed ledger that readers may not see. Changed by the topic's transactions."""

    __slots__ = ("hidden", "limit")

    def __init__(self) -> None:
        self.limit: Position | None = None
        """The first entry that readers may not have yet; None while all may be read."""
        self.hidden: Mapping[int, BitMap] = _NOTHING
        """Entries that readers never get, by ledger: aborted messages, and the markers of all transactions."""

    def readable(self, position: Position, max_entries: int) -> int:
        limit = self.limit
        if limit is None or position.ledger_id < limit.ledger_id:
            return max_entries
        return min(max_entries, max(0, limit.entry_id - position.entry_id)) if position < limit else 0

    def hidden_among(self, ledger_id: int, entry_ids: Sequence[int]) -> BitMap:
        """Return those of `entry_ids` (ascending) that no reader receives: messages of aborted transactions, and
        transaction markers. Usually empty.
        """
        hidden = self.hidden.get(ledger_id)
        if hidden is None or not entry_ids or not hidden.range_cardinality(entry_ids[0], entry_ids[-1] + 1):
            return BitMap()
        return BitMap(entry_ids) & hidden

    def hidden_in(self, ledger_id: int, first_entry_id: int, end_entry_id: int) -> BitMap:
        """Return the entry ids from `first_entry_id` up to, but not including, `end_entry_id` that no reader receives:
        messages of aborted transactions, and transaction markers. Usually empty.
        """
        hidden = self.hidden.get(ledger_id)
        if hidden is None or not hidden.range_cardinality(first_entry_id, end_entry_id):
            return BitMap()
        return hidden & BitMap(range(first_entry_id, end_entry_id))

    def is_hidden(self, position: Position) -> bool:
        hidden = self.hidden.get(position.ledger_id)
        return hidden is not None and position.entry_id >= 0 and position.entry_id in hidden

    def last_readable(self, ledgers: LedgerList) -> Position:
        """Return the position of the last entry in front of the first message of an open transaction. Without open
        transactions, return the position of the last entry. The result may be an aborted message or a marker; it is
        entry -1 of the first ledger if there is no such entry.
        """
        last = ledgers.last_position
        return last if self.limit is None or last < self.limit else ledgers.previous_position(self.limit)

    def visible_up_to(self, position: Position, ledgers: LedgerList) -> Position:
        """Return the position of the last entry at or before `position` that is neither an aborted message nor a
        transaction marker; entry -1 of the first ledger if there is none. Open transactions are not considered.
        """
        while self.is_hidden(position):
            hidden = self.hidden[position.ledger_id]
            position = ledgers.previous_position(Position(position.ledger_id, _start_of_run(hidden, position.entry_id)))
        return position

    def last_visible(self, ledgers: LedgerList) -> Position:
        """Return the position of the last entry that readers may see; entry -1 of the first ledger if there is none."""
        return self.visible_up_to(self.last_readable(ledgers), ledgers)


def _start_of_run(bitmap: BitMap, entry_id: int) -> int:
    high, step = entry_id, 1
    while high - step >= 0 and bitmap.contains_range(high - step, entry_id + 1):
        high -= step
        step *= 2
    low = max(-1, high - step)  # the run begins after `low`, at `high` or earlier
    while high - low > 1:
        middle = (low + high) // 2
        if bitmap.contains_range(middle, entry_id + 1):
            high = middle
        else:
            low = middle
    return high


def without_ledgers(bitmaps: Mapping[int, BitMap], ledger_ids: Iterable[int]) -> dict[int, BitMap]:
    gone = set(ledger_ids)
    return {ledger_id: bitmap for ledger_id, bitmap in bitmaps.items() if ledger_id not in gone}
