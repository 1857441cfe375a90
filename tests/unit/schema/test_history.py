"""Versions of a topic's schema, and the cache of them."""

from __future__ import annotations

from pybroker.schema.history import History, HistoryCache, StoredSchema, version_from_bytes, version_to_bytes
from pybroker.schema.schema_data import SchemaData, SchemaType


def stored(version: int, text: str = "") -> StoredSchema:
    return StoredSchema(version, SchemaData(SchemaType.STRING, text.encode()), 1000 + version, text.encode())


def history(*texts: str) -> History:
    found = History()
    for text in texts:
        found = found.added(stored(found.next_version, text))
    return found


def test_a_version_is_eight_bytes_with_the_highest_first() -> None:
    assert version_to_bytes(258) == b"\0\0\0\0\0\0\1\2"
    assert version_from_bytes(version_to_bytes(258)) == 258


def test_bytes_that_are_no_version_of_any_schema_are_negative() -> None:
    assert version_from_bytes(b"\xff" * 8) == -1


def test_only_the_first_eight_bytes_count() -> None:
    assert version_from_bytes(bytes(7) + b"\1\2") == 1


def test_versions_are_found_by_their_number() -> None:
    three = history("a", "b", "c")
    assert [three.version(number) for number in range(3)] == list(three.versions)
    assert three.version(3) is None
    assert three.version(-1) is None
    assert three.latest is three.versions[2]


def test_the_newest_of_the_same_schemas_is_found() -> None:
    found = history("a", "b", "a").with_digest(b"a")
    assert found is not None
    assert found.version == 2


def test_what_was_deleted_is_not_found_and_versions_go_on() -> None:
    again = history("a", "b").deleted()
    assert (again.latest, again.deleted_version, again.next_version) == (None, 2, 3)
    assert again.version(0) is None
    assert again.with_digest(b"a") is None
    after = again.added(stored(3, "a"))
    assert (after.latest, after.deleted_version) == (after.version(3), None)
    assert after.version(1) is None


def test_a_topic_that_never_had_a_schema_has_no_deletion() -> None:
    assert History().deleted_version is None


def test_the_cache_forgets_what_was_not_asked_for_the_longest() -> None:
    one = history("x" * 1000)
    cache = HistoryCache(one.size_bytes * 2)
    cache.put("/a", one)
    cache.put("/b", one)
    assert cache.get("/a") is one
    cache.put("/c", one)
    assert cache.get("/b") is None
    assert cache.get("/a") is one
    assert cache.size_bytes == one.size_bytes * 2


def test_the_cache_does_not_keep_what_is_larger_than_itself() -> None:
    cache = HistoryCache(10_000)
    cache.put("/a", History())
    cache.put("/b", history("x" * 20_000))
    assert cache.get("/b") is None
    assert cache.get("/a") is not None
    cache.put("/a", history("x" * 20_000))
    assert cache.get("/a") is None
    assert cache.size_bytes == 0


def test_the_cache_forgets_a_namespace() -> None:
    cache = HistoryCache(1 << 20)
    for path in ("/n/a", "/n/b", "/n2/a"):
        cache.put(path, History())
    cache.drop_below("/n")
    assert [cache.get(path) is None for path in ("/n/a", "/n/b", "/n2/a")] == [True, True, False]
    assert cache.size_bytes == History().size_bytes
