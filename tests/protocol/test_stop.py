"""The end of a broker with many topics: all clients are told first, then the topics are closed, many at once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.support.broker_stores import OnModelBookies, choice_of_stores
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.lifecycle import topic_closing
from pybroker.broker.lifecycle.topic_closing import TopicClosing
from pybroker.broker.topic.topic import Topic
from pybroker.errors import ServiceNotReady
from pybroker.model.names import TopicName
from pybroker.model.policies import TopicPolicies

COUNT = 40


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    """A broker without system topics, so that it closes only the topics of the test."""
    async with memory_broker(system_topic_enabled=False) as running:
        yield running


async def with_topics(broker: MemoryBroker) -> tuple[list[Topic], list[RecordingPeer]]:
    """Topics with a producer and a consumer each."""
    topics = [await broker.topic(f"persistent://public/default/t-{index}") for index in range(COUNT)]
    peers = []
    for topic in topics:
        peers.append(RecordingPeer())
        broker.producer(topic, peers[-1])
        await broker.consumer(topic, "s", peers[-1])
    return topics, peers


def intercept_close(monkeypatch: pytest.MonkeyPatch, before: Callable[[], Any]) -> None:
    """Await `before()` whenever a topic has been fenced and is about to be closed."""
    original = Topic.close

    async def close(topic: Topic) -> None:
        await before()
        await original(topic)

    monkeypatch.setattr(Topic, "close", close)


async def test_all_clients_are_told_before_the_first_topic_is_closed(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, peers = await with_topics(broker)
    untold: list[int] = []

    async def before() -> None:
        untold.append(sum(not (peer.closed_producers and peer.closed_consumers) for peer in peers))

    intercept_close(monkeypatch, before)
    await broker.service.close()
    assert untold == [0] * COUNT


async def test_topics_are_closed_at_once_and_none_is_left(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_topics(broker)
    began = 0
    all_began = asyncio.Event()

    async def before() -> None:
        nonlocal began
        began += 1
        if began == COUNT:
            all_began.set()
        await all_began.wait()  # For ever, if one waited for the other.

    intercept_close(monkeypatch, before)
    async with asyncio.timeout(10):
        await broker.service.close()
    assert broker.service.loaded.all() == []


async def test_no_more_topics_are_closed_at_once_than_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker(max_concurrent_topic_closes=3) as broker:
        await with_topics(broker)
        original = TopicClosing.unload
        closing, most = 0, 0

        async def unload(closing_topics: TopicClosing, topic: Topic) -> None:
            nonlocal closing, most
            closing += 1
            most = max(most, closing)
            await asyncio.sleep(0)
            await original(closing_topics, topic)
            closing -= 1

        monkeypatch.setattr(TopicClosing, "unload", unload)
        await broker.service.close()
        assert most == 3
        assert broker.service.loaded.all() == []


async def test_others_have_their_turn_while_clients_are_told(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, peers = await with_topics(broker)
    monkeypatch.setattr(topic_closing, "TELLING_SLICE_MS", 0)  # As if each telling took longer than a slice.
    told: list[int] = []

    async def watch() -> None:
        while not told or told[-1] < COUNT:
            told.append(sum(bool(peer.closed_producers) for peer in peers))
            await asyncio.sleep(0)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(watch())
        group.create_task(broker.service.close())
    assert len(set(told)) > COUNT // 2


async def test_a_topic_that_cannot_be_closed_keeps_none_of_the_others_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker(max_concurrent_topic_closes=2, system_topic_enabled=False) as broker:
        topics, _ = await with_topics(broker)
        calls = 0

        async def before() -> None:
            nonlocal calls
            calls += 1
            if calls % 2:
                raise ZeroDivisionError("a bug in the topic")

        intercept_close(monkeypatch, before)
        bugs = broker.service.runtime.stats.bugs
        await broker.service.close()
        assert calls == COUNT
        assert broker.service.runtime.stats.bugs == bugs + COUNT // 2
        assert all(topic.ledger.is_closed for topic in topics)  # by the factory, where not by their topics


async def test_a_topic_whose_loading_ends_while_others_are_closed_is_closed_as_well(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_topics(broker)
    resources = broker.service.resources
    asked, answered = asyncio.Event(), asyncio.Event()
    original = resources.topic_policies_in_force

    async def topic_policies(name: TopicName) -> TopicPolicies:
        asked.set()
        await answered.wait()
        return await original(name)

    monkeypatch.setattr(resources, "topic_policies_in_force", topic_policies)
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(broker.topic("persistent://public/default/late"))
        await asked.wait()

        async def before() -> None:
            answered.set()
            await asyncio.wait([loading])

        intercept_close(monkeypatch, before)
        await broker.service.close()
    assert loading.result().is_fenced
    assert broker.service.loaded.all() == []


async def test_topic_that_needs_policies_while_broker_stops_is_refused() -> None:
    with choice_of_stores(OnModelBookies()):
        async with memory_broker() as broker:
            await broker.topic("persistent://public/default/t")
            await broker.service.close()
            with pytest.raises(ServiceNotReady, match="the broker is stopping"):
                await broker.service.resources.topic_policies_in_force(TopicName.parse("public/default/late"))


async def test_a_stop_that_is_given_up_ends_at_once(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await with_topics(broker)
    never = asyncio.Event()
    intercept_close(monkeypatch, never.wait)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await broker.service.close()
    never.set()
