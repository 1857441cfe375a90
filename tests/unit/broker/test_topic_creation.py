"""What may be made as what, and when: without topics, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pybroker.broker.context.presence import Presence
from pybroker.broker.context.waiting_requests import WaitingRequests
from pybroker.broker.lifecycle.change_locks import ChangeLocks
from pybroker.broker.lifecycle.loaded_topics import LoadedTopics
from pybroker.broker.lifecycle.topic_creation import TopicCreation
from pybroker.broker.lifecycle.topic_directory import TopicDirectory
from pybroker.broker_assembly import ledger_limits
from pybroker.cluster.advertised_addresses import AdvertisedAddresses, BoundPorts
from pybroker.config import BrokerConfig
from pybroker.errors import NotAllowedError, TooManyRequests, TopicChanging, TopicNotFound
from pybroker.ledgers.memory_store import MemoryCursorStore, MemoryLedgerStore
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.metadata import metadata_paths
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.partitioned_topics import PartitionedTopicMetadata, PartitionedTopics
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName, TopicName
from pybroker.runtime.runtime import Runtime
from pybroker.wire.broker_entry_metadata import entry_time_ms

ORDERS = TopicName.parse("persistent://public/default/orders")
OTHER = TopicName.parse("persistent://public/default/other")
NOWHERE = TopicName.parse("persistent://public/nowhere/t")


class Making:
    """The rules of topic creation, over metadata in memory in which `orders` has two partitions."""

    def __init__(self, **settings: Any) -> None:
        self.runtime = Runtime(BrokerConfig(**settings))
        config, clock = self.runtime.config, self.runtime.clock
        self.store = MemoryMetadataStore()
        self.resources = Resources(self.store)
        self.partitioned = PartitionedTopics(self.store)
        self.waiting = WaitingRequests(config)
        self.changing = ChangeLocks(self.waiting)
        self.presence = Presence()
        self.presence.addresses = AdvertisedAddresses(config, BoundPorts(6650, None, 8080, None), "broker.example")
        of_ledgers = LedgerResources(
            MemoryLedgerStore(entry_time_ms), EntryCache(1 << 20), ledger_limits(config), clock, 1, entry_time_ms
        )
        self.ledgers = ManagedLedgerFactory(of_ledgers, MemoryCursorStore(), self.store)
        directory = TopicDirectory(self.store, self.ledgers, LoadedTopics())
        self.rules = TopicCreation(
            self.runtime, self.resources, self.waiting, self.presence, self.changing, self.partitioned, directory
        )

    async def start(self) -> None:
        await self.resources.load()
        await self.resources.bootstrap("standalone")
        await self.partitioned.create(ORDERS, 2, {})


@pytest.fixture
async def making() -> AsyncIterator[Making]:
    made = Making()
    await made.start()
    yield made
    await made.ledgers.close()


async def test_a_partition_that_there_is_goes_on_while_its_topic_grows(making: Making) -> None:
    async with making.changing.partitioned.held(ORDERS):
        making.rules.require_loadable(ORDERS.partition(1))
        with pytest.raises(TopicChanging):
            making.rules.require_loadable(ORDERS.partition(2))
        assert making.rules.is_settled(OTHER)
    with pytest.raises(TopicNotFound, match="there are 2 partitions"):
        making.rules.require_loadable(ORDERS.partition(2))


async def test_nothing_goes_on_in_a_namespace_that_is_being_deleted(making: Making) -> None:
    async with making.changing.namespaces.held(ORDERS.namespace):
        assert not making.rules.is_settled(ORDERS.partition(1))
        assert not making.rules.is_settled(OTHER)
        assert making.rules.is_settled(NOWHERE)


async def test_partitions_of_a_topic_that_is_left_marked_are_not_found(making: Making) -> None:
    def mark(document: PartitionedTopicMetadata) -> None:
        document.deleted = True

    await making.partitioned.update(ORDERS, mark)
    with pytest.raises(TopicNotFound, match="is marked for deletion"):
        making.rules.require_loadable(ORDERS.partition(0))


async def test_the_name_of_a_partitioned_topic_is_no_topic(making: Making) -> None:
    with pytest.raises(NotAllowedError, match="Found partitioned metadata"):
        making.rules.require_loadable(ORDERS)


async def test_who_meets_a_change_waits_and_tries_again(making: Making) -> None:
    tries, began = 0, asyncio.Event()
    lock = making.changing.partitioned.held(OTHER)

    async def attempt() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            await lock.__aenter__()  # somebody begins to change it in the middle of the first attempt
            began.set()
        making.rules.require_loadable(OTHER)
        return "done"

    waiting = asyncio.ensure_future(making.rules.once_settled(OTHER, attempt))
    await began.wait()
    assert (tries, making.waiting.topics.count, waiting.done()) == (1, 1, False)
    await lock.__aexit__(None, None, None)
    assert await waiting == "done"
    assert (tries, making.waiting.topics.count) == (2, 0)


async def test_where_as_many_wait_as_may_the_next_one_is_refused() -> None:
    making = Making(max_waiting_topic_requests=0)
    async with making.changing.namespaces.held(OTHER.namespace):
        with pytest.raises(TooManyRequests, match="maxWaitingTopicRequests"):
            await making.rules.once_settled(OTHER, asyncio.Event().wait)


async def test_only_the_health_checks_own_namespace_exists_without_a_document(making: Making) -> None:
    own = NamespaceName("pulsar", making.presence.broker_id)
    assert making.presence.is_own(own)
    making.rules.require_open_namespace(TopicName("persistent", own, "healthcheck"))
    assert not making.presence.is_own(NamespaceName("pulsar", "other.example:8080"))
    with pytest.raises(TopicNotFound, match="Namespace not found"):
        making.rules.require_open_namespace(NOWHERE)


async def test_the_limit_of_a_namespace_holds_for_all_that_are_made_at_once() -> None:
    making = Making(max_topics_per_namespace=2)
    await making.start()

    async def make(name: TopicName) -> bool:
        async with making.rules.room(name, 1):
            await asyncio.sleep(0)  # as if others came now
            return await making.ledgers.create(metadata_paths.managed_ledger(name), {})

    names = [TopicName.parse(f"persistent://public/default/t{number}") for number in range(4)]
    found = await asyncio.gather(*map(make, names), return_exceptions=True)
    assert found[:2] == [True, True]
    assert all(isinstance(refused, NotAllowedError) for refused in found[2:])
    await making.rules.quiet(ORDERS.namespace)
    await making.ledgers.close()


async def test_who_deletes_a_namespace_waits_for_those_who_make_topics_there(making: Making) -> None:
    done = asyncio.Event()

    async def make() -> None:
        async with making.rules.room(OTHER, 1):
            await done.wait()

    maker = asyncio.ensure_future(make())
    await asyncio.sleep(0)
    quiet = asyncio.ensure_future(making.rules.quiet(OTHER.namespace))
    await asyncio.sleep(0)
    assert not quiet.done()
    await making.rules.quiet(NOWHERE.namespace)  # nobody there
    done.set()
    await asyncio.wait([maker, quiet])
    assert quiet.done()
