"""One subscription's place in a managed ledger: where it reads next, and what it has acknowledged.

Durable cursors are written as deltas, at most one in flight for each cursor: what changes meanwhile goes with the next one, so a
burst of acknowledgements costs a few records. Whoever asks for a receipt is answered once a delta that covers it is durable;
what nobody asked about is written by the factory's flush timer.

Invariants: the mark-delete position never moves back; `read_position` lies behind the mark-delete position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pybroker.errors import StoreError
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.entry_cache import part_of
from pybroker.model.position import Position
from pybroker.storage.cursor_store import CursorOwner, CursorStore
from pybroker.storage.ledger_store import EntryRun

if TYPE_CHECKING:
    from pybroker.managed_ledger.managed_ledger import ManagedLedger

READ_AHEAD_ENTRIES = 1000
READ_AHEAD_BYTES = 1024 * 1024
"""What one read from the store brings for a cursor that catches up: a hop to the reading thread and back costs more than a
hundred entries of dispatch. Held until it is used up or the cursor goes elsewhere."""

PersistDone = Callable[[StoreError | None], None]


class ManagedCursor(CursorOwner):
    """Owned by its managed ledger, under its name; used by one subscription."""

    def __init__(
        self,
        ledger: ManagedLedger,
        name: str,
        cursor_id: str,
        state: CursorState,
        store: CursorStore | None,
        properties: Mapping[str, str],
    ) -> None:
        """`store` None makes the cursor non-durable: nothing of it is written."""
        self.ledger = ledger
        self.name = name
        self.cursor_id = cursor_id
        self.state = state
        self.properties = dict(properties)
        self.read_position = Position(-1, -1)
        self._store = store
        self._is_writing = False
        self._is_dirty = False
        self._waiting: list[PersistDone] = []
        self._ahead: EntryRun | None = None
        self.rewind()
        if store is not None:
            store.attach(cursor_id, self)

    @property
    def is_durable(self) -> bool:
        return self._store is not None

    @property
    def mark_delete_position(self) -> Position:
        return self.state.mark_delete_position

    @property
    def backlog_entries(self) -> int:
        """Entries that are not acknowledged, exact."""
        return self.state.backlog_entries

    # --- reading -----------------------------------------------------------------------------------------------------

    def rewind(self) -> None:
        """Read again from the first entry behind the mark-delete position."""
        self.read_position = self.ledger.ledgers.next_position(self.state.mark_delete_position)

    def has_more(self) -> bool:
        """Whether an entry stands at or behind the read position."""
        ledgers = self.ledger.ledgers
        return ledgers.has_entry(ledgers.normalize(self.read_position))

    def read_cached(self, max_entries: int, max_bytes: int) -> EntryRun | None:
        """The next entries if they are in memory, advancing; None when they must be read from the store.

        Only call while `has_more()`.
        """
        position = self.ledger.ledgers.normalize(self.read_position)
        run = self._from_read_ahead(position, max_entries, max_bytes)
        if run is None:
            run = self.ledger.read_cached(position, max_entries, max_bytes)
        if run is not None:
            self.read_position = Position(run.ledger_id, run.first_entry_id + len(run.payloads))
        return run

    def _from_read_ahead(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        """The entries at `position` out of what the last read from the store brought beyond what was asked."""
        ahead = self._ahead
        if ahead is None:
            return None
        index = position.entry_id - ahead.first_entry_id
        if position.ledger_id != ahead.ledger_id or not 0 <= index < len(ahead.payloads):
            self._ahead = None
            return None
        return part_of(ahead, index, max_entries, max_bytes)

    async def read(self, max_entries: int, max_bytes: int) -> EntryRun | None:
        """The next entries from the store, advancing; None when the cursor was moved meanwhile (read again then).

        Raises StoreError when they cannot be read.
        """
        before = self.read_position
        position = self.ledger.ledgers.normalize(before)
        ahead = await self.ledger.read(position, max(max_entries, READ_AHEAD_ENTRIES), max(max_bytes, READ_AHEAD_BYTES))
        if self.read_position != before:
            return None
        run = part_of(ahead, 0, max_entries, max_bytes)
        self._ahead = ahead if len(run.payloads) < len(ahead.payloads) else None
        self.read_position = Position(run.ledger_id, run.first_entry_id + len(run.payloads))
        return run

    # --- acknowledging -----------------------------------------------------------------------------------------------

    def changed(self, done: PersistDone | None) -> None:
        """The state changed. With `done`: write it now and tell when it is durable; else the flush timer writes it."""
        if self._store is None:
            if done is not None:
                done(None)
            return
        if done is not None:
            self._waiting.append(done)
            self._is_dirty = True
            self.flush()
        elif not self._is_dirty:
            self._is_dirty = True
            self.ledger.cursor_dirty(self)

    def flush(self) -> None:
        """Write what changed since the last delta, unless one is in flight: then the next one takes it along."""
        if self._is_writing or not self._is_dirty or self._store is None:
            return
        self._is_dirty = False
        delta = self.state.take_delta()
        waiting, self._waiting = self._waiting, []
        if delta is None:
            for done in waiting:
                done(None)
            return
        self._is_writing = True
        self._store.append_delta(self.cursor_id, delta, lambda error: self._written(error, waiting))

    def _written(self, error: StoreError | None, waiting: list[PersistDone]) -> None:
        self._is_writing = False
        if error is not None:
            # What it held is no longer in the state's list of changes: the next one carries the whole state.
            self.state.forget_deltas()
            self._is_dirty = True
            self.ledger.cursor_dirty(self)
        for done in waiting:
            done(error)
        if self._waiting:
            self.flush()

    def snapshot(self) -> bytes:
        return self.state.snapshot()

    async def close(self) -> None:
        """Write what is left and forget the live cursor."""
        self._ahead = None
        if self._store is not None:
            self.flush()  # The store writes a snapshot only for a cursor of which it has seen a delta.
            await self._store.detach(self.cursor_id)
            self._store = None
