"""What goes on while subscriptions are made, moved and deleted: periodic checks, producers, busy connections."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.async_client import AsyncClient, Type, binary_port, waiting
from tests.support.memory_broker import MemoryBroker, memory_broker

from pybroker.broker.topic.topic import Topic

TOPIC = "persistent://public/default/t"


async def test_a_subscription_deleted_during_a_periodic_check_is_no_fault_and_the_others_are_looked_at(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        await topic.subscription(name, True, True, {})
    await broker.publish(topic, 3)
    assert (await broker.rest("POST", "/namespaces/public/default/messageTTL", 10)).status == 204
    broker.clock.now_ms += 60_000
    cursor = topic.ledger.cursors["a"]
    expire = cursor.expire

    async def deleted_meanwhile(publish_time_ms: int) -> int:
        await topic.delete_subscription(topic.subscriptions["a"])
        return await expire(publish_time_ms)

    monkeypatch.setattr(cursor, "expire", deleted_meanwhile)
    await broker.service.maintenance.check_expiry()
    assert set(topic.subscriptions) == {"b"}
    assert topic.subscriptions["b"].backlog_entries == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_messages_expire_in_all_subscriptions_while_one_of_them_is_deleted(
    broker: MemoryBroker, topic: Topic
) -> None:
    for name in ("a", "b"):
        await topic.subscription(name, True, True, {})
    await broker.publish(topic, 3)
    broker.clock.now_ms += 60_000
    async with topic.subscription_lock("a", "being deleted"):
        path = "/persistent/public/default/t/all_subscription/expireMessages/10"
        expiring = asyncio.ensure_future(broker.rest("POST", path))
        await waiting(broker, 1)
        await topic.delete_subscription(topic.subscriptions["a"])
    assert (await expiring).status == 204
    assert topic.subscriptions["b"].backlog_entries == 0


async def test_a_client_that_is_not_read_from_because_of_its_many_requests_is_not_taken_for_dead() -> None:
    settings = {"max_concurrent_requests_per_connection": 3, "connection_liveness_check_timeout_millis": 50}
    async with memory_broker(**settings) as broker, binary_port(broker) as port:  # type: ignore[arg-type]
        topic = await broker.topic(TOPIC)
        busy, other = await port.connect(), await port.connect()
        assert (await busy.answer(busy.subscribe(TOPIC, sub_type="Exclusive")))["type"] == "SUCCESS"
        async with topic.subscription_lock("held", "being held by this test"):
            asked = [busy.subscribe(TOPIC, consumer_id=each, subscription="held") for each in (2, 3, 4)]
            await waiting(broker, 3)
            assert (await other.answer(other.subscribe(TOPIC, sub_type="Exclusive")))["error"] == "ConsumerBusy"
        for request_id in asked:
            assert (await busy.answer(request_id))["type"] == "SUCCESS"


async def test_a_producer_that_meets_the_end_of_a_topic_gets_in_on_the_next_one(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient]
) -> None:
    async with topic.subscription_lock("first", "being held by this test"):
        asked = clients[0].ask(Type.PRODUCER, topic=TOPIC, producer_id=1, initial_subscription_name="first")
        await waiting(broker, 1)
        unloading = asyncio.ensure_future(broker.service.topics.unload(topic))
        await broker.until(lambda: topic.is_fenced)
    await unloading
    assert (await clients[0].answer(asked))["type"] == "PRODUCER_SUCCESS"
    now = await broker.topic(TOPIC)
    assert len(now.producers) == 1
    assert set(now.subscriptions) == {"first"}


async def test_a_producer_id_that_is_closed_and_used_again_while_it_is_set_up_has_one_producer(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient]
) -> None:
    client = clients[0]
    async with topic.subscription_lock("first", "being held by this test"):
        client.ask(Type.PRODUCER, topic=TOPIC, producer_id=1, initial_subscription_name="first")
        await waiting(broker, 1)
        assert (await client.request(Type.CLOSE_PRODUCER, producer_id=1))["type"] == "SUCCESS"
        again = client.ask(Type.PRODUCER, topic=TOPIC, producer_id=1, producer_name="mine")
        assert (await client.request(Type.LOOKUP, topic=TOPIC))["type"] == "LOOKUP_RESPONSE"  # It has read that.
    assert (await client.answer(again))["producer_name"] == "mine"
    assert set(topic.producers) == {"mine"}
    await client.request(Type.CLOSE_PRODUCER, producer_id=1)
    assert not topic.producers
