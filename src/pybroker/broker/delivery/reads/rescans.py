"""Reads entries again that the cursor has passed, for scans of the dispatcher, without moving the cursor.

The dispatcher determines the start and the hashes of a scan; this class keeps its position, and entries that the last read from the
store returned beyond the request. Acknowledged entries and delayed entries are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap

from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.cache.entry_cache import part_of
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.read_ahead import READ_AHEAD_BYTES, READ_AHEAD_ENTRIES
from pybroker.model.position import Position


class Rescans:
    """Owned by a subscription."""

    def __init__(self, cursor: ManagedCursor) -> None:
        self._cursor = cursor
        self._ahead: EntryRun | None = None

    def next_position(self, position: Position, held_back: Mapping[int, BitMap]) -> Position | None:
        """Return the first entry from that position on that must be read again; None if only the entry at the cursor is left."""
        found = self._cursor.state.first_wanted(position, held_back)
        ledgers = self._cursor.ledger.ledgers
        if ledgers.has_entry(found) and found < ledgers.normalize(self._cursor.read_position):
            return found
        self._ahead = None
        return None

    def read_cached(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Entries from `position` on, of one ledger, that the cursor has passed, if they are in memory."""
        max_entries = self._within_passed(position, max_entries)
        ahead = self._ahead
        if ahead is not None and ahead.ledger_id == position.ledger_id:
            index = position.entry_id - ahead.first_entry_id
            if 0 <= index < len(ahead.payloads):
                return part_of(ahead, index, max_entries, max_bytes)
        self._ahead = None
        return self._cursor.ledger.read_cached(position, max_entries, max_bytes)

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        """The same from the store; None when the entry at `position` was trimmed. Raises StoreError."""
        ahead = await self._cursor.ledger.read_if_there(
            position,
            self._within_passed(position, max(max_entries, READ_AHEAD_ENTRIES)),
            READ_AHEAD_BYTES,
            self._cursor.reader,
        )
        if ahead is None:
            return None
        run = part_of(ahead, 0, self._within_passed(position, max_entries), max_bytes)
        self._ahead = ahead if len(run.payloads) < len(ahead.payloads) else None
        return run

    def _within_passed(self, position: Position, max_entries: int) -> int:
        end = self._cursor.ledger.ledgers.normalize(self._cursor.read_position)
        if end.ledger_id == position.ledger_id:
            return max(1, min(max_entries, end.entry_id - position.entry_id))
        return max_entries
