"""Reads for consumers with `readCompacted`, from the compacted view and from the topic.

Entries up to the compaction horizon come from the compacted view, later entries from the topic. The read position is a
position in the topic, so a new view neither repeats nor skips entries. Entries that are not in the view are
acknowledged when the read position passes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyroaring import BitMap

from pybroker.broker.delivery.stages import PassOver
from pybroker.compaction.stored_entry import CompactedEntry
from pybroker.compaction.view import first_at, read_view
from pybroker.dispatch.dispatcher import AssignInput
from pybroker.errors import DamagedEntries, NoSuchLedger, StoreError
from pybroker.ledgers.ledger_store import EntryRun, LedgerStore
from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.read_ahead import READ_AHEAD_BYTES, READ_AHEAD_ENTRIES
from pybroker.model.position import Position


class CompactedRun(EntryRun):
    """Consecutive entries of the compacted view from one ledger. Entry ids may have gaps."""

    __slots__ = ("entry_ids",)

    def __init__(self, entries: Sequence[CompactedEntry]) -> None:
        self.entry_ids = [entry.position.entry_id for entry in entries]
        super().__init__(
            entries[0].position.ledger_id,
            self.entry_ids[0],
            [entry.payload for entry in entries],
            [entry.message_count for entry in entries],
        )


class CompactedReads:
    """Source of entries for the active consumer while it uses `readCompacted`."""

    def __init__(self, cursor: ManagedCursor, store: LedgerStore, pass_over: PassOver) -> None:
        self._cursor = cursor
        self._store = store
        self._acknowledge = pass_over
        self._ahead: list[CompactedEntry] = []
        self._ahead_of: CompactedInfo | None = None
        self._ahead_from = Position(-1, -1)  # the read position to which the entries that were read ahead belong
        # Delivered entries of ledgers that the topic has deleted.
        self._seen: dict[int, BitMap] = {}
        self._unacked: dict[int, BitMap] = {}
        self._delivered = Position(-1, -1)  # the last of these entries

    # --- reading -----------------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Move the read position to the first entry after the mark-delete position. This entry may exist only in the
        compacted view.
        """
        mark = self._cursor.mark_delete_position
        self._cursor.read_position = Position(mark.ledger_id, mark.entry_id + 1)

    def pass_over(self, held_back: Mapping[int, BitMap]) -> None:
        if self._view() is None:
            self._cursor.pass_over(held_back)

    def next_entry(self) -> Position | None:
        """Return the position from which `read_cached` reads; None if there is no entry now."""
        return self._cursor.next_entry() if self._view() is None else self._cursor.read_position

    def has_more(self) -> bool:
        return self.next_entry() is not None

    def read_cached(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Return entries from `position`, which must be the result of `next_entry`, and advance the read position.
        Return None if the entries are not in memory.
        """
        view = self._view()
        if view is None:
            return self._cursor.read_cached(position, max_entries, max_bytes)
        if self._ahead_of is not view or not self._ahead or self._ahead_from != self._cursor.read_position:
            return None
        return self._take(max_entries, max_bytes)

    async def read(self, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Read the next entries from the store and advance the read position. Raises StoreError.

        Return None if a compaction has replaced the compacted view, or if the view has no more entries. The caller
        then calls `read` again, which reads from the new view, or from the topic after the end of the view.
        """
        view = self._view()
        if view is None:
            return await self._cursor.read(max_entries, max_bytes)
        position = self._cursor.read_position
        try:
            index = await first_at(self._store, view, position)
            found = index < view.entries
            entries = await read_view(self._store, view, index, READ_AHEAD_ENTRIES, READ_AHEAD_BYTES) if found else []
        except StoreError as error:
            if self._is_elsewhere(view, position):
                return None  # A compaction has replaced the view: the next read uses the new one.
            if isinstance(error, (DamagedEntries, NoSuchLedger)):
                # This ledger belongs to the view, so no entries of the topic can be skipped because of it.
                raise StoreError(
                    f"the compacted view of managed ledger {self._cursor.ledger.name} cannot be read: {error}. Run a "
                    "compaction of the topic, which writes a new view"
                ) from error
            raise
        if self._is_elsewhere(view, position):
            return None
        if not entries:
            horizon = Position(*view.horizon)
            self._go_to(Position(horizon.ledger_id, horizon.entry_id + 1))
            return None
        self._ahead, self._ahead_of = entries, view
        return self._take(max_entries, max_bytes)

    def _view(self) -> CompactedInfo | None:
        view = self._cursor.ledger.compacted
        return view if view is not None and self._cursor.read_position <= view.horizon else None

    def _is_elsewhere(self, view: CompactedInfo, position: Position) -> bool:
        return self._view() is not view or self._cursor.read_position != position

    def _take(self, max_entries: int, max_bytes: int) -> CompactedRun:
        ahead = self._ahead
        ledger_id = ahead[0].position.ledger_id
        count = size_bytes = 0
        for entry in ahead[:max_entries]:
            size_bytes += len(entry.payload)
            if entry.position.ledger_id != ledger_id or (count and size_bytes > max_bytes):
                break
            count += 1
        run = CompactedRun(ahead[:count])
        del ahead[:count]
        for entry_id in run.entry_ids:
            self._go_to(Position(ledger_id, entry_id))
            self._cursor.read_position = Position(ledger_id, entry_id + 1)
        self._ahead_from = self._cursor.read_position
        if not self._cursor.ledger.ledgers.has_ledger(ledger_id):
            self._remember(ledger_id, run.entry_ids)
        return run

    def _go_to(self, position: Position) -> None:
        before, self._cursor.read_position = self._cursor.read_position, position
        if before == position:
            return
        state = self._cursor.state
        for row in self._cursor.ledger.ledgers.rows():
            if before.ledger_id <= row.ledger_id <= position.ledger_id:
                first, end = 0, row.entry_count
                if row.ledger_id == before.ledger_id:
                    first = max(0, before.entry_id)
                if row.ledger_id == position.ledger_id:
                    end = min(end, position.entry_id)
                if first < end and state.undeleted_in(row.ledger_id, first, end - first) != []:
                    self._acknowledge(row.ledger_id, range(first, end))

    # --- acknowledged entries --------------------------------------------------------------------------------------------

    def undelivered(self, run: CompactedRun) -> AssignInput:
        state, ledger_id = self._cursor.state, run.ledger_id
        ack_sets = [state.ack_set_of(ledger_id, entry_id) for entry_id in run.entry_ids]
        entries = AssignInput(
            ledger_id, run.entry_ids, run.payloads, run.message_counts, ack_sets if any(ack_sets) else None
        )
        if self._cursor.ledger.ledgers.has_ledger(ledger_id):
            kept = [i for i, entry_id in enumerate(run.entry_ids) if not state.is_deleted(ledger_id, entry_id)]
        else:
            unacked = self._unacked.get(ledger_id, BitMap())
            kept = [i for i, entry_id in enumerate(run.entry_ids) if entry_id in unacked]
        return entries if len(kept) == len(run.entry_ids) else entries.rows(kept)

    def _remember(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        mark = self._cursor.mark_delete_position
        seen = self._seen.get(ledger_id, BitMap())
        new = BitMap([entry_id for entry_id in entry_ids if (ledger_id, entry_id) > mark]) - seen
        if new:
            self._seen[ledger_id] = seen | new
            self._unacked[ledger_id] = self._unacked.get(ledger_id, BitMap()) | new
            self._delivered = max(self._delivered, Position(ledger_id, new.max()))

    def acknowledged(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        unacked = self._unacked.get(ledger_id)
        if unacked is not None:
            unacked -= BitMap(entry_ids)
            self._move_mark()

    def acknowledged_up_to(self, position: Position) -> None:
        for ledger_id in [ledger_id for ledger_id in self._unacked if ledger_id <= position.ledger_id]:
            if ledger_id < position.ledger_id:
                del self._unacked[ledger_id]
            elif position.entry_id >= 0:
                self._unacked[ledger_id].remove_range(0, position.entry_id + 1)
        self._move_mark()

    def _move_mark(self) -> None:
        while self._unacked:
            ledger_id, unacked = min(self._unacked.items(), key=lambda item: item[0])
            if unacked:
                self._cursor.state.move_mark_over_gone(Position(ledger_id, unacked.min() - 1))
                return
            del self._unacked[ledger_id]
        self._cursor.state.move_mark_over_gone(self._delivered)
