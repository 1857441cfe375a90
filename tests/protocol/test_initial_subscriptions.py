"""What a client creates before the first message: initial subscriptions of producers, and lookups that create nothing."""

from __future__ import annotations

from tests.support.async_client import AsyncClient, Type, binary_port
from tests.support.memory_broker import MemoryBroker, memory_broker

from pybroker.broker.topic.topic import Topic
from pybroker.wire import pulsar_api_pb2 as pb

NAME = "persistent://public/default/t"
PATH = "/persistent/public/default"


async def test_initial_subscription_is_refused_without_automatic_creation() -> None:
    async with memory_broker(allow_auto_subscription_creation=False) as broker, binary_port(broker) as port:
        client = await port.connect()
        refused = await client.request(Type.PRODUCER, topic=NAME, producer_id=1, initial_subscription_name="keeper")
        assert (refused["type"], refused["error"]) == ("ERROR", "NotAllowedError")
        assert (await broker.rest("PUT", f"{PATH}/t/subscription/keeper")).status == 204
        made = await client.request(Type.PRODUCER, topic=NAME, producer_id=2, initial_subscription_name="keeper")
        assert made["type"] == "PRODUCER_SUCCESS"
        topic = await broker.topic(NAME)
        await broker.publish(topic, 1)
        assert topic.subscriptions["keeper"].cursor.backlog_entries == 1


async def test_initial_subscription_begins_at_first_message(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient]
) -> None:
    client = clients[0]
    await broker.publish(topic, 2)
    await client.request(Type.PRODUCER, topic=NAME, producer_id=2, initial_subscription_name="late")
    position = pb.CommandSubscribe.Latest
    await client.answer(client.subscribe(NAME, subscription="late", initialPosition=position))
    client.send(Type.FLOW, consumer_id=1, messagePermits=10)
    assert [(await client.next())["message_id"]["entryId"] for _ in range(2)] == ["0", "1"]


async def test_lookup_of_retry_and_dead_letter_topics_creates_none(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient]
) -> None:
    """A Java consumer with a retry policy asks about its retry and dead-letter topics before it needs them."""
    client = clients[0]
    await client.answer(client.subscribe(NAME))
    for name in (f"{NAME}-s-RETRY", f"{NAME}-s-DLQ"):
        answer = await client.request(Type.PARTITIONED_METADATA, topic=name, metadata_auto_creation_enabled=False)
        assert (answer["response"], answer["error"]) == ("Failed", "TopicNotFound")
        assert (await client.request(Type.LOOKUP, topic=name))["response"] == "Connect"
    assert (await broker.rest("GET", PATH)).json == [NAME]
