"""Short stories of two brokers that share bundles: each fails for at least one of the planted bugs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from random import Random

import pytest
from tests.support.cluster_brokers import FixedRegistry, registered
from tests.support.shared_store import SharedSession, SharedTree

from pybroker.cluster.bundles import split_boundaries
from pybroker.cluster.ownership.bundle_ownership import BundleOwnership, OwnerKind
from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
from pybroker.errors import MetadataError, ServiceNotReady
from pybroker.metadata.resources import Resources
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import BundlesData

NAMESPACE = NamespaceName("public", "default")
TOPIC = TopicName("persistent", NAMESPACE, "orders")
DEADLINE_S = 10.0


class RecordingTopics:
    """Records what the ownership asks for. `closing` runs within `close`."""

    def __init__(self) -> None:
        self.fenced: list[NamespaceBundle] = []
        self.closed: list[NamespaceBundle] = []
        self.closing: Callable[[NamespaceBundle], Awaitable[None]] | None = None
        self.fencing: asyncio.Event | None = None

    def acquired(self, bundle: NamespaceBundle) -> None:
        pass

    async def fence(self, bundles: Collection[NamespaceBundle]) -> None:
        if self.fencing is not None:
            await self.fencing.wait()
        self.fenced += bundles

    async def close(self, bundles: Collection[NamespaceBundle]) -> None:
        for bundle in bundles:
            if self.closing is not None:
                await self.closing(bundle)
            self.closed.append(bundle)


class StoryBroker:
    """One of the brokers."""

    def __init__(
        self, tree: SharedTree, number: int, kind: type[BundleOwnership], brokers: dict[str, StoryBroker]
    ) -> None:
        self.store = SharedSession(tree)
        self.resources = Resources(self.store, default_bundle_count=1)
        self.broker = registered(number)
        self.registry = FixedRegistry(self.broker, {})
        self.topics = RecordingTopics()
        self.ownership = kind(self.store, self.resources, self.registry, self.topics, Random(number))
        brokers[self.broker.broker_id] = self

    async def start(self) -> None:
        await self.resources.load()
        await self.ownership.start()


class Story:
    """Two brokers with one namespace of one bundle; the first is the leader."""

    def __init__(self, kind: type[BundleOwnership]) -> None:
        self.tree = SharedTree()
        brokers: dict[str, StoryBroker] = {}
        self.one, self.two = (StoryBroker(self.tree, number, kind, brokers) for number in range(2))
        all_brokers = {broker_id: each.broker for broker_id, each in brokers.items()}
        for each in brokers.values():
            each.registry = FixedRegistry(each.broker, all_brokers)
            each.registry.leader_id = self.one.broker.broker_id
            each.ownership.registry = each.registry

    @property
    def bundle(self) -> NamespaceBundle:
        return self.one.ownership.bundle_of(TOPIC)

    async def has_document(self, bundle: NamespaceBundle) -> bool:
        return await self.tree.values.get(bundle.path) is not None


@asynccontextmanager
async def told(kind: type[BundleOwnership]) -> AsyncIterator[Story]:
    story = Story(kind)
    resources = Resources(SharedSession(story.tree), default_bundle_count=1)
    await resources.load()
    await resources.bootstrap("c1")
    await story.one.start()
    await story.two.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield story
    finally:
        await story.one.ownership.close()
        await story.two.ownership.close()


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def a_bundle_is_released_after_its_topics_are_closed(kind: type[BundleOwnership]) -> None:
    async with told(kind) as story:
        one, bundle = story.one, story.bundle

        async def closing(closed: NamespaceBundle) -> None:
            assert await story.has_document(closed), "another broker could own the bundle before the topics are closed"
            assert not one.ownership.serves(closed), "topics could be loaded again"
            with pytest.raises(MetadataError, match="is being unloaded"):
                await one.ownership.owner_of(TOPIC, None, is_authoritative=True)

        assert await one.ownership.acquire(bundle)
        one.topics.closing = closing
        await one.ownership.release(bundle)
        assert one.topics.closed == [bundle]
        assert not await story.has_document(bundle)
        assert await story.two.ownership.acquire(bundle)


async def a_document_created_in_a_lost_session_means_nothing(kind: type[BundleOwnership]) -> None:
    """The answer of the creation arrives, and then the session ends before the acquisition continues."""
    async with told(kind) as story:
        one, bundle = story.one, story.bundle

        async def stored_boundaries(namespace: NamespaceName) -> list[str]:
            one.store.lose()
            await one.store.end_past_sessions()
            one.store.renew()
            return one.ownership.boundaries(namespace)

        one.ownership._resources.stored_boundaries = stored_boundaries  # type: ignore[method-assign]
        await one.ownership.acquire(bundle)
        assert not one.ownership.serves(bundle)
        assert await story.two.ownership.acquire(bundle)
        assert not one.ownership.serves(bundle)


async def a_document_of_an_earlier_session_is_left_to_end(kind: type[BundleOwnership]) -> None:
    async with told(kind) as story:
        one, bundle = story.one, story.bundle
        assert await one.ownership.acquire(bundle)
        one.store.lose()
        one.store.renew()  # before the server ends the lost session
        await settle()
        assert not await one.ownership.acquire(bundle)
        assert await story.has_document(bundle), "the server alone ends it"
        with pytest.raises(MetadataError, match="earlier session"):
            await one.ownership.owner_of(TOPIC, None, is_authoritative=True)
        await one.store.end_past_sessions()
        assert await story.two.ownership.acquire(bundle)
        assert not one.ownership.serves(bundle)
        found = await one.ownership.owner_of(TOPIC, None, is_authoritative=True)
        assert (found.kind, found.urls.broker_url) == (OwnerKind.OTHER, "pulsar://broker1:6650")


async def a_lost_session_ends_everything_before_the_next_one_serves(kind: type[BundleOwnership]) -> None:
    async with told(kind) as story:
        one, bundle = story.one, story.bundle
        assert await one.ownership.acquire(bundle)
        one.topics.fencing = asyncio.Event()
        one.store.lose(with_event=False)
        assert not one.ownership.serves(bundle), "the clock decides, not the event"
        assert not one.ownership.holds_session()
        one.store.tell_loss()
        await one.store.end_past_sessions()
        one.store.renew()
        again = asyncio.create_task(one.ownership.acquire(bundle))
        await settle()
        assert not again.done(), "topics of the lost session still have clients"
        assert not one.ownership.holds_session(), "nothing is delivered meanwhile"
        one.topics.fencing.set()
        assert await again
        assert one.topics.fenced == [one.ownership._heartbeat, bundle]
        assert one.ownership.holds_session()


async def a_bundle_that_was_split_is_not_acquired(kind: type[BundleOwnership]) -> None:
    async with told(kind) as story:
        one, two, bundle = story.one, story.two, story.bundle
        assert await one.ownership.acquire(bundle)
        await split(story, one, bundle)
        assert two.ownership.bundle_of(TOPIC) == bundle, "the other broker does not know of the split yet"
        with pytest.raises(MetadataError, match="was split"):
            await two.ownership.owner_of(TOPIC, None, is_authoritative=True)
        assert not two.ownership.serves(bundle)
        assert not await story.has_document(bundle)
        found = await two.ownership.owner_of(TOPIC, None, is_authoritative=True)
        assert found.urls.broker_url == "pulsar://broker0:6650"


async def the_parts_of_a_bundle_are_owned_before_the_namespace_has_them(kind: type[BundleOwnership]) -> None:
    async with told(kind) as story:
        one, bundle = story.one, story.bundle
        assert await one.ownership.acquire(bundle)
        parts = await split(story, one, bundle)
        assert all(one.ownership.serves(part) for part in parts)
        assert not one.ownership.serves(bundle)
        assert one.topics.closed == [], "clients do not notice a split"
        one.ownership.require_served(TOPIC)


async def split(story: Story, broker: StoryBroker, bundle: NamespaceBundle) -> list[NamespaceBundle]:
    """Split `bundle` in the middle. When the boundaries are stored, the documents of the parts and of the whole exist."""
    whole, middle = bundle.range, 1 << 31
    parts = [bundle._replace(range=whole._replace(upper=middle)), bundle._replace(range=whole._replace(lower=middle))]

    def change(bundles: BundlesData) -> BundlesData:
        boundaries = split_boundaries(bundles.boundaries, whole, [middle])
        return BundlesData(boundaries, len(boundaries) - 1)

    async def store_boundaries() -> None:
        for each in (bundle, *parts):
            assert await story.has_document(each), "another broker could own a part"
        await broker.resources.update_bundles(NAMESPACE, change)

    await broker.ownership.split(bundle, parts, store_boundaries)
    return parts


async def two_brokers_that_acquire_at_once_agree(kind: type[BundleOwnership]) -> None:
    async with told(kind) as story:
        for each in (story.one, story.two):
            each.store.pause = lambda: asyncio.sleep(0)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(each.ownership.owner_of(TOPIC, None, is_authoritative=True))
                for each in (story.one, story.two)
                for _ in range(3)
            ]
        owners = [each for each in (story.one, story.two) if each.ownership.serves(story.bundle)]
        assert len(owners) == 1
        kinds = {task.result().kind for task in tasks}
        assert kinds == {OwnerKind.HERE, OwnerKind.OTHER}
        with pytest.raises(ServiceNotReady, match="not served by this instance:broker"):
            (story.two if owners == [story.one] else story.one).ownership.require_served(TOPIC)


async def a_former_leader_is_not_redirected_to_itself(kind: type[BundleOwnership]) -> None:
    """The value of the leader names this broker until its lost session ends."""
    async with told(kind) as story:
        one, other = story.one, story.two.broker
        one.registry.is_leader = lambda: False  # type: ignore[method-assign]
        one.registry.choose = lambda _bundle: other
        found = await one.ownership.owner_of(TOPIC, None, is_authoritative=False)
        assert (found.kind, found.urls.broker_url) == (OwnerKind.REDIRECT, "pulsar://broker1:6650")
        assert found.is_authoritative


STORIES = (
    a_bundle_is_released_after_its_topics_are_closed,
    a_document_created_in_a_lost_session_means_nothing,
    a_document_of_an_earlier_session_is_left_to_end,
    a_lost_session_ends_everything_before_the_next_one_serves,
    a_bundle_that_was_split_is_not_acquired,
    the_parts_of_a_bundle_are_owned_before_the_namespace_has_them,
    two_brokers_that_acquire_at_once_agree,
    a_former_leader_is_not_redirected_to_itself,
)
