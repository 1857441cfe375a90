"""The registry on a metadata store: versions, equality, deletion, concurrent writers, failures."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.support.schemas import NEEDS_MORE, V1, V2, avro

from pybroker.errors import StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import ANY_VERSION
from pybroker.model.names import NamespaceName, TopicName
from pybroker.runtime.clock import Clock
from pybroker.schema.schema_data import Incompatible, InvalidSchema, SchemaData, SchemaType
from pybroker.schema.schema_registry import THREAD_BYTES, SchemaRegistry

ORDERS = TopicName.parse("orders")
ONE, TWO, OTHER = avro(V1), avro(V2), avro(NEEDS_MORE)
STRING = SchemaData(SchemaType.STRING)


class FailingStore(MemoryMetadataStore):
    """Fails on request."""

    fails = False

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        if self.fails:
            raise StoreError("no disk")
        return await super().put(path, value, expected_version)


@pytest.fixture
def store() -> FailingStore:
    return FailingStore()


@pytest.fixture
def registry(store: FailingStore) -> SchemaRegistry:
    return SchemaRegistry(store, Clock())


async def versions(registry: SchemaRegistry, topic: TopicName = ORDERS) -> list[int]:
    return [each.version for each in (await registry.history(topic)).versions]


async def test_versions_count_from_0_and_are_found_again_after_a_restart(
    store: FailingStore, registry: SchemaRegistry
) -> None:
    assert [await registry.register(ORDERS, each, "FULL") for each in (ONE, TWO)] == [0, 1]
    before = await registry.history(ORDERS)
    assert await SchemaRegistry(store, Clock()).history(ORDERS) == before
    assert [each.schema for each in before.versions] == [ONE, TWO]


async def test_the_same_schema_has_the_same_version_also_when_it_is_an_older_one(
    store: FailingStore, registry: SchemaRegistry
) -> None:
    await registry.register(ORDERS, ONE, "FULL")
    await registry.register(ORDERS, TWO, "FULL")
    spaced = avro(V1.replace(",", " ,\n"), owner="me")
    for each in (registry, SchemaRegistry(store, Clock())):
        assert await each.register(ORDERS, spaced, "ALWAYS_INCOMPATIBLE") == 0
        assert await each.version_of(ORDERS, spaced) == 0
    assert await versions(registry) == [0, 1]


async def test_properties_and_timestamps_are_kept(store: FailingStore, registry: SchemaRegistry) -> None:
    schema = SchemaData(SchemaType.EXTERNAL, b"\0\xff", {"ä": "ö"})
    await registry.register(ORDERS, schema, "FULL")
    found = (await SchemaRegistry(store, Clock()).history(ORDERS)).latest
    assert found is not None
    assert found.schema == schema
    assert found.timestamp_ms > 0


async def test_what_does_not_fit_is_refused_and_leaves_no_version(registry: SchemaRegistry) -> None:
    await registry.register(ORDERS, ONE, "FULL")
    with pytest.raises(Incompatible, match="count"):
        await registry.register(ORDERS, OTHER, "FULL")
    with pytest.raises(Incompatible, match="STRING"):
        await registry.register(ORDERS, STRING, "FULL")
    with pytest.raises(InvalidSchema):
        await registry.register(ORDERS, avro("{"), "ALWAYS_COMPATIBLE")
    assert await versions(registry) == [0]
    assert await registry.version_of(ORDERS, OTHER) is None


async def test_partitions_and_both_domains_share_their_topics_schemas(registry: SchemaRegistry) -> None:
    await registry.register(ORDERS.partition(3), ONE, "FULL")
    assert await versions(registry) == [0]
    assert await versions(registry, TopicName.parse("non-persistent://public/default/orders-partition-0")) == [0]
    assert await versions(registry, TopicName.parse("orders2")) == []


async def test_after_a_deletion_nothing_is_found_and_versions_go_on(
    store: FailingStore, registry: SchemaRegistry
) -> None:
    await registry.register(ORDERS, ONE, "FULL")
    assert await registry.delete(ORDERS) == 1
    for each in (registry, SchemaRegistry(store, Clock())):
        assert (await each.history(ORDERS)).latest is None
    assert await registry.register(ORDERS, STRING, "FULL") == 2
    assert await registry.delete(ORDERS) == 3
    assert await SchemaRegistry(store, Clock()).register(ORDERS, ONE, "FULL") == 4


async def test_a_topic_that_was_dropped_begins_anew(store: FailingStore, registry: SchemaRegistry) -> None:
    await registry.register(ORDERS, ONE, "FULL")
    await registry.drop(ORDERS.partition(0))
    assert await versions(registry) == [0]
    await registry.drop(ORDERS)
    assert await store.children(metadata_paths.SCHEMAS) == []
    assert await registry.register(ORDERS, STRING, "FULL") == 0


async def test_a_namespace_is_dropped_with_all_its_schemas(store: FailingStore, registry: SchemaRegistry) -> None:
    for name in ("t/ns/a", "t/ns/b", "t/ns2/a"):
        await registry.register(TopicName.parse(name), ONE, "FULL")
    await registry.drop_namespace(NamespaceName("t", "ns"))
    assert await store.children(f"{metadata_paths.SCHEMAS}/t") == ["ns2"]
    assert await versions(registry, TopicName.parse("t/ns/a")) == []
    assert list(registry.counters) == [NamespaceName("t", "ns2"), NamespaceName("t", "ns")]


async def test_many_at_once_get_versions_without_a_gap_and_none_twice(registry: SchemaRegistry) -> None:
    schemas = [avro(V1.replace("id", f"id{index % 20}")) for index in range(60)]
    found = await asyncio.gather(*(registry.register(ORDERS, each, "ALWAYS_COMPATIBLE") for each in schemas))
    assert sorted(set(found)) == list(range(20))
    assert [found[index] == found[index + 20] for index in range(40)] == [True] * 40
    assert await versions(registry) == list(range(20))


async def test_writers_that_do_not_know_of_each_other_get_different_versions(store: FailingStore) -> None:
    one, other = SchemaRegistry(store, Clock()), SchemaRegistry(store, Clock())
    assert await versions(one) == await versions(other) == []
    assert await one.register(ORDERS, ONE, "FULL") == 0
    assert await other.register(ORDERS, TWO, "FULL") == 1
    with pytest.raises(Incompatible):
        await one.register(ORDERS, OTHER, "FULL")
    assert await one.delete(ORDERS) == 2
    assert await other.register(ORDERS, STRING, "FULL") == 3


async def test_what_could_not_be_stored_was_not_registered(store: FailingStore, registry: SchemaRegistry) -> None:
    await registry.register(ORDERS, ONE, "FULL")
    store.fails = True
    with pytest.raises(StoreError):
        await registry.register(ORDERS, TWO, "FULL")
    with pytest.raises(StoreError):
        await registry.delete(ORDERS)
    assert await versions(registry) == [0]
    store.fails = False
    assert await registry.register(ORDERS, TWO, "FULL") == 1


async def test_a_document_that_cannot_be_read_is_a_failure_of_the_store(
    store: FailingStore, registry: SchemaRegistry
) -> None:
    await store.put(metadata_paths.schema_version(metadata_paths.schema(ORDERS), 0), b"{")
    with pytest.raises(StoreError, match="cannot be read"):
        await registry.history(ORDERS)


@pytest.mark.parametrize(
    ("strategy", "fits"),
    [
        ("ALWAYS_COMPATIBLE", (True, True, True)),
        ("ALWAYS_INCOMPATIBLE", (False, False, False)),
        ("BACKWARD", (True, False, False)),
        ("FORWARD", (True, False, False)),
        ("FULL", (True, False, False)),
        ("FORWARD_TRANSITIVE", (True, False, False)),
        ("BACKWARD_TRANSITIVE", (True, False, False)),
        ("FULL_TRANSITIVE", (True, False, False)),
    ],
)
async def test_a_consumer_must_read_what_is_there(
    registry: SchemaRegistry, strategy: str, fits: tuple[bool, ...]
) -> None:
    await registry.register(ORDERS, ONE, "FULL")
    found = []
    for schema in (TWO, OTHER, STRING):
        try:
            await registry.check_consumer(ORDERS, schema, strategy)
            found.append(True)
        except Incompatible:
            found.append(False)
    assert tuple(found) == fits


async def test_a_consumer_must_read_all_versions_only_by_the_transitive_rules(registry: SchemaRegistry) -> None:
    await registry.register(ORDERS, avro(V1.replace("id", "other")), "ALWAYS_COMPATIBLE")
    await registry.register(ORDERS, ONE, "ALWAYS_COMPATIBLE")
    await registry.check_consumer(ORDERS, ONE, "BACKWARD")
    await registry.check_consumer(ORDERS, ONE, "FORWARD_TRANSITIVE")
    for strategy in ("BACKWARD_TRANSITIVE", "FULL_TRANSITIVE"):
        with pytest.raises(Incompatible):
            await registry.check_consumer(ORDERS, ONE, strategy)


async def test_a_consumer_cannot_be_checked_where_there_is_no_schema(registry: SchemaRegistry) -> None:
    with pytest.raises(Incompatible, match="without a schema"):
        await registry.check_consumer(ORDERS, ONE, "FULL")
    await registry.check_consumer(ORDERS, ONE, "ALWAYS_COMPATIBLE")


async def test_operations_and_verdicts_are_counted_by_namespace(store: FailingStore, registry: SchemaRegistry) -> None:
    await registry.register(ORDERS, ONE, "FULL")
    await registry.check(ORDERS, TWO, "FULL")
    with pytest.raises(Incompatible):
        await registry.check(ORDERS, OTHER, "FULL")
    await registry.delete(ORDERS)
    store.fails = True
    with pytest.raises(StoreError):
        await registry.delete(ORDERS)
    counters = registry.counters[ORDERS.namespace]
    assert (counters.compatible, counters.incompatible) == (1, 1)
    assert [each.took_ms.count for each in (counters.put, counters.get, counters.delete)] == [1, 2, 1]
    assert (counters.delete.failures, counters.put.failures) == (1, 0)


class WatchedBytes(bytes):
    """Records the threads that read it."""

    def __init__(self, _data: bytes) -> None:
        self.threads: set[int] = set()

    def decode(self, *arguments: str, **settings: str) -> str:
        self.threads.add(threading.get_ident())
        return super().decode(*arguments, **settings)


async def test_a_large_definition_is_read_and_compared_in_a_thread(registry: SchemaRegistry) -> None:
    for size, is_in_thread in ((100, False), (2 * THREAD_BYTES, True)):
        topic = TopicName.parse(f"of-{size}")
        text = b'{"type":"record","name":"R","doc":"%s","fields":[%s]}'
        await registry.register(topic, SchemaData(SchemaType.AVRO, text % (b"d" * size, b"")), "FULL")
        data = WatchedBytes(text % (b"d" * size, b'{"name":"a","type":"int","default":1}'))
        await registry.check(topic, SchemaData(SchemaType.AVRO, data), "FULL")
        assert data.threads
        assert (threading.get_ident() in data.threads) is not is_in_thread
