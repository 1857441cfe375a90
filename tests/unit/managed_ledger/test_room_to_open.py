"""Managed ledgers that are opened concurrently, with too little memory for all: they wait in turn and release it."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.errors import StoreError
from pybroker.ledgers.memory_store import MemoryCursorStore, MemoryLedgerStore
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import LEAST_DOCUMENT_BYTES, ManagedLedgerFactory
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.memory.broker_memory import Memory
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import Versioned
from pybroker.runtime.clock import Clock


class SlowMetadata(MemoryMetadataStore):
    """Answers when the test permits it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.asked: list[str] = []

    async def get(self, path: str) -> Versioned | None:
        self.asked.append(path)
        await self.may_answer.wait()
        return await super().get(path)


def factory_of(memory: Memory, metadata: MemoryMetadataStore) -> ManagedLedgerFactory:
    store = MemoryLedgerStore()
    resources = LedgerResources(store, EntryCache(1), LedgerLimits(), Clock(), 1, lambda _: 0, memory)
    return ManagedLedgerFactory(resources, MemoryCursorStore(), metadata)


async def test_only_so_many_are_opened_at_once_and_namespaces_take_turns() -> None:
    memory, metadata = Memory.ample(Clock()), SlowMetadata()
    memory.documents.limit_to(2 * LEAST_DOCUMENT_BYTES)
    factory = factory_of(memory, metadata)
    paths = ["/managed-ledgers/a/1", "/managed-ledgers/a/2", "/managed-ledgers/a/3", "/managed-ledgers/b/1"]
    opening = [asyncio.ensure_future(factory.open(path)) for path in paths]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert metadata.asked == paths[:2]
    assert memory.documents.waiting == 2
    metadata.may_answer.set()
    opened = await asyncio.gather(*opening)
    assert [ledger.name for ledger in opened] == paths
    assert memory.documents.used_bytes == memory.documents.takers == 0


async def test_what_cannot_be_opened_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, metadata = Memory.ample(Clock()), MemoryMetadataStore()
    factory = factory_of(memory, metadata)
    await (await factory.open("/managed-ledgers/a/1")).close()

    async def fails(*_: object) -> None:
        raise StoreError("no disk")

    monkeypatch.setattr(metadata, "get", fails)
    with pytest.raises(StoreError):
        await factory.open("/managed-ledgers/a/1")
    assert memory.documents.used_bytes == memory.documents.takers == 0
