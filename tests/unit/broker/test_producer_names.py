"""Names of producers that come without one: short, and never given twice."""

from __future__ import annotations

from pathlib import Path

from tests.support.memory_broker import START_MS, SetClock

from pybroker.broker.context.producer_names import ProducerNames
from pybroker.errors import StoreError
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore


async def test_each_start_has_names_of_its_own(tmp_path: Path) -> None:
    given = []
    for _ in range(3):
        store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
        names = ProducerNames("standalone", store, SetClock())
        await names.load()
        given += [names.new() for _ in range(2)]
        await store.close()
    assert given == [f"standalone-{start}-{producer}" for start in range(3) for producer in range(2)]


async def test_a_start_that_cannot_be_counted_has_names_of_its_own_as_well() -> None:
    class FullStore(MemoryMetadataStore):
        async def put(self, path: str, value: bytes, expected_version: int = -1) -> int:
            raise StoreError("no space")

    names = ProducerNames("standalone", FullStore(), SetClock())
    await names.load()
    assert names.new() == f"standalone-{START_MS}-0"
