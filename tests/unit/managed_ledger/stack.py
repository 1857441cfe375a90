"""Managed ledgers on a store in memory or on a local store with a fault disk, with a clock that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.support.fault_disk import FaultDisk

from pybroker.errors import StoreError
from pybroker.ledgers.cursor_store import CursorStore
from pybroker.ledgers.ledger_store import AppendRun, LedgerStore
from pybroker.ledgers.memory_store import MemoryCursorStore, MemoryLedgerStore
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.ledger_listener import ManagedLedgerListener
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.model.position import Position
from pybroker.runtime.clock import Clock

PATH = "/managed-ledgers/public/default/persistent/topic"
LOCAL = LocalStoreOptions(journal_file_bytes=64 << 10, checkpoint_retry_s=0.001)
SMALL = LedgerLimits(max_entries_per_ledger=10, min_rollover_ms=0)


class FakeClock(Clock):
    """A clock that the test controls."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def monotonic_ms(self) -> float:
        return float(self.now_ms)

    def wall_ms(self) -> int:
        return self.now_ms


def entry(publish_time_ms: int, filling: int = 0) -> bytes:
    """Return an entry that contains its publish time."""
    return b"%d;" % publish_time_ms + bytes(filling)


def publish_time_of(payload: bytes) -> int:
    return int(payload.partition(b";")[0])


class Topic(ManagedLedgerListener):
    """Records the results of the appends to one managed ledger."""

    def __init__(self, managed: ManagedLedger) -> None:
        self.managed = managed
        self.positions: list[Position] = []
        self.failed: list[StoreError] = []
        self.fenced_by: list[StoreError] = []
        self._changed = asyncio.Event()
        managed.listen(self)

    def entries_added(self, runs: list[AppendRun]) -> None:
        for run in runs:
            ids = range(run.first_entry_id, run.first_entry_id + len(run.payloads))
            self.positions += [Position(run.ledger_id, entry_id) for entry_id in ids]
        self._changed.set()

    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        return context, context

    def fenced(self, error: StoreError) -> None:
        self.fenced_by.append(error)

    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        self.failed += [error for _ in runs]
        self._changed.set()

    def append(self, *payloads: bytes, message_count: int = 1, context: object = None) -> None:
        self.managed.append(list(payloads), [message_count] * len(payloads), sum(map(len, payloads)), context)

    async def settle(self) -> None:
        """Wait until every append is answered."""
        while self.managed.pending_entries:
            self._changed.clear()
            await self._changed.wait()

    async def publish(self, *payloads: bytes, message_count: int = 1) -> list[Position]:
        """Append one entry at a time, and wait for its completion and for background work."""
        before = len(self.positions)
        for payload in payloads:
            self.append(payload, message_count=message_count)
            await self.settle()
            await settled(self.managed)
        return self.positions[before:]


async def settled(managed: ManagedLedger) -> None:
    """Wait for background work."""
    while tasks := managed._resources.tasks._tasks:
        await asyncio.wait(tasks)


async def read_all(cursor: ManagedCursor) -> list[Position]:
    """Read the positions from the read position to the end."""
    found: list[Position] = []
    while (position := cursor.next_entry()) is not None:
        run = cursor.read_cached(position, 100, 1 << 20) or await cursor.read(100, 1 << 20)
        if run is not None:
            found += [Position(run.ledger_id, run.first_entry_id + index) for index in range(len(run.payloads))]
    return found


class Stack:
    """A factory with everything below it; `crash` is an unclean stop."""

    def __init__(self, limits: LedgerLimits = SMALL) -> None:
        self.limits = limits
        self.clock = FakeClock()
        self.metadata = MemoryMetadataStore()
        self.store: LedgerStore
        self.cursor_store: CursorStore
        self.factory: ManagedLedgerFactory
        self.topic: Topic

    async def start(self) -> None:
        raise NotImplementedError

    async def crash(self) -> None:
        raise NotImplementedError

    async def open(self) -> ManagedLedger:
        """Open the one managed ledger of the test; `topic` listens to it."""
        managed = await self.factory.open(PATH)
        self.topic = Topic(managed)
        await settled(managed)
        return managed

    async def reopen(self) -> ManagedLedger:
        """Reopen after an unclean stop."""
        await self.crash()
        return await self.open()

    def _make_factory(self) -> None:
        resources = LedgerResources(self.store, EntryCache(1 << 20), self.limits, self.clock, 10_000, publish_time_of)
        self.factory = ManagedLedgerFactory(resources, self.cursor_store, self.metadata)

    async def stop(self) -> None:
        await self.factory.close()
        await self.store.close()


class MemoryStack(Stack):
    async def start(self) -> None:
        self.store = MemoryLedgerStore(publish_time_of)
        self.cursor_store = MemoryCursorStore()
        self._make_factory()

    async def crash(self) -> None:
        await self.factory.tasks.close()
        self._make_factory()


class LocalStack(Stack):
    disk: FaultDisk

    async def start(self) -> None:
        self.disk = FaultDisk()
        await self._open_store()

    async def _open_store(self) -> None:
        fatal: list[BaseException] = []
        around = StoreEnvironment(self.disk)
        store = await LocalStore.open(Path("/data"), LOCAL, fatal.append, around, publish_time_of)
        self.store = self.cursor_store = store
        self._make_factory()

    async def crash(self) -> None:
        survivor = self.disk.after_kill()
        await self.factory.tasks.close()
        await self.store.close()
        self.disk = survivor
        await self._open_store()

    async def checkpoint(self) -> None:
        """Move buffered entries into segment files."""
        assert isinstance(self.store, LocalStore)
        assert await self.store._checkpointer.run()


STACKS: list[Callable[[], Stack]] = [MemoryStack, LocalStack]
