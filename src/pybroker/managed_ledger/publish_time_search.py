"""Search for entries of a topic by publish time: bisection over ledgers, over a ledger's index, and over single
entries.

Clients set publish times, and their clocks differ: where times do not increase, the result is an entry with the
searched time that follows an entry with an earlier time. An unreadable entry counts like the next readable one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from pybroker.errors import DamagedEntries, StoreError
from pybroker.ledgers.ledger_store import LedgerStore
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.model.position import Position

# Returns the first readable entry of the indexes [first, end), with its publish time.
_Look = Callable[[int, int], Awaitable[tuple[int, int] | None]]


class PublishTimes:
    """Publish times of the entries of one managed ledger."""

    def __init__(
        self,
        ledgers: LedgerList,
        store: LedgerStore,
        time_of: Callable[[Position], Awaitable[int]],
    ) -> None:
        self._ledgers = ledgers
        self._store = store
        self._time_of = time_of

    async def first_published_at(self, publish_time_ms: int, start: Position) -> Position:
        """Return the position of the first entry at or after `start` that was published at `publish_time_ms`
        (milliseconds since 1970) or later; the position after the last entry if there is none. Raises StoreError.
        """
        while True:
            before = self._ledgers.ledger_ids()
            try:
                return await self._search(publish_time_ms, self._ledgers.normalize(start))
            except StoreError:
                if set(before) <= set(self._ledgers.ledger_ids()):
                    raise
                # A ledger was trimmed during the search.

    async def first_readable(self, position: Position) -> tuple[Position, int] | None:
        """Return the position of the first entry at or after `position` that is not damaged, and its publish time in
        milliseconds since 1970; None if there is no such entry. Raises StoreError.
        """
        ledgers = self._ledgers
        position = ledgers.normalize(position)
        while ledgers.has_entry(position):
            ledger_id = position.ledger_id
            count = ledgers.entry_count_of(ledger_id)
            found = await self._readable_in(ledger_id, position.entry_id, count)
            if found is not None:
                return Position(ledger_id, found[0]), found[1]
            position = ledgers.normalize(Position(ledger_id, count))
        return None

    async def _search(self, publish_time_ms: int, start: Position) -> Position:
        ledgers = self._ledgers
        if not ledgers.has_entry(start):
            return ledgers.end_position
        ids = [row.ledger_id for row in ledgers.rows() if row.entry_count and row.ledger_id >= start.ledger_id]

        async def look_at_ledgers(first: int, end: int) -> tuple[int, int] | None:
            for index in range(first, end):
                found = await self._readable_in(ids[index], 0, ledgers.entry_count_of(ids[index]))
                if found is not None:
                    return index, found[1]
            return None

        # The entry is in the last ledger that begins too early, or is the first one after that ledger.
        ledger_id = ids[await _bisect(look_at_ledgers, 1, len(ids), publish_time_ms) - 1]
        count = ledgers.entry_count_of(ledger_id)
        try:
            low, high = await self._store.index.publish_time_span(ledger_id, publish_time_ms) or (0, count)
        except DamagedEntries:  # of the whole ledger: its index cannot be read
            low, high = 0, count
        low = min(max(low, start.entry_id if ledger_id == start.ledger_id else 0), count)
        high = max(low, min(high, count))
        entry_id = await _bisect(partial(self._readable_in, ledger_id), low, high, publish_time_ms)
        return ledgers.normalize(Position(ledger_id, entry_id))

    async def _readable_in(self, ledger_id: int, first: int, end: int) -> tuple[int, int] | None:
        while first < end:
            try:
                return first, await self._time_of(Position(ledger_id, first))
            except DamagedEntries as damage:
                first = max(first, damage.last_entry_id) + 1
        return None


async def _bisect(look: _Look, low: int, high: int, publish_time_ms: int) -> int:
    """Return the first index of [low, high) with that time or a later one; `high` if there is none."""
    while low < high:
        middle = (low + high) // 2
        found = await look(middle, high)
        if found is None or found[1] >= publish_time_ms:
            high = middle
        else:
            low = found[0] + 1
    return low
