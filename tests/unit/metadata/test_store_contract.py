"""What every metadata store must do: the same tests run against each back end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.errors import BadVersionError, StoreError
from pybroker.metadata.measured import MeasuredMetadataStore
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import NOT_EXISTING, MetadataStore, Versioned
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


async def test_a_missing_path_has_no_value_and_no_children(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    assert await store.children("/a") == []
    assert await store.children("/") == []


async def test_versions_start_at_zero_and_rise_by_one(store: MetadataStore) -> None:
    assert await store.put("/a", b"one") == 0
    assert await store.put("/a", b"two") == 1
    assert await store.get("/a") == Versioned(b"two", 1)


async def test_a_put_with_the_wrong_version_changes_nothing(store: MetadataStore) -> None:
    await store.put("/a", b"one")
    for wrong in (NOT_EXISTING, 1, 7):
        with pytest.raises(BadVersionError):
            await store.put("/a", b"two", wrong)
    assert await store.get("/a") == Versioned(b"one", 0)
    assert await store.put("/a", b"two", 0) == 1


async def test_a_version_is_never_found_where_there_is_no_value(store: MetadataStore) -> None:
    with pytest.raises(BadVersionError):
        await store.put("/a", b"one", 0)
    with pytest.raises(BadVersionError):
        await store.delete("/a", 0)
    assert await store.put("/a", b"one", NOT_EXISTING) == 0


async def test_delete_drops_the_value_but_not_its_children(store: MetadataStore) -> None:
    await store.put("/a", b"parent")
    await store.put("/a/b", b"child")
    with pytest.raises(BadVersionError):
        await store.delete("/a", 3)
    assert await store.delete("/a", 0) is True
    assert await store.delete("/a") is False
    assert await store.get("/a") is None
    assert await store.children("/a") == ["b"]


async def test_a_value_put_again_after_a_delete_starts_at_version_zero(store: MetadataStore) -> None:
    await store.put("/a", b"one")
    await store.put("/a", b"two")
    await store.delete("/a")
    assert await store.put("/a", b"three") == 0


async def test_children_are_sorted_names_of_values_and_of_inner_nodes(store: MetadataStore) -> None:
    for path in ("/p/b", "/p/a-b", "/p/a", "/p/a/x/y", "/p/a/x/z", "/p/ä/1", "/p0", "/pq", "/p"):
        await store.put(path, b"")
    assert await store.children("/p") == ["a", "a-b", "b", "ä"]
    assert await store.children("/p/a") == ["x"]
    assert await store.children("/") == ["p", "p0", "pq"]


async def test_delete_tree_drops_a_path_and_all_below_it_but_no_sibling(store: MetadataStore) -> None:
    for path in ("/t", "/t/a", "/t/a/b", "/t-x", "/t0"):
        await store.put(path, b"")
    assert await store.delete_tree("/t") == 3
    assert await store.children("/") == ["t-x", "t0"]
    assert await store.delete_tree("/t") == 0


async def test_a_watch_hears_of_every_change_at_or_below_its_prefix(store: MetadataStore) -> None:
    heard: list[str] = []
    store.watch("/w", heard.append)
    await store.put("/w", b"")
    await store.put("/w/a", b"")
    await store.put("/wx", b"")
    await store.delete("/w/a")
    await store.delete("/w/a")
    await store.put("/w/b", b"")
    assert heard == ["/w", "/w/a", "/w/a", "/w/b"]
    heard.clear()
    await store.delete_tree("/w")
    assert sorted(heard) == ["/w", "/w/b"]


async def test_a_failing_watch_stops_neither_the_store_nor_the_others(store: MetadataStore) -> None:
    def fail(path: str) -> None:
        raise RuntimeError(path)

    heard: list[str] = []
    store.watch("/w", fail)
    store.watch("/w", heard.append)
    assert await store.put("/w/a", b"") == 0
    assert heard == ["/w/a"]


async def test_of_two_creators_at_once_one_wins(store: MetadataStore) -> None:
    outcomes = await asyncio.gather(
        *(store.put("/a", str(index).encode(), NOT_EXISTING) for index in range(5)), return_exceptions=True
    )
    assert outcomes[0] == 0
    assert all(isinstance(outcome, BadVersionError) for outcome in outcomes[1:])
    assert await store.get("/a") == Versioned(b"0", 0)


async def test_calls_of_one_turn_take_effect_in_order(store: MetadataStore) -> None:
    outcomes = await asyncio.gather(
        store.put("/a", b"one"), store.get("/a"), store.delete("/a"), store.get("/a"), store.put("/a", b"two")
    )
    assert tuple(outcomes) == (0, Versioned(b"one", 0), True, None, 0)


async def test_a_closed_store_refuses_and_may_be_closed_again(store: MetadataStore) -> None:
    await store.close()
    await store.close()
    with pytest.raises(StoreError):
        await store.get("/a")


async def test_values_below_a_path_come_in_order_and_in_parts(store: MetadataStore) -> None:
    names = ["/p/a", "/p/a/x", "/p/a-b", "/p/b", "/p/ä", "/p/z\U0001f600", "/p/z\uffff"]
    for path in (*names, "/p", "/p0", "/pq/a", "/o"):
        await store.put(path, path.encode())
    wanted = [(path, Versioned(path.encode(), 0)) for path in sorted(names, key=str.encode)]
    assert await store.values_below("/p", "", 100) == wanted
    found: list[tuple[str, Versioned]] = []
    while part := await store.values_below("/p", found[-1][0] if found else "", 3):
        assert len(part) <= 3
        found += part
    assert found == wanted
    assert await store.values_below("/nothing", "", 10) == []
