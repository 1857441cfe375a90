"""The contract of metadata stores, for the embedded ones. `tests/zookeeper` runs it against ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.metadata_contract import *  # noqa: F403  (the tests of the contract)

from pybroker.metadata.measured import MeasuredMetadataStore
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import MetadataStore, Versioned
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.runtime.clock import Clock
from pybroker.runtime.slow_operations import SlowOperations


@pytest.fixture(params=["memory", "sqlite", "measured"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    opened: MetadataStore
    if request.param == "memory":
        opened = MemoryMetadataStore()
    elif request.param == "measured":
        opened = MeasuredMetadataStore(MemoryMetadataStore(), Clock(), SlowOperations(Clock(), 0))
    else:
        opened = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    yield opened
    await opened.close()


async def test_calls_of_one_turn_take_effect_in_order(store: MetadataStore) -> None:
    outcomes = await asyncio.gather(
        store.put("/a", b"one"), store.get("/a"), store.delete("/a"), store.get("/a"), store.put("/a", b"two")
    )
    assert tuple(outcomes) == (0, Versioned(b"one", 0), True, None, 0)


async def test_session_values_of_sqlite_end_with_the_process(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    await store.put_for_session("/s/own", b"1")
    first = await store.create_sequential("/s/-", b"", for_session=True)
    await store.put("/s/kept", b"1")
    await store.close()
    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    assert await store.children("/s") == ["kept"]
    assert await store.create_sequential("/s/-", b"", for_session=True) > first
    await store.close()
