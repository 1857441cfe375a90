"""Storage for the delayed delivery index of one durable subscription.

Parts of the index are stored when they are sorted; a checkpoint stores the whole index. A lost part loses no entry:
entries that are missing in the stored index are read from the topic again. A changed delivery time is stored
immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pybroker.dispatch.delayed.changed_delays import ChangedDelays
from pybroker.dispatch.delayed.delayed_entries import DelayedIndex, DelayedRun
from pybroker.dispatch.delayed.delayed_record import encode_more, encode_whole, stored_changes, stored_runs
from pybroker.errors import StoreError
from pybroker.ledgers.cursor_store import CursorOwner
from pybroker.model.position import Position
from pybroker.runtime import logs
from pybroker.runtime.tasks import completion

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.managed_ledger.managed_cursor import ManagedCursor

STALE_ENTRIES = 65_536
"""The stored index is rewritten when its removed entries exceed its waiting entries by this number."""


class DelayedIndexStorage(CursorOwner):
    """Writer and reader of the stored index."""

    def __init__(
        self,
        topic: TopicContext,
        subscription_name: str,
        cursor: ManagedCursor,
        index: DelayedIndex,
        changed: ChangedDelays,
    ) -> None:
        self.is_closed = False
        self._topic = topic
        self._subscription_name = subscription_name
        self._cursor_store = topic.broker_context.ledgers.cursor_store
        self._cursor = cursor
        self._index = index
        self._changed = changed
        records, cursor.stored_delayed = cursor.stored_delayed, []
        self._unread_records = records
        self._unread: Iterator[DelayedRun] | None = stored_runs(records) if records else None
        self.is_restored = self._unread is None
        self._record_id = ""  # empty while nothing is stored
        self._is_announcing = False
        self._announcing = asyncio.Lock()
        self._stored_serial = 0  # the number of the last run that was passed to the store
        self._stored_entries = 0

    # --- restoring ---------------------------------------------------------------------------------------------------

    def restore(self, deadline_ms: float) -> bool:
        if self._unread is None:
            return True
        state, ledgers = self._cursor.state, self._cursor.ledger.ledgers
        clock = self._topic.runtime.clock
        try:
            for run in self._unread:
                if ledgers.row_of(run.ledger_id) is not None:
                    self._index.add_run(run, state.deleted_in(run.ledger_id))
                if clock.monotonic_ms() >= deadline_ms:
                    return False
        except StoreError as error:
            # No message is lost, because the cursor reads the entries again.
            logs.error("delayed.not_restored", **self._names(), error=str(error))
        self._unread = None
        self.is_restored = True
        self._restore_changes()
        self._stored_serial = self._index.last_serial
        self._stored_entries = len(self._index)
        logs.info("delayed.restored", **self._names(), entries=len(self._index))
        self.store_runs()
        return True

    def _restore_changes(self) -> None:
        records, self._unread_records = self._unread_records, []
        state, ledgers = self._cursor.state, self._cursor.ledger.ledgers
        try:
            changes = stored_changes(records)
        except StoreError:
            return  # `restore` has logged it
        for position, due_ms in changes.items():
            if ledgers.has_entry(position) and not state.is_deleted(*position) and self._changed.has_room(position):
                self._changed.set(position, due_ms)
                self._index.move(position)

    def _names(self) -> dict[str, Any]:
        return {"topic": self._topic.name, "subscription": self._subscription_name}

    # --- storing -----------------------------------------------------------------------------------------------------

    def store_runs(self) -> None:
        if not self._cursor.is_durable or self._unread is not None or self.is_closed:
            return
        if self._record_id:
            runs = self._index.runs_after(self._stored_serial)
            if runs:
                self._append(encode_more(runs), runs)
        elif not self._is_announcing:
            self._is_announcing = True
            self._topic.tasks.start(self._begin_storing(), f"store delayed {self._subscription_name}")

    async def store_change(self, position: Position, due_ms: int) -> None:
        """Store a changed delivery time. Durable on return. Raises StoreError."""
        await self._announce()
        if not self._record_id or self.is_closed:
            raise StoreError(
                f"the delivery time of message {position} cannot be stored: subscription {self._subscription_name} is being closed"
            )
        self.store_runs()  # the runs that were created before the record existed
        stored, done = completion()
        self._cursor_store.append_delta(self._record_id, encode_more((), [(position, due_ms)]), done)
        await stored

    def store_anew_if_stale(self) -> None:
        """Rewrite the stored index if most of its entries are no longer delayed; delete it if no entry is delayed."""
        waiting = len(self._index)
        is_stale = self._stored_entries > (2 * waiting + STALE_ENTRIES if waiting else 0)
        if is_stale and self._record_id and not self.is_closed:
            runs = self._index.runs_after(0)
            self._stored_entries = 0
            self._append(encode_whole(runs, self._changed), runs)

    async def _begin_storing(self) -> None:
        try:
            await self._announce()
        except StoreError as error:
            logs.error("delayed.not_stored", **self._names(), error=str(error))
            return
        finally:
            self._is_announcing = False
        self.store_runs()

    async def _announce(self) -> None:
        """Record in the metadata that a stored index may exist."""
        async with self._announcing:
            if self._record_id or self.is_closed:
                return
            record_id = await self._cursor.announce_delayed()
            if not self.is_closed:
                self._record_id = record_id
                self._cursor_store.attach(record_id, self)

    def _append(self, record: bytes, runs: Sequence[DelayedRun]) -> None:
        self._stored_serial = self._index.last_serial
        self._stored_entries += sum(len(run.packed) - run.index for run in runs)
        # Not awaited, because entries that are not stored are read from the topic again.
        self._cursor_store.append_delta(self._record_id, record, None)

    def snapshot(self) -> bytes:
        self._index.seal_newest()
        runs = self._index.runs_after(0)
        self._stored_serial = self._index.last_serial
        self._stored_entries = sum(len(run.packed) - run.index for run in runs)
        return encode_whole(runs, self._changed)

    async def close(self) -> None:
        """Store the unstored part of the index. Idempotent. Raises StoreError if the store fails; the storage is closed even
        then."""
        if self.is_closed:
            return
        if self._record_id:
            self._index.seal_newest()
            self.store_runs()  # The store writes a snapshot only for a record of which it has seen a delta.
        self.is_closed = True
        if self._record_id:
            await self._cursor_store.detach(self._record_id)
