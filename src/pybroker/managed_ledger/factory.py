"""Opens managed ledgers by name and owns what they share: the stores, the cache, the flush timer of cursors.

What the metadata store keeps of a managed ledger is one value, versioned: its ledgers and its durable cursors' names. It is
written before anything that it names is used, so that after a crash nothing receipted hangs in the air:

    {"version": 1, "ledgers": [...], "cursors": {"sub": {"id": "...", "position": "l:e", "properties": {}}}, "serial": 3}
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from pybroker import logs
from pybroker.clock import Clock
from pybroker.errors import StoreError
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.entry_cache import EntryCache
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.metadata.store import NOT_EXISTING, MetadataStore
from pybroker.model.position import Position
from pybroker.storage.cursor_store import CursorStore
from pybroker.storage.ledger_store import LedgerStore
from pybroker.tasks import TaskOwner

FORMAT_VERSION = 1


class CursorInfo(msgspec.Struct):
    """A durable cursor as the metadata store names it; `position` is its mark-delete position when it was made."""

    id: str
    position: tuple[int, int]
    properties: dict[str, str] = {}


class ManagedLedgerInfo(msgspec.Struct):
    """The value in the metadata store."""

    version: int
    ledgers: msgspec.Raw
    cursors: dict[str, CursorInfo]
    serial: int


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """When the next ledger is begun."""

    max_entries_per_ledger: int = 50_000
    max_bytes_per_ledger: int = 2048 * 1024 * 1024
    min_rollover_ms: int = 10 * 60_000


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
    ) -> None:
        self.store = store
        self.cursor_store = cursor_store
        self.metadata = metadata
        self.cache = cache
        self.limits = limits
        self.clock = clock
        self.tasks = TaskOwner("managed ledgers")
        self._open: dict[str, ManagedLedger] = {}
        self._infos: dict[str, dict[str, CursorInfo]] = {}
        self._saving: dict[str, asyncio.Lock] = {}
        self._dirty: list[ManagedCursor] = []
        self._flush_interval_s = cursor_flush_interval_ms / 1000

    # --- open, save, delete ------------------------------------------------------------------------------------------

    async def exists(self, path: str) -> bool:
        """Whether there is a managed ledger at metadata path `path`."""
        return path in self._open or await self.metadata.get(path) is not None

    async def open(self, path: str) -> ManagedLedger:
        """Open, or make, the managed ledger at `path`, recovering what an earlier run left open. Raises StoreError."""
        assert path not in self._open, f"{path} is open already"
        found = await self.metadata.get(path)
        cursors: dict[str, CursorInfo] = {}
        ledgers = LedgerList()
        serial = 0
        if found is not None:
            info = self._decode(path, found.value)
            cursors = info.cursors
            serial = info.serial
            ledgers = LedgerList.decode(bytes(info.ledgers))
            for ledger_id in ledgers.open_ledger_ids():
                # An earlier run did not close it: what it holds now is what it will always hold.
                ledgers.close_ledger(await self.store.recover(ledger_id))
        ledger_id = await self.store.create_ledger()
        ledgers.add_ledger(ledger_id)
        managed = ManagedLedger(path, self, ledgers, ledger_id)
        managed.metadata_version = found.version if found is not None else NOT_EXISTING
        managed.cursor_serial = serial
        self._infos[path] = cursors
        self._saving[path] = asyncio.Lock()
        await self.save(managed)
        for name, cursor in cursors.items():
            managed.cursors[name] = await self._restore_cursor(managed, name, cursor)
        self._open[path] = managed
        return managed

    def _decode(self, path: str, value: bytes) -> ManagedLedgerInfo:
        try:
            info = msgspec.json.decode(value, type=ManagedLedgerInfo)
        except msgspec.DecodeError as error:
            raise StoreError(f"metadata of {path} is damaged: {error}") from error
        if info.version > FORMAT_VERSION:
            raise StoreError(f"metadata of {path} has version {info.version}, this broker knows up to {FORMAT_VERSION}")
        return info

    async def save(self, managed: ManagedLedger) -> None:
        """Write the ledger list and the cursors' names; durable when it returns. Raises StoreError."""
        async with self._saving[managed.name]:
            ledgers = msgspec.Raw(managed.ledgers.encode())
            info = ManagedLedgerInfo(FORMAT_VERSION, ledgers, self._infos[managed.name], managed.cursor_serial)
            managed.metadata_version = await self.metadata.put(
                managed.name, msgspec.json.encode(info), managed.metadata_version
            )

    def forget(self, managed: ManagedLedger) -> None:
        """`managed` is closed: it may be opened again."""
        self._open.pop(managed.name, None)
        self._infos.pop(managed.name, None)
        self._saving.pop(managed.name, None)

    async def delete(self, managed: ManagedLedger) -> None:
        """Drop the managed ledger with its entries and cursors. The metadata goes first: what it does not name is garbage."""
        cursors = list(self._infos[managed.name].values())
        ledger_ids = managed.ledgers.ledger_ids()
        await managed.close()
        await self.metadata.delete(managed.name)
        for cursor in cursors:
            await self.cursor_store.delete(cursor.id)
        for ledger_id in ledger_ids:
            self.cache.drop_ledger(ledger_id)
            await self.store.delete_ledger(ledger_id)

    # --- cursors -----------------------------------------------------------------------------------------------------

    async def _restore_cursor(self, managed: ManagedLedger, name: str, info: CursorInfo) -> ManagedCursor:
        snapshot, deltas = await self.cursor_store.load(info.id)
        state = CursorState.restore(managed.ledgers, Position(*info.position), snapshot, deltas)
        return ManagedCursor(managed, name, info.id, state, self.cursor_store, info.properties)

    async def create_cursor(
        self, managed: ManagedLedger, name: str, mark_delete: Position, properties: Mapping[str, str]
    ) -> ManagedCursor:
        """Make a durable cursor whose next entry is the one behind `mark_delete`; durable when it returns."""
        managed.cursor_serial += 1
        cursor_id = f"{managed.name}/{quote(name, safe='')}#{managed.current_ledger_id}.{managed.cursor_serial}"
        self._infos[managed.name][name] = CursorInfo(
            cursor_id, (mark_delete.ledger_id, mark_delete.entry_id), dict(properties)
        )
        try:
            await self.save(managed)
        except StoreError:
            self._infos[managed.name].pop(name, None)
            raise
        state = CursorState(managed.ledgers, mark_delete)
        cursor = ManagedCursor(managed, name, cursor_id, state, self.cursor_store, properties)
        managed.cursors[name] = cursor
        return cursor

    def create_non_durable_cursor(self, managed: ManagedLedger, name: str, mark_delete: Position) -> ManagedCursor:
        """Make a cursor of which nothing is written."""
        state = CursorState(managed.ledgers, mark_delete)
        cursor = ManagedCursor(managed, name, "", state, None, {})
        managed.cursors[name] = cursor
        return cursor

    async def delete_cursor(self, managed: ManagedLedger, cursor: ManagedCursor) -> None:
        """Forget a cursor for ever."""
        managed.cursors.pop(cursor.name, None)
        if cursor.is_durable:
            self._infos[managed.name].pop(cursor.name, None)
            await self.save(managed)
            await cursor.close()
            await self.cursor_store.delete(cursor.cursor_id)

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
