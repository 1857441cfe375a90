"""Deletion of topics that nobody uses: which go, when, and who comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.topic.topic import Topic
from pybroker.errors import ServiceNotReady
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST

NAMESPACE = "/namespaces/public/default"
CAUGHT_UP = "delete_when_subscriptions_caught_up"
NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
LIMIT_S = 60


class Idle:
    """A broker whose monotonic clock moves when a test lets time pass between two checks."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.now_ms = 0.0

    async def passes(self, seconds: float) -> None:
        """Two checks with that much time between: the first one finds out who is idle."""
        await self.broker.service.maintenance.check_inactive_topics()
        self.now_ms += seconds * 1000
        await self.broker.service.maintenance.check_inactive_topics()

    async def topic(self, name: str = "t") -> Topic:
        return await self.broker.topic(name)

    async def exists(self, name: str = "t") -> bool:
        return await self.broker.service.directory.exists(TopicName.parse(name))


@pytest.fixture
async def idle(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Idle]:
    async with memory_broker() as running:
        time = Idle(running)
        monkeypatch.setattr(running.service.runtime.clock, "monotonic_ms", lambda: time.now_ms)
        yield time


async def set_policy(idle: Idle, path: str, mode: str, seconds: int, *, deletes: bool = True) -> None:
    answer = await idle.broker.rest(
        "POST",
        f"{path}/inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": mode,
            "maxInactiveDurationSeconds": seconds,
            "deleteWhileInactive": deletes,
        },
    )
    assert answer.status == 204, answer


async def test_a_topic_that_nobody_uses_is_deleted_after_its_time(idle: Idle) -> None:
    await idle.topic()
    await idle.passes(LIMIT_S - 1)
    assert await idle.exists()
    await idle.passes(1)
    assert not await idle.exists()


async def test_who_was_there_in_between_begins_the_time_anew(idle: Idle) -> None:
    topic = await idle.topic()
    await idle.passes(LIMIT_S - 1)
    producer = idle.broker.producer(topic, RecordingPeer())
    await idle.passes(LIMIT_S)
    producer.detach()
    await idle.passes(LIMIT_S - 1)
    assert await idle.exists()
    await idle.passes(1)
    assert not await idle.exists()


async def test_who_was_there_between_two_checks_begins_the_time_anew(idle: Idle) -> None:
    topic = await idle.topic()
    maintenance = idle.broker.service.maintenance
    await maintenance.check_inactive_topics()
    for visit in (
        lambda: idle.broker.producer(topic, RecordingPeer()),
        lambda: idle.broker.consumer_on(topic.registry.non_durable("r", EARLIEST), RecordingPeer(), "Exclusive"),
    ):
        idle.now_ms += (LIMIT_S - 1) * 1000
        visit().detach()
        idle.now_ms += 1000
        await maintenance.check_inactive_topics()
        assert await idle.exists(), "it was used a second ago"
    idle.now_ms += (LIMIT_S - 1) * 1000
    await maintenance.check_inactive_topics()
    assert not await idle.exists()


async def test_a_subscription_keeps_its_topic_unless_only_backlogs_shall(idle: Idle) -> None:
    peer = RecordingPeer()
    topic = await idle.topic()
    consumer = await idle.broker.consumer(topic, "s", peer)
    positions = await idle.broker.publish(topic, 2)
    await idle.passes(LIMIT_S)
    await set_policy(idle, NAMESPACE, CAUGHT_UP, LIMIT_S)
    await idle.broker.until(lambda: len(peer.delivered) == 2)
    acknowledge(consumer, positions[:1])
    consumer.detach()
    await idle.passes(LIMIT_S)
    assert await idle.exists()  # A message is left.
    consumer = await idle.broker.consumer(topic, "s", peer)
    acknowledge(consumer, positions)
    await idle.passes(LIMIT_S)
    assert await idle.exists()  # A consumer is there.
    consumer.detach()
    await idle.passes(LIMIT_S)
    assert not await idle.exists()


async def test_the_policy_of_the_topic_wins_over_those_of_namespace_and_broker(idle: Idle) -> None:
    for name in ("kept", "goes", "soon"):
        await idle.topic(name)
    await set_policy(idle, NAMESPACE, NO_SUBSCRIPTIONS, 10 * LIMIT_S)
    await set_policy(idle, "/persistent/public/default/soon", NO_SUBSCRIPTIONS, 1)
    await set_policy(idle, "/persistent/public/default/kept", NO_SUBSCRIPTIONS, 1, deletes=False)
    await idle.passes(LIMIT_S)
    assert [await idle.exists(name) for name in ("kept", "goes", "soon")] == [True, True, False]
    await idle.passes(10 * LIMIT_S)
    assert [await idle.exists(name) for name in ("kept", "goes")] == [True, False]


async def test_messages_that_are_to_be_retained_keep_their_topic(idle: Idle) -> None:
    await idle.topic()
    answer = await idle.broker.rest(
        "POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
    )
    assert answer.status == 204, answer
    await idle.passes(LIMIT_S)
    assert await idle.exists()
    await idle.passes(5 * 60)
    assert not await idle.exists()


async def test_topics_of_the_broker_itself_stay(idle: Idle) -> None:
    await idle.topic("__change_events")
    await idle.passes(10 * LIMIT_S)
    assert await idle.exists("__change_events")


async def test_where_deletion_is_off_nothing_goes() -> None:
    async with memory_broker(broker_delete_inactive_topics_enabled=False) as broker:
        await broker.topic("t")
        broker.service.runtime.clock.monotonic_ms = lambda: 1e12  # type: ignore[method-assign]
        await broker.service.maintenance.check_inactive_topics()
        await broker.service.maintenance.check_inactive_topics()
        assert await broker.service.directory.exists(TopicName.parse("t"))


async def test_who_comes_while_a_topic_is_being_deleted_gets_a_fresh_one(idle: Idle) -> None:
    topic = await idle.topic()
    before = await idle.broker.publish(topic, 1)
    await idle.broker.service.maintenance.check_inactive_topics()
    idle.now_ms += LIMIT_S * 1000
    checking = asyncio.ensure_future(idle.broker.service.maintenance.check_inactive_topics())
    await idle.broker.until(lambda: topic.is_fenced)
    with pytest.raises(ServiceNotReady):
        idle.broker.producer(topic, RecordingPeer())
    fresh = await idle.topic()
    await checking
    assert fresh is not topic
    (after,) = await idle.broker.publish(fresh, 1)
    assert after > before[0]
    assert await idle.exists()


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_partitioned_topic_is_forgotten_with_its_last_partition_if_so_configured(
    monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    async with memory_broker(broker_delete_inactive_partitioned_topic_metadata_enabled=forgets) as broker:
        idle = Idle(broker)
        monkeypatch.setattr(broker.service.runtime.clock, "monotonic_ms", lambda: idle.now_ms)
        assert (await broker.rest("PUT", "/persistent/public/default/p/partitions", 2)).status == 204
        used = await idle.topic("p-partition-1")
        producer = broker.producer(used, RecordingPeer())
        await idle.topic("p-partition-0")
        await idle.passes(LIMIT_S)
        assert not await idle.exists("p-partition-0")
        assert broker.service.partitioned.get(TopicName.parse("p")) is not None
        producer.detach()
        await idle.passes(LIMIT_S)
        assert not await idle.exists("p-partition-1")
        assert (broker.service.partitioned.get(TopicName.parse("p")) is None) == forgets
