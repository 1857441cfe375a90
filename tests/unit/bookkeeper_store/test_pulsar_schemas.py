"""Schemas in Pulsar's layout, on the model of bookies: as the registry uses them, and byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
from random import Random

import pytest
from tests.support.bookkeeper_store_model import ModelCluster
from tests.support.schemas import V1, V2, avro

from pybroker.bookkeeper_store.documents.schema_storage_pb2 import IndexEntry, SchemaEntry, SchemaInfo, SchemaLocator
from pybroker.bookkeeper_store.pulsar_schemas import PulsarSchemaStorage
from pybroker.errors import BadVersionError, StoreError, UnknownOutcome
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import ANY_VERSION
from pybroker.model.names import NamespaceName, TopicName
from pybroker.runtime.clock import Clock
from pybroker.schema.schema_data import SchemaData, SchemaType
from pybroker.schema.schema_registry import SchemaRegistry
from pybroker.schema.schema_storage import SchemaRecord, StoredVersions

TOPIC = TopicName.parse("persistent://public/default/orders ü~*")
PATH = "/schemas/public/default/orders+%C3%BC%7E*"
ONE, TWO = avro(V1), avro(V2)


class World:
    """Bookies, metadata, and the storages of two brokers."""

    def __init__(self, metadata: MemoryMetadataStore | None = None) -> None:
        self.bookies = ModelCluster(Random(0))
        self.metadata = metadata or MemoryMetadataStore()
        self.client = self.bookies.client()
        self.storage = PulsarSchemaStorage(self.client, self.metadata)

    def registry(self) -> SchemaRegistry:
        return SchemaRegistry(self.metadata, Clock(), PulsarSchemaStorage(self.bookies.client(), self.metadata))

    async def locator(self) -> SchemaLocator:
        found = await self.metadata.get(PATH)
        assert found is not None
        return SchemaLocator.FromString(found.value)

    async def entry(self, of: IndexEntry) -> SchemaEntry:
        reader = await self.client.open_ledger(of.position.ledgerId)
        return SchemaEntry.FromString((await reader.read_entry(of.position.entryId)).payload)

    def ledger_ids(self) -> set[int]:
        return set(self.bookies.metadata.ledgers)


@pytest.fixture
def world() -> World:
    return World()


async def test_documents_are_those_of_pulsar(world: World) -> None:
    schema = SchemaData(SchemaType.KEY_VALUE, b"definition", {"a": "b"})
    assert await world.storage.append(PATH, 0, SchemaRecord(schema, 1234))
    assert await world.storage.append(PATH, 1, SchemaRecord(None, 5678))
    locator = await world.locator()
    assert [each.version for each in locator.index] == [0, 1]
    assert locator.info == locator.index[1]
    assert locator.index[0].hash == hashlib.sha256(b"definition").digest()
    assert locator.index[1].hash == b""
    first = await world.entry(locator.index[0])
    assert [(each.version, each.position.ledgerId, each.position.entryId) for each in first.index] == [(0, -1, -1)]
    info = SchemaInfo.FromString(first.schema_data)
    assert (info.schema_id, info.type, info.schema, info.timestamp, info.deleted) == (
        "public/default/orders+%C3%BC%7E*",
        16,
        b"definition",
        1234,
        False,
    )
    assert [(pair.key, pair.value) for pair in info.props] == [("a", "b")]
    second = await world.entry(locator.index[1])
    assert [each.position.ledgerId for each in second.index] == [locator.index[0].position.ledgerId]
    assert SchemaInfo.FromString(second.schema_data).deleted
    metadata = await world.client.ledger_metadata(locator.index[0].position.ledgerId)
    assert metadata.last_entry_id == 0
    assert metadata.custom == {
        "application": b"pulsar",
        "component": b"schema",
        "pulsar/schemaId": b"public/default/orders+%C3%BC%7E*",
    }


async def test_locator_without_a_list_has_one_version(world: World) -> None:
    assert await world.storage.append(PATH, 0, SchemaRecord(ONE, 1))
    locator = await world.locator()
    del locator.index[:]
    await world.metadata.put(PATH, locator.SerializeToString())
    assert await world.storage.read(PATH) == StoredVersions([(0, SchemaRecord(ONE, 1))], 1)


async def test_registry_finds_versions_again_after_a_restart(world: World) -> None:
    registry = world.registry()
    assert [await registry.register(TOPIC, each, "FULL") for each in (ONE, TWO, ONE)] == [0, 1, 0]
    before = await registry.history(TOPIC)
    assert await world.registry().history(TOPIC) == before
    assert await registry.delete(TOPIC) == 2
    assert (await world.registry().history(TOPIC)).versions == ()
    assert await world.registry().register(TOPIC, TWO, "FULL") == 3
    assert [each.version for each in (await registry.history(TOPIC)).versions] == [3], "the watch reports it"


async def test_two_brokers_that_register_at_once_get_different_versions(world: World) -> None:
    one, other = world.registry(), world.registry()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(one.register(TOPIC, ONE, "ALWAYS_COMPATIBLE"))
        second = group.create_task(other.register(TOPIC, TWO, "ALWAYS_COMPATIBLE"))
    assert {first.result(), second.result()} == {0, 1}
    named = {each.position.ledgerId for each in (await world.locator()).index}
    assert world.ledger_ids() == named, "the ledger of the attempt that came too late is deleted"


async def test_dropped_topic_leaves_no_ledger(world: World) -> None:
    registry = world.registry()
    other = TopicName.parse("persistent://public/default/other")
    for topic in (TOPIC, other):
        await registry.register(topic, ONE, "FULL")
        await registry.register(topic, TWO, "FULL")
    await registry.drop(TOPIC)
    assert await world.metadata.get(PATH) is None
    assert len(world.ledger_ids()) == 2
    await registry.drop_namespace(NamespaceName("public", "default"))
    assert world.ledger_ids() == set()
    assert (await registry.history(other)).versions == ()
    assert await registry.register(TOPIC, TWO, "FULL") == 0


async def test_ledger_stays_if_it_is_unknown_whether_the_locator_names_it() -> None:
    class LostAnswers(MemoryMetadataStore):
        async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
            await super().put(path, value, expected_version)
            raise UnknownOutcome("the answer was lost")

    world = World(LostAnswers())
    with pytest.raises(StoreError):
        await world.storage.append(PATH, 0, SchemaRecord(ONE, 1))
    assert (await world.storage.read(PATH)).next_version == 1
    assert len(world.ledger_ids()) == 1


async def test_append_of_another_version_than_the_next_stores_nothing(world: World) -> None:
    assert not await world.storage.append(PATH, 1, SchemaRecord(ONE, 1))
    assert await world.storage.append(PATH, 0, SchemaRecord(ONE, 1))
    assert not await world.storage.append(PATH, 0, SchemaRecord(TWO, 1))
    assert len(world.ledger_ids()) == 1


@pytest.mark.parametrize("value", [b"\xff", b"\x0a\x01", b"{}"])
async def test_damaged_locator_is_reported_and_can_be_dropped(world: World, value: bytes) -> None:
    await world.metadata.put(PATH, value)
    registry = world.registry()
    with pytest.raises(StoreError, match="cannot be read"):
        await registry.register(TOPIC, ONE, "FULL")
    await registry.drop(TOPIC)
    assert await registry.register(TOPIC, ONE, "FULL") == 0


async def test_lost_ledger_is_reported_with_the_version(world: World) -> None:
    assert await world.storage.append(PATH, 0, SchemaRecord(ONE, 1))
    await world.client.delete_ledger((await world.locator()).index[0].position.ledgerId)
    with pytest.raises(StoreError, match=r"version 0 .* is lost"):
        await world.storage.read(PATH)


async def test_locator_that_changes_at_each_attempt_is_an_error(world: World) -> None:
    class Busy(MemoryMetadataStore):
        async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
            raise BadVersionError("changed")

    busy = World(Busy())
    assert await busy.storage.append(PATH, 0, SchemaRecord(ONE, 1))
    with pytest.raises(StoreError, match="other brokers"):
        await busy.storage.drop(PATH)
    assert len(busy.ledger_ids()) == 1
