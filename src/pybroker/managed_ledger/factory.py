"""Opens, creates and deletes managed ledgers and their cursors, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from pybroker.errors import BadVersionError, LedgerFenced, MetadataUnavailable, NoSuchLedger, StoreError
from pybroker.ledgers.cursor_store import CursorStore
from pybroker.ledgers.ledger_store import LedgerPurpose, LedgerSummary
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.info.info_records import InfoRecord, InfoRecords, LoadedInfo
from pybroker.managed_ledger.info.json_records import JsonRecords
from pybroker.managed_ledger.info.managed_ledger_info import (
    FORMAT_VERSION,
    CursorInfo,
    ManagedLedgerInfo,
    delayed_record_id,
)
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.orphaned_ledgers import named_ledger_ids
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.managed_ledger.stored_info import StoredInfo
from pybroker.managed_ledger.trimmed_ledgers import TrimmedLedgers
from pybroker.memory.broker_memory import Holding
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.model.position import Position
from pybroker.runtime import logs

RESTORE_ON_LOOP_DELTAS = 1000
"""A cursor with more records is restored in a thread, so that no callback blocks the event loop for long."""
LEAST_DOCUMENT_BYTES = 16 * 1024
"""Reserved before the size of the metadata is known."""
READ_DOCUMENT_FACTOR = 6
"""The memory for reading metadata, as a multiple of its size: bytes, decoded form, and kept objects."""


class ManagedLedgerFactory:
    """The managed ledgers of a broker. Invariant: at most one ManagedLedger object of a name exists."""

    def __init__(
        self,
        resources: LedgerResources,
        cursor_store: CursorStore,
        metadata: MetadataStore,
        records: InfoRecords | None = None,
    ) -> None:
        """`records`: where managed ledger infos are stored; None stores them as JSON values in `metadata`."""
        self.resources = resources
        self.store = resources.store
        self.cursor_store = cursor_store
        self.metadata = metadata
        self.records = JsonRecords(metadata) if records is None else records
        self.cache = resources.cache
        self.clock = resources.clock
        self.tasks = resources.tasks
        self.counters = resources.counters
        self._open: dict[str, ManagedLedger] = {}

    # --- open, create, delete ----------------------------------------------------------------------------------------

    async def exists(self, path: str) -> bool:
        """Return whether a managed ledger exists at `path`; False if its deletion has begun."""
        if path in self._open:
            return True
        return await self.records.exists(path)

    async def open(self, path: str) -> ManagedLedger:
        """Open the managed ledger at `path`, which must not be open already, or create it if it does not exist. Recover
        ledgers that an earlier run left open. Raises StoreError.

        The managed ledger is not trimmed until the caller sets its `retention`.
        """
        managed = await self._open_or_none(path, may_create=True)
        assert managed is not None, "it is created"
        return managed

    async def open_existing(self, path: str) -> ManagedLedger | None:
        """As `open`, but return None if the managed ledger does not exist."""
        return await self._open_or_none(path, may_create=False)

    async def _open_or_none(self, path: str, *, may_create: bool) -> ManagedLedger | None:
        assert path not in self._open, f"{path} is open already"
        room = Holding(self.resources.memory, self.resources.memory.documents)
        try:
            await room.wait(path.rpartition("/")[0], LEAST_DOCUMENT_BYTES)  # namespaces share memory by fair queuing
            found = await self.records.load(path)
            if not may_create and (found.info is None or found.info.deleted):
                return None
            return await self._open_in(room, path, found)
        finally:
            room.close()

    async def _open_in(self, room: Holding, path: str, found: LoadedInfo) -> ManagedLedger:
        document_bytes = READ_DOCUMENT_FACTOR * found.size_bytes
        room.count(document_bytes)
        if found.info is not None and found.info.deleted:
            await self._delete_stored(found.info, found.record)
            found = await self.records.load(path)
        if found.info is None:
            managed = await self._make(StoredInfo(found.record, LedgerList()))
        else:
            managed = await self._restore(found.info, found.record)
        document = managed.document
        try:
            await document.save()
        except (LedgerFenced, MetadataUnavailable):
            if not document.is_terminated:
                await self._discard_new(managed)
            raise
        if not document.is_terminated and not self.store.may_be_named(managed.current_ledger_id):
            raise StoreError(
                f"managed ledger {path} cannot be opened, because the metadata store took too long to store its list of ledgers: "
                "try again"
            )
        for name, cursor in document.cursors.items():
            managed.cursors[name] = await self._restore_cursor(managed, name, cursor, room, document_bytes)
        self._open[path] = managed
        if document.trimmed_ledger_ids:
            managed.trim_soon()
        return managed

    async def _discard_new(self, managed: ManagedLedger) -> None:
        """Delete the new empty ledger of a take-over that certainly failed, unless the stored list contains it."""
        try:
            info = (await self.records.load(managed.name)).info
        except StoreError as error:
            logs.warning(
                "ledger.delete_failed",
                managed_ledger=managed.name,
                ledger_id=managed.current_ledger_id,
                error=str(error),
            )
            return
        if info is None or managed.current_ledger_id not in named_ledger_ids(info):
            await self._delete_unused(managed.name, managed.current_ledger_id)

    async def create(self, path: str, properties: Mapping[str, str]) -> bool:
        """Create an empty managed ledger durably, without opening it. Return False if it exists already. No other task
        may be opening it. Raises StoreError.
        """
        ledgers = msgspec.Raw(LedgerList().encode())
        made = ManagedLedgerInfo(
            FORMAT_VERSION, ledgers, {}, 0, created=self.clock.wall_ms(), properties=dict(properties)
        )
        try:
            await self.records.create(path, made)
        except BadVersionError:
            if await self.exists(path):
                return False
        else:
            return True
        # The existing one has an interrupted deletion: `open` deletes it and creates a new one.
        managed = await self.open(path)
        await managed.document.change_properties(properties)
        await managed.close()
        return True

    async def _make(self, document: StoredInfo) -> ManagedLedger:
        ledger_id = await self.store.create_ledger(LedgerPurpose.ENTRIES, document.path)
        document.ledgers.add_ledger(ledger_id)
        return self._managed(document, None, ledger_id)

    def _managed(self, document: StoredInfo, info: ManagedLedgerInfo | None, ledger_id: int) -> ManagedLedger:
        # A position before the first known ledger belongs to an earlier topic of that name.
        document.gone = TrimmedLedgers(document.ledgers.ledger_ids()[0] - 1)
        if info is None:
            document.created_ms = self.clock.wall_ms()
        else:
            document.take(info)
        return ManagedLedger(self.resources, document, ledger_id, self._closed)

    async def _restore(self, info: ManagedLedgerInfo, record: InfoRecord) -> ManagedLedger:
        now_ms = self.clock.wall_ms()
        ledgers = LedgerList.decode(bytes(info.ledgers), now_ms)
        document = StoredInfo(record, ledgers)
        if info.terminated:
            await self._close_ledgers(record.path, ledgers, now_ms)
            managed = self._managed(document, info, ledgers.last_position.ledger_id)
        else:
            ledger_id = await self._next_ledger(record.path, ledgers, now_ms)
            ledgers.add_ledger(ledger_id)
            managed = self._managed(document, info, ledger_id)
        document.trimmed_ledger_ids += managed.remove_empty_ledgers()
        return managed

    async def _close_ledgers(self, path: str, ledgers: LedgerList, now_ms: int) -> None:
        for ledger_id in ledgers.open_ledger_ids():
            # An earlier run did not close it, so its present entries are final.
            ledgers.close_ledger(await self._recover(path, ledger_id), now_ms)

    async def _next_ledger(self, path: str, ledgers: LedgerList, now_ms: int) -> int:
        """Close the ledgers that an earlier run left open, and create the next one meanwhile, because clients wait for both.

        Return its id. If either fails, no new ledger is left. Raises StoreError.
        """

        async def close() -> StoreError | None:
            try:
                await self._close_ledgers(path, ledgers, now_ms)
            except StoreError as error:  # Not raised here: it would cancel the creation, whose ledger would be left.
                return error
            return None

        try:
            async with asyncio.TaskGroup() as group:
                closing = group.create_task(close())
                created = await self.store.create_ledger(LedgerPurpose.ENTRIES, path)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        if (failure := closing.result()) is not None:
            await self._delete_unused(path, created)
            raise failure
        return created

    async def _delete_unused(self, path: str, ledger_id: int) -> None:
        try:
            await self.store.delete_ledger(ledger_id)
        except StoreError as error:
            logs.warning("ledger.delete_failed", managed_ledger=path, ledger_id=ledger_id, error=str(error))

    async def _recover(self, path: str, ledger_id: int) -> LedgerSummary:
        """Seal a ledger that an earlier run did not close, and return its contents. A missing one counts as empty, as for
        Java brokers: with `journalSyncData=false`, a power failure may lose the ledger but keep its name, and on BookKeeper
        an operator may have deleted it. It is logged, because it could also be damage. The store makes sure that the ledger
        is missing.
        """
        try:
            return await self.store.recover(ledger_id)
        except NoSuchLedger as error:
            logs.error(
                "ledger.missing",
                managed_ledger=path,
                ledger_id=ledger_id,
                error=str(error),
                action="the broker treats the ledger as empty: the messages that were published last are lost",
            )
            return LedgerSummary(ledger_id, 0, 0, 0)

    def _closed(self, managed: ManagedLedger) -> None:
        self._open.pop(managed.name, None)

    async def delete(self, managed: ManagedLedger) -> None:
        """Delete the managed ledger with its entries and cursors. Raises StoreError.

        The deletion is recorded durably before anything is deleted: after a crash or an error, the next `open` or
        `delete` completes it.
        """
        document = managed.document
        document.is_deleted = True
        await managed.close()
        document.require_owned()
        await self._delete_stored(document.info(), document.record)

    async def finish_deletion(self, path: str) -> bool:
        """Complete an interrupted deletion of the managed ledger at `path`. Return False if no deletion was
        interrupted. No task may open the managed ledger meanwhile.
        """
        if path in self._open:
            return False
        info, record, _ = await self.records.load(path)
        if info is None or not info.deleted:
            return False
        await self._delete_stored(info, record)
        return True

    async def _delete_stored(self, info: ManagedLedgerInfo, record: InfoRecord) -> None:
        for cursor in info.cursors.values():
            for record_id in cursor.record_ids:
                await self.cursor_store.delete(record_id)
        for ledger_id in named_ledger_ids(info):
            self.resources.drop_ledger(ledger_id)
            await self.store.delete_ledger(ledger_id)
        await record.delete()

    # --- cursors -----------------------------------------------------------------------------------------------------

    async def _restore_cursor(
        self, managed: ManagedLedger, name: str, info: CursorInfo, room: Holding, document_bytes: int
    ) -> ManagedCursor:
        """Restore a cursor. Its memory is counted in `room`. Only one cursor of a topic is restored at a time."""
        snapshot, deltas = await self.cursor_store.load(info.id)
        room.count(document_bytes + READ_DOCUMENT_FACTOR * (len(snapshot or b"") + sum(map(len, deltas))))
        stored_delayed: list[bytes] = []
        if info.delayed:
            first, more = await self.cursor_store.load(delayed_record_id(info.id))
            stored_delayed = more if first is None else [first, *more]
        position = Position(*info.position)
        if len(deltas) < RESTORE_ON_LOOP_DELTAS:
            state = CursorState.restore(managed.ledgers, position, snapshot, deltas)
        else:
            # After an unclean stop there may be 250,000 entries, which takes two seconds. No other task uses `managed`
            # yet.
            state = await asyncio.to_thread(CursorState.restore, managed.ledgers, position, snapshot, deltas)
        cursor = ManagedCursor(managed, name, info.id, state, self.cursor_store, info.properties)
        cursor.stored_delayed = stored_delayed
        return cursor

    async def create_cursor(
        self, managed: ManagedLedger, name: str, mark_delete: Position, properties: Mapping[str, str]
    ) -> ManagedCursor:
        """Create a cursor with the mark-delete position `mark_delete`. Durable on return. No durable cursor of this
        name may exist, except one that is being deleted. Raises StoreError.
        """
        present = managed.cursors.get(name)
        assert name not in managed.document.cursors, f"{managed.name} has a cursor {name}"
        assert present is None or present.is_durable, f"{managed.name} has a reader's cursor {name}"
        managed.document.cursor_serial += 1
        cursor_id = (
            f"{managed.name}/{quote(name, safe='')}#{managed.current_ledger_id}.{managed.document.cursor_serial}"
        )
        state = CursorState(managed.ledgers, mark_delete)
        cursor = ManagedCursor(managed, name, cursor_id, state, self.cursor_store, properties)
        # Registered before it is stored, so that no entry that it needs is trimmed.
        managed.cursors[name] = cursor
        managed.document.cursors[name] = CursorInfo(
            cursor_id, (mark_delete.ledger_id, mark_delete.entry_id), dict(properties)
        )
        try:
            await managed.document.save()
        except StoreError:
            managed.document.cursors.pop(name, None)
            _forget(managed, cursor)
            await cursor.close()
            raise
        return cursor

    def create_non_durable_cursor(self, managed: ManagedLedger, name: str, mark_delete: Position) -> ManagedCursor:
        """Create a cursor in memory only. No cursor of this name may exist."""
        assert name not in managed.cursors, f"{managed.name} has a cursor {name}"
        state = CursorState(managed.ledgers, mark_delete)
        cursor = ManagedCursor(managed, name, "", state, None, {})
        managed.cursors[name] = cursor
        return cursor

    def drop_non_durable_cursor(self, managed: ManagedLedger, cursor: ManagedCursor) -> None:
        assert not cursor.is_durable
        _forget(managed, cursor)

    async def delete_cursor(self, managed: ManagedLedger, cursor: ManagedCursor) -> None:
        """Delete the cursor and its stored state. Raises StoreError.

        After an error, the cursor exists if `managed.document.cursors` contains it. Otherwise it is deleted, but parts
        of its stored state may remain.
        """
        info = managed.document.cursors.pop(cursor.name)
        try:
            await managed.document.save()
        except StoreError:
            managed.document.cursors.setdefault(cursor.name, info)
            raise
        _forget(managed, cursor)
        managed.trim_soon()
        await cursor.close()
        for record_id in info.record_ids:
            await self.cursor_store.delete(record_id)

    async def close(self) -> None:
        self.resources.flush()
        for managed in list(self._open.values()):
            try:
                await managed.close()
            except StoreError as error:
                logs.error("managed_ledger.close_failed", managed_ledger=managed.name, error=str(error))
        await self.tasks.close()


def _forget(managed: ManagedLedger, cursor: ManagedCursor) -> None:
    """Remove the cursor, unless another cursor of the same name was created since."""
    cursor.drop_ahead()
    if managed.cursors.get(cursor.name) is cursor:
        del managed.cursors[cursor.name]
