"""The contract of metadata stores: tests that each implementation passes.

A test module imports them and defines the fixture `store`.
"""

from __future__ import annotations

import asyncio

import pytest

from pybroker.errors import BadVersionError, StoreError
from pybroker.metadata.metadata_store import NOT_EXISTING, Change, Check, Delete, MetadataStore, Put, Versioned
from pybroker.metadata.session_report import SessionState


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
        await store.put(path, b"x")
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
    assert heard[-1] == "/w/a"


async def test_of_two_creators_at_once_one_wins(store: MetadataStore) -> None:
    outcomes = await asyncio.gather(
        *(store.put("/a", str(index).encode(), NOT_EXISTING) for index in range(5)), return_exceptions=True
    )
    assert outcomes[0] == 0
    assert all(isinstance(outcome, BadVersionError) for outcome in outcomes[1:])
    assert await store.get("/a") == Versioned(b"0", 0)


async def test_a_closed_store_refuses_and_may_be_closed_again(store: MetadataStore) -> None:
    await store.close()
    await store.close()
    with pytest.raises(StoreError):
        await store.get("/a")


async def test_values_below_a_path_come_in_order_and_in_parts(store: MetadataStore) -> None:
    names = ["/p/a", "/p/a/x", "/p/a-b", "/p/b", "/p/ä", "/p/z\u4e00", "/p/z\uf900"]
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


async def test_values_at_a_depth_come_with_their_segments(store: MetadataStore) -> None:
    for path in ("/d/a", "/d/a/x", "/d/a/y/z", "/d/b/x", "/d"):
        await store.put(path, path.encode())
    found = [(segments, value.value) async for segments, value in store.values_at("/d", 2)]
    assert found == [(["a", "x"], b"/d/a/x"), (["b", "x"], b"/d/b/x")]
    assert [segments async for segments, _ in store.values_at("/d", 1)] == [["a"]]
    assert [segments async for segments, _ in store.values_at("/none", 1)] == []


async def test_values_of_paths_come_in_the_order_of_the_paths(store: MetadataStore) -> None:
    await store.put("/v/a", b"1")
    await store.put("/v/b", b"2")
    await store.put("/v/b", b"3")
    paths = ["/v/b", "/v/none", "/v/a", "/v"]
    assert await store.values_of(paths) == [Versioned(b"3", 1), None, Versioned(b"1", 0), None]
    assert await store.values_of([]) == []


async def test_changes_together_all_happen(store: MetadataStore) -> None:
    await store.put("/m/a", b"1")
    await store.put("/m/b", b"1")
    await store.put("/m/c", b"1")
    heard: list[str] = []
    store.watch("/m", heard.append)
    versions = await store.change_together(
        [
            Put("/m/a", b"2", 0),
            Put("/m/new/x", b"1", NOT_EXISTING),
            Delete("/m/b", 0),
            Check("/m/c", 0),
            Put("/m/d", b"9"),
        ]
    )
    assert versions == [1, 0, None, None, 0]
    assert await store.values_of(["/m/a", "/m/new/x", "/m/b", "/m/c", "/m/d"]) == [
        Versioned(b"2", 1),
        Versioned(b"1", 0),
        None,
        Versioned(b"1", 0),
        Versioned(b"9", 0),
    ]
    assert {"/m/a", "/m/new/x", "/m/b", "/m/d"} <= set(heard)
    assert "/m/c" not in heard
    assert await store.change_together([]) == []


@pytest.mark.parametrize(
    "wrong",
    [Put("/m/b", b"2", 4), Put("/m/b", b"2", NOT_EXISTING), Delete("/m/x"), Delete("/m/b", 3), Check("/m/b", 1)],
)
async def test_changes_together_with_a_wrong_version_change_nothing(store: MetadataStore, wrong: Change) -> None:
    await store.put("/m/a", b"1")
    await store.put("/m/b", b"1")
    with pytest.raises(BadVersionError):
        await store.change_together([Put("/m/a", b"2"), Put("/m/c", b"2"), wrong])
    assert await store.values_of(["/m/a", "/m/b", "/m/c"]) == [Versioned(b"1", 0), Versioned(b"1", 0), None]


async def test_path_deleted_together_with_its_children_is_no_child_any_more(store: MetadataStore) -> None:
    for path in ("/m/a", "/m/a/b", "/m/a/c", "/m/d", "/m/d/e"):
        await store.put(path, b"1")
    await store.change_together([Delete("/m/a/c", 0), Delete("/m/a/b", 0), Delete("/m/a", 0), Delete("/m/d", 0)])
    assert await store.get("/m/d") is None
    assert await store.children("/m/d") == ["e"]
    assert await store.children("/m") == ["d"]


async def test_session_value_is_put_once_and_changed_like_others(store: MetadataStore) -> None:
    await store.put("/s/other", b"x")
    assert await store.put_for_session("/s/own", b"1") == 0
    with pytest.raises(BadVersionError):
        await store.put_for_session("/s/own", b"1")
    with pytest.raises(BadVersionError):
        await store.put_for_session("/s/other", b"1")
    assert await store.put("/s/own", b"2", 0) == 1
    assert await store.get("/s/own") == Versioned(b"2", 1)
    assert await store.children("/s") == ["other", "own"]
    assert await store.values_below("/s", "", 10) == [("/s/other", Versioned(b"x", 0)), ("/s/own", Versioned(b"2", 1))]
    assert await store.values_below("/s", "/s/other", 10) == [("/s/own", Versioned(b"2", 1))]
    assert await store.delete("/s/own", 1)
    assert await store.children("/s") == ["other"]
    assert await store.put_for_session("/s/own", b"3") == 0
    assert await store.delete_tree("/s") == 2
    assert await store.get("/s/own") is None


@pytest.mark.parametrize("for_session", [False, True])
async def test_sequential_values_get_rising_numbers(store: MetadataStore, for_session: bool) -> None:
    paths = [await store.create_sequential("/q/x/-", b"1", for_session=for_session) for _ in range(3)]
    assert [path[: len("/q/x/-")] for path in paths] == ["/q/x/-"] * 3
    numbers = [path.removeprefix("/q/x/-") for path in paths]
    assert [len(number) for number in numbers] == [10] * 3
    assert sorted(set(numbers)) == numbers
    assert await store.get(paths[1]) == Versioned(b"1", 0)
    for path in paths:
        await store.delete(path)
    again = await store.create_sequential("/q/x/-", b"", for_session=for_session)
    assert int(again.removeprefix("/q/x/-")) > int(numbers[-1])


async def test_a_usable_store_holds_its_session(store: MetadataStore) -> None:
    assert store.holds_session()
    assert store.session_state is SessionState.CONNECTED
    await store.sync()


async def test_a_large_value_comes_back_whole(store: MetadataStore) -> None:
    value = bytes(range(256)) * 3000
    await store.put("/large", value)
    assert await store.get("/large") == Versioned(value, 0)
