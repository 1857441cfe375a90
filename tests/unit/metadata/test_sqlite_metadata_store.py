"""Guarantees of the SQLite store beyond the contract of all metadata stores."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from pybroker.errors import StoreError
from pybroker.metadata.metadata_store import Versioned
from pybroker.metadata.sqlite_metadata_store import MAX_BATCH_OPERATIONS, SqliteMetadataStore


async def test_values_survive_closing_and_opening(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    await store.put("/a/b", b"\x00value")
    await store.put("/a/b", b"\xffvalue")
    await store.close()
    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    assert await store.get("/a/b") == Versioned(b"\xffvalue", 1)
    await store.close()


async def test_commits_are_synced_to_disk(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    pragmas: list[object] = []

    def read() -> None:
        pragmas.extend(
            store._table.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
        )

    await asyncio.get_running_loop().run_in_executor(store._thread, read)
    assert pragmas == ["wal", 2]
    await store.close()


async def test_puts_of_one_turn_become_few_transactions(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    statements: list[str] = []
    await asyncio.get_running_loop().run_in_executor(
        store._thread, store._table.connection.set_trace_callback, statements.append
    )
    count = MAX_BATCH_OPERATIONS + 10
    await asyncio.gather(*(store.put(f"/topics/{index}", b"x") for index in range(count)))
    assert statements.count("COMMIT") == 2
    assert len(await store.children("/topics")) == count
    await store.close()


async def test_closing_finishes_what_was_asked_before(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    async with asyncio.TaskGroup() as group:
        puts = [group.create_task(store.put(f"/a/{index}", b"x")) for index in range(20)]
        await asyncio.sleep(0)
        group.create_task(store.close())
    assert [put.result() for put in puts] == [0] * 20


async def test_a_cancelled_caller_leaves_the_store_working(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    put = asyncio.get_running_loop().create_task(store.put("/a", b"x"))
    await asyncio.sleep(0)
    put.cancel()
    assert await store.put("/b", b"y") == 0
    assert put.cancelled()
    await store.close()


async def test_when_the_commit_fails_every_operation_of_the_batch_fails_and_none_took_effect(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = await SqliteMetadataStore.open(path)
    with sqlite3.connect(path) as other:
        other.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON metadata WHEN new.path = '/bad' BEGIN SELECT RAISE(FAIL, 'no'); END"
        )
    other.close()
    outcomes = await asyncio.gather(store.put("/good", b"x"), store.put("/bad", b"x"), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreError, StoreError]
    assert await store.get("/good") is None
    assert await store.put("/good", b"x") == 0
    await store.close()


async def test_a_newer_layout_is_refused_with_a_clear_text(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="layout 99"):
        await SqliteMetadataStore.open(path)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="cannot be opened"):
        await SqliteMetadataStore.open(path)
