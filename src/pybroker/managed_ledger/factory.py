"""Opens managed ledgers by name and owns what they share: the stores, the cache, the flush timer of cursors.

What the metadata store keeps of a managed ledger is in `info.py`. Every change of it goes through `save`, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from pybroker import logs
from pybroker.clock import Clock
from pybroker.errors import BadVersionError, NoSuchLedger, StoreError
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.entry_cache import EntryCache
from pybroker.managed_ledger.gone_ledgers import GoneLedgers
from pybroker.managed_ledger.info import (
    FORMAT_VERSION,
    CursorInfo,
    ManagedLedgerInfo,
    decode_info,
    delayed_record_id,
)
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.leftovers import named_ledger_ids
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.metadata.store import NOT_EXISTING, MetadataStore
from pybroker.model.position import Position
from pybroker.model.stats import LedgerCounters
from pybroker.storage.cursor_store import CursorStore
from pybroker.storage.ledger_store import LedgerStore, LedgerSummary
from pybroker.tasks import TaskOwner

RESTORE_ON_LOOP_DELTAS = 1000
"""A cursor with fewer records is restored on the loop, others in a thread: no callback holds the loop for long."""


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """When the next ledger is begun."""

    max_entries_per_ledger: int = 50_000
    max_bytes_per_ledger: int = 2048 * 1024 * 1024
    min_rollover_ms: int = 10 * 60_000
    """A younger ledger is not closed for its number of entries."""
    max_rollover_ms: int = 240 * 60_000
    """An older ledger is closed, unless it is empty."""
    inactive_rollover_ms: int = 0
    """A ledger without an append for so long is closed, unless it is empty; 0: it is not."""


class ManagedLedgerFactory:
    """Owned by the broker service. Invariant: at most one ManagedLedger object of a name exists."""

    def __init__(
        self,
        store: LedgerStore,
        cursor_store: CursorStore,
        metadata: MetadataStore,
        cache: EntryCache,
        limits: LedgerLimits,
        clock: Clock,
        cursor_flush_interval_ms: int,
        publish_time_of: Callable[[bytes], int],
    ) -> None:
        """`publish_time_of` reads when an entry was published, in milliseconds, out of it; it never raises."""
        self.store = store
        self.cursor_store = cursor_store
        self.metadata = metadata
        self.cache = cache
        self.limits = limits
        self.clock = clock
        self.publish_time_of = publish_time_of
        self.tasks = TaskOwner("managed ledgers")
        self.counters = LedgerCounters()
        """What all managed ledgers together have read since the start."""
        self._open: dict[str, ManagedLedger] = {}
        self._dirty: list[ManagedCursor] = []
        self._flush_interval_s = cursor_flush_interval_ms / 1000

    # --- open, save, delete ------------------------------------------------------------------------------------------

    async def exists(self, path: str) -> bool:
        """Whether there is a managed ledger at metadata path `path`. One whose deletion a crash has cut off is none any more."""
        if path in self._open:
            return True
        found = await self.metadata.get(path)
        return found is not None and not decode_info(path, found.value).deleted

    async def open(self, path: str) -> ManagedLedger:
        """Open, or make, the managed ledger at `path`, recovering what an earlier run left open. Raises StoreError.

        Nothing of it is trimmed by retention before its `retention` is set.
        """
        assert path not in self._open, f"{path} is open already"
        found = await self.metadata.get(path)
        info = None if found is None else decode_info(path, found.value)
        if info is not None and info.deleted:
            await self._delete_stored(path, info)
            found = info = None
        if found is None or info is None:
            managed = await self._make(path, LedgerList())
            managed.created_ms = self.clock.wall_ms()
            managed.metadata_version = NOT_EXISTING
        else:
            managed = await self._restore(path, info)
            managed.metadata_version = found.version
        await self.save(managed)
        for name, cursor in managed.cursor_infos.items():
            managed.cursors[name] = await self._restore_cursor(managed, name, cursor)
        self._open[path] = managed
        if managed.trimmed_ledger_ids:
            managed.trim_soon()
        return managed

    async def create(self, path: str, properties: Mapping[str, str]) -> bool:
        """Make an empty managed ledger at `path` without opening it, durably; False when there is one. Raises StoreError.

        Its first ledger is made when it is opened. Nobody may be opening it now; who begins to once this has been called
        finds it made.
        """
        ledgers = msgspec.Raw(LedgerList().encode())
        made = ManagedLedgerInfo(
            FORMAT_VERSION, ledgers, {}, 0, created=self.clock.wall_ms(), properties=dict(properties)
        )
        try:
            await self.metadata.put(path, msgspec.json.encode(made), NOT_EXISTING)
        except BadVersionError:
            if await self.exists(path):
                return False
        else:
            return True
        # One is there whose deletion a crash has cut off: opening it deletes and makes it.
        managed = await self.open(path)
        await self.change_properties(managed, properties)
        await managed.close()
        return True

    async def change_properties(self, managed: ManagedLedger, changes: Mapping[str, str | None]) -> None:
        """Set properties, and remove those that are None; durable when it returns. Raises StoreError, and then nothing changed."""
        before = {key: managed.properties.get(key) for key in changes}
        _apply(managed.properties, changes)
        try:
            await self.save(managed)
        except StoreError:
            # What others have changed meanwhile stays.
            undone = {key: before[key] for key, value in changes.items() if managed.properties.get(key) == value}
            _apply(managed.properties, undone)
            raise

    async def _make(self, path: str, ledgers: LedgerList) -> ManagedLedger:
        ledger_id = await self.store.create_ledger()
        ledgers.add_ledger(ledger_id)
        return ManagedLedger(path, self, ledgers, ledger_id)

    async def _restore(self, path: str, info: ManagedLedgerInfo) -> ManagedLedger:
        now_ms = self.clock.wall_ms()
        ledgers = LedgerList.decode(bytes(info.ledgers), now_ms)
        for ledger_id in ledgers.open_ledger_ids():
            # An earlier run did not close it: what it holds now is what it will always hold.
            ledgers.close_ledger(await self._recover(path, ledger_id), now_ms)
        if info.terminated:
            managed = ManagedLedger(path, self, ledgers, ledgers.last_position.ledger_id)
            managed.is_terminated = True
        else:
            managed = await self._make(path, ledgers)
        if info.gone_until is not None:
            managed.gone = GoneLedgers(info.gone_until, info.gone)
        managed.created_ms = info.created
        managed.properties = info.properties
        managed.last_index = info.last_index
        managed.compacted = info.compacted
        managed.cursor_serial = info.serial
        managed.cursor_infos = info.cursors
        managed.trimmed_ledger_ids = info.trimmed + managed.remove_empty_ledgers()
        return managed

    async def _recover(self, path: str, ledger_id: int) -> LedgerSummary:
        """What an open ledger holds. One that is not there holds nothing: with `journalSyncData=false` a power cut may leave
        its name, which is durable, and nothing of the ledger. It is told as what it may be otherwise: damage."""
        try:
            return await self.store.recover(ledger_id)
        except NoSuchLedger as error:
            logs.error(
                "ledger.missing",
                managed_ledger=path,
                ledger_id=ledger_id,
                error=str(error),
                action="taken for empty: what was published last is lost",
            )
            return LedgerSummary(ledger_id, 0, 0, 0)

    async def save(self, managed: ManagedLedger) -> None:
        """Write what the metadata store keeps of `managed`; durable when it returns. Raises StoreError."""
        async with managed.saving:
            version = managed.metadata_version
            if version is None:
                found = await self.metadata.get(managed.name)
                version = NOT_EXISTING if found is None else found.version
            value = msgspec.json.encode(_info_of(managed))
            # Who waits for the answer may be cancelled: then the next one has to look which version it is.
            managed.metadata_version = None
            try:
                managed.metadata_version = await self.metadata.put(managed.name, value, version)
            except BadVersionError:
                managed.metadata_version = version  # Somebody else owns it now: every later attempt must fail too.
                raise

    def forget(self, managed: ManagedLedger) -> None:
        """`managed` is closed: it may be opened again."""
        self._open.pop(managed.name, None)

    async def delete(self, managed: ManagedLedger) -> None:
        """Drop the managed ledger with its entries and cursors. Raises StoreError.

        That it is to be deleted is durable before anything goes: a crash or an error in between is made up for by the next
        `open` or `delete`.
        """
        managed.is_deleted = True
        await managed.close()
        await self._delete_stored(managed.name, _info_of(managed))

    async def finish_deletion(self, path: str) -> bool:
        """Delete what a crash has left of a deleted managed ledger at `path`, which nobody opens meanwhile; False if nothing."""
        found = await self.metadata.get(path)
        info = None if found is None or path in self._open else decode_info(path, found.value)
        if info is None or not info.deleted:
            return False
        await self._delete_stored(path, info)
        return True

    async def _delete_stored(self, path: str, info: ManagedLedgerInfo) -> None:
        for cursor in info.cursors.values():
            for record_id in cursor.record_ids:
                await self.cursor_store.delete(record_id)
        for ledger_id in named_ledger_ids(info):
            self.cache.drop_ledger(ledger_id)
            await self.store.delete_ledger(ledger_id)
        await self.metadata.delete(path)

    # --- cursors -----------------------------------------------------------------------------------------------------

    async def _restore_cursor(self, managed: ManagedLedger, name: str, info: CursorInfo) -> ManagedCursor:
        snapshot, deltas = await self.cursor_store.load(info.id)
        stored_delayed: list[bytes] = []
        if info.delayed:
            first, more = await self.cursor_store.load(delayed_record_id(info.id))
            stored_delayed = more if first is None else [first, *more]
        position = Position(*info.position)
        if len(deltas) < RESTORE_ON_LOOP_DELTAS:
            state = CursorState.restore(managed.ledgers, position, snapshot, deltas)
        else:
            # After an unclean stop there may be 250,000, which take two seconds; nobody else knows `managed` yet.
            state = await asyncio.to_thread(CursorState.restore, managed.ledgers, position, snapshot, deltas)
        cursor = ManagedCursor(managed, name, info.id, state, self.cursor_store, info.properties)
        cursor.stored_delayed = stored_delayed
        return cursor

    async def create_cursor(
        self, managed: ManagedLedger, name: str, mark_delete: Position, properties: Mapping[str, str]
    ) -> ManagedCursor:
        """Make a durable cursor whose next entry is the one behind `mark_delete`; durable when it returns.

        There may be none of that name but a durable one that is being deleted.
        """
        present = managed.cursors.get(name)
        assert name not in managed.cursor_infos, f"{managed.name} has a cursor {name}"
        assert present is None or present.is_durable, f"{managed.name} has a reader's cursor {name}"
        managed.cursor_serial += 1
        cursor_id = f"{managed.name}/{quote(name, safe='')}#{managed.current_ledger_id}.{managed.cursor_serial}"
        state = CursorState(managed.ledgers, mark_delete)
        cursor = ManagedCursor(managed, name, cursor_id, state, self.cursor_store, properties)
        # Before it is stored: from now on nothing that it shall read is trimmed.
        managed.cursors[name] = cursor
        managed.cursor_infos[name] = CursorInfo(
            cursor_id, (mark_delete.ledger_id, mark_delete.entry_id), dict(properties)
        )
        try:
            await self.save(managed)
        except StoreError:
            managed.cursor_infos.pop(name, None)
            _forget(managed, cursor)
            await cursor.close()
            raise
        return cursor

    def create_non_durable_cursor(self, managed: ManagedLedger, name: str, mark_delete: Position) -> ManagedCursor:
        """Make a cursor of which nothing is written, of a name that there is none of."""
        assert name not in managed.cursors, f"{managed.name} has a cursor {name}"
        state = CursorState(managed.ledgers, mark_delete)
        cursor = ManagedCursor(managed, name, "", state, None, {})
        managed.cursors[name] = cursor
        return cursor

    def drop_non_durable_cursor(self, managed: ManagedLedger, cursor: ManagedCursor) -> None:
        """Forget a cursor of which nothing is written."""
        assert not cursor.is_durable
        _forget(managed, cursor)

    async def delete_cursor(self, managed: ManagedLedger, cursor: ManagedCursor) -> None:
        """Forget a durable cursor for ever. Raises StoreError, and then it is still there if the managed ledger lists it."""
        info = managed.cursor_infos.pop(cursor.name)
        try:
            await self.save(managed)
        except StoreError:
            managed.cursor_infos.setdefault(cursor.name, info)
            raise
        _forget(managed, cursor)
        managed.trim_soon()
        await cursor.close()
        for record_id in info.record_ids:
            await self.cursor_store.delete(record_id)

    async def set_cursor_properties(self, cursor: ManagedCursor, properties: Mapping[str, str]) -> None:
        """Replace the properties of a durable cursor; durable when it returns. Raises StoreError, and then nothing changed."""
        info = cursor.ledger.cursor_infos.get(cursor.name)
        if info is None or info.id != cursor.cursor_id:
            raise StoreError(f"cursor {cursor.name} of {cursor.ledger.name} is deleted")
        before, info.properties = info.properties, dict(properties)
        try:
            await self.save(cursor.ledger)
        except StoreError:
            info.properties = before
            raise

    async def announce_delayed(self, cursor: ManagedCursor) -> str:
        """The id under which the cursor store may be given what is known of delayed entries of a durable cursor, from now on.

        Raises StoreError.
        """
        info = cursor.ledger.cursor_infos.get(cursor.name)
        if info is None or info.id != cursor.cursor_id:
            raise StoreError(f"cursor {cursor.name} of {cursor.ledger.name} is deleted")
        if not info.delayed:
            info.delayed = True
            try:
                await self.save(cursor.ledger)
            except StoreError:
                info.delayed = False
                raise
        return delayed_record_id(info.id)

    def cursor_dirty(self, cursor: ManagedCursor) -> None:
        """Write `cursor` within the flush interval."""
        if not self._dirty:
            asyncio.get_running_loop().call_later(self._flush_interval_s, self._flush_dirty)
        self._dirty.append(cursor)

    def _flush_dirty(self) -> None:
        dirty, self._dirty = self._dirty, []
        for cursor in dirty:
            cursor.flush()

    async def close(self) -> None:
        """Close what is still open."""
        self._flush_dirty()
        for managed in list(self._open.values()):
            try:
                await managed.close()
            except StoreError as error:
                logs.error("managed_ledger.close_failed", managed_ledger=managed.name, error=str(error))
        await self.tasks.close()


def _info_of(managed: ManagedLedger) -> ManagedLedgerInfo:
    gone = managed.gone.with_rows(managed.ledgers.entry_counts_of(managed.leaving_ledger_ids))
    return ManagedLedgerInfo(
        FORMAT_VERSION,
        msgspec.Raw(managed.ledgers.encode(managed.leaving_ledger_ids)),
        managed.cursor_infos,
        managed.cursor_serial,
        managed.is_terminated,
        managed.trimmed_ledger_ids + managed.leaving_ledger_ids + managed.unfinished_ledger_ids,
        managed.is_deleted,
        managed.created_ms,
        managed.properties,
        managed.last_index,
        managed.compacted,
        list(gone.rows),
        gone.until,
    )


def _forget(managed: ManagedLedger, cursor: ManagedCursor) -> None:
    """By identity: one of the same name may have been made meanwhile."""
    if managed.cursors.get(cursor.name) is cursor:
        del managed.cursors[cursor.name]


def _apply(properties: dict[str, str], changes: Mapping[str, str | None]) -> None:
    for key, value in changes.items():
        if value is None:
            properties.pop(key, None)
        else:
            properties[key] = value
