"""Partitioned topics: storage, reload, and refusals."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.errors import AdminError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata, PartitionedTopics
from pybroker.model.names import NON_PERSISTENT, PERSISTENT, NamespaceName, TopicName

DEFAULT = NamespaceName("public", "default")
ORDERS = TopicName.parse("orders")
WITH_SLASH_AND_SPACE = TopicName(PERSISTENT, DEFAULT, "a%2Fb c")


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore()


@pytest.fixture
def topics(store: MemoryMetadataStore) -> PartitionedTopics:
    return PartitionedTopics(store)


async def reloaded(store: MemoryMetadataStore) -> PartitionedTopics:
    topics = PartitionedTopics(store)
    await topics.load()
    return topics


async def test_a_partitioned_topic_is_found_again_after_a_restart(
    store: MemoryMetadataStore, topics: PartitionedTopics
) -> None:
    await topics.create(ORDERS, 3, {"team": "a"})
    await topics.create(WITH_SLASH_AND_SPACE, 1)
    again = await reloaded(store)
    assert again.get(ORDERS) == PartitionedTopicMetadata(3, properties={"team": "a"})
    assert again.names(DEFAULT, PERSISTENT) == [WITH_SLASH_AND_SPACE, ORDERS]


async def test_domains_and_namespaces_are_apart(topics: PartitionedTopics) -> None:
    other = TopicName.parse("non-persistent://public/default/orders")
    await topics.create(other, 2)
    assert topics.get(ORDERS) is None
    assert topics.names(DEFAULT, PERSISTENT) == []
    assert topics.names(DEFAULT, NON_PERSISTENT) == [other]


async def test_a_name_is_taken_once_also_when_two_ask_at_once(topics: PartitionedTopics) -> None:
    results = await asyncio.gather(topics.create(ORDERS, 1), topics.create(ORDERS, 2), return_exceptions=True)
    refused = [each for each in results if isinstance(each, AdminError)]
    assert [each.status for each in refused] == [409]
    metadata = topics.get(ORDERS)
    assert metadata is not None
    assert metadata.partitions == 1


async def test_refused_creation_reads_the_stored_topic_of_another_broker(
    store: MemoryMetadataStore, topics: PartitionedTopics
) -> None:
    other = PartitionedTopics(store)
    await other.create(ORDERS, 7)
    with pytest.raises(AdminError) as refused:
        await topics.create(ORDERS, 2)
    assert refused.value.status == 409
    assert topics.get(ORDERS) == PartitionedTopicMetadata(7)


async def test_a_change_is_durable_and_a_refused_one_leaves_everything_as_it_was(
    store: MemoryMetadataStore, topics: PartitionedTopics
) -> None:
    await topics.create(ORDERS, 1)

    def grow(metadata: PartitionedTopicMetadata) -> None:
        metadata.partitions = 5

    def refuse(metadata: PartitionedTopicMetadata) -> None:
        metadata.partitions = 9
        raise AdminError(422, "no")

    await topics.update(ORDERS, grow)
    with pytest.raises(AdminError):
        await topics.update(ORDERS, refuse)
    for each in (topics, await reloaded(store)):
        assert each.get(ORDERS) == PartitionedTopicMetadata(5)


async def test_what_does_not_exist_cannot_be_changed_and_may_be_deleted(topics: PartitionedTopics) -> None:
    with pytest.raises(AdminError) as caught:
        await topics.update(ORDERS, lambda _: None)
    assert caught.value.status == 404
    await topics.delete(ORDERS)


async def test_a_deleted_one_is_gone_and_its_name_free(store: MemoryMetadataStore, topics: PartitionedTopics) -> None:
    await topics.create(ORDERS, 1)
    await topics.delete(ORDERS)
    assert topics.get(ORDERS) is None
    assert (await reloaded(store)).names(DEFAULT, PERSISTENT) == []
    await topics.create(ORDERS, 2)


async def test_what_a_restart_has_to_finish_deleting_is_told(
    store: MemoryMetadataStore, topics: PartitionedTopics
) -> None:
    def mark(metadata: PartitionedTopicMetadata) -> None:
        metadata.deleted = True

    await topics.create(ORDERS, 1)
    await topics.update(ORDERS, mark)
    assert (await reloaded(store)).being_deleted() == [ORDERS]


async def test_a_document_that_cannot_be_read_names_its_topic(store: MemoryMetadataStore) -> None:
    await store.put(metadata_paths.partitioned_topic(ORDERS), b"junk")
    with pytest.raises(StoreError, match="orders"):
        await reloaded(store)
