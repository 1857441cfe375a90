"""ACK and REDELIVER as commands on a connection, and the limits of unacknowledged messages, on a broker in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.async_client import AsyncClient, Type, binary_port
from tests.support.memory_broker import MemoryBroker, memory_broker

from pybroker.broker.topic.topic import Topic
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb

NAME = "persistent://public/default/t"
INDIVIDUAL, CUMULATIVE = pb.CommandAck.Individual, pb.CommandAck.Cumulative


class Consumers:
    """A topic, and connections with consumers of its subscription `s`."""

    def __init__(self, broker: MemoryBroker, topic: Topic, clients: list[AsyncClient]) -> None:
        self.broker = broker
        self.topic = topic
        self.clients = clients

    async def subscribe(
        self, consumer_id: int = 1, sub_type: str = "Shared", permits: int = 100, connection: int = 0, **fields: Any
    ) -> None:
        client = self.clients[connection]
        answer = await client.answer(client.subscribe(NAME, consumer_id, sub_type, **fields))
        assert answer["type"] == "SUCCESS", answer
        self.flow(permits, consumer_id, connection)

    def flow(self, permits: int, consumer_id: int = 1, connection: int = 0) -> None:
        if permits:
            self.clients[connection].send(Type.FLOW, consumer_id=consumer_id, messagePermits=permits)

    async def replies(self, connection: int = 0) -> list[dict[str, Any]]:
        """All commands that the broker sends until it has nothing more to do."""
        client = self.clients[connection]
        found = []
        for _ in range(2):  # The first PONG shows that the broker has read what was sent before.
            client.send(Type.PING)
            while (reply := await client.next())["type"] != "PONG":
                found.append(reply)
            await self.broker.quiet(self.topic)
        return found

    async def delivered(self, connection: int = 0) -> list[int]:
        """The entry ids of the messages among the replies."""
        return [int(each["message_id"]["entryId"]) for each in await self.replies(connection)]

    async def redelivered(self) -> list[int]:
        """The entry ids that the consumer receives after it has asked for everything again."""
        self.clients[0].send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
        return sorted(await self.delivered())

    async def ack(self, *positions: Position, consumer_id: int = 1, connection: int = 0, **fields: Any) -> str | None:
        """Acknowledge with a request id. Return the error of the answer."""
        fields = {"ack_type": INDIVIDUAL, **fields}
        answer = await self.clients[connection].request(
            Type.ACK, consumer_id=consumer_id, message_id=[message_id(each) for each in positions], **fields
        )
        assert answer["type"] == "ACK_RESPONSE"
        return answer.get("error")

    def ack_without_receipt(self, *positions: Position, **fields: Any) -> None:
        fields = {"ack_type": INDIVIDUAL, "consumer_id": 1, **fields}
        self.clients[0].send(Type.ACK, message_id=[message_id(each) for each in positions], **fields)


def message_id(position: Position) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)


@asynccontextmanager
async def consumers_of(broker: MemoryBroker) -> AsyncIterator[Consumers]:
    async with binary_port(broker) as port:
        yield Consumers(broker, await broker.topic(NAME), [await port.connect() for _ in range(2)])


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Consumers]:
    async with memory_broker(**settings) as broker, consumers_of(broker) as consumers:
        yield consumers


@pytest.fixture
async def consumers(broker: MemoryBroker) -> AsyncIterator[Consumers]:
    async with consumers_of(broker) as found:
        yield found


# --- who may acknowledge which messages, and the answer --------------------------------------------------------------------


@pytest.mark.parametrize("sub_type", ["Shared", "Key_Shared"])
async def test_cumulative_ack_on_shared_subscription_is_refused_without_effect(
    consumers: Consumers, sub_type: str
) -> None:
    positions = await consumers.broker.publish(consumers.topic, 3)
    await consumers.subscribe(sub_type=sub_type)
    assert await consumers.delivered() == [0, 1, 2]
    assert await consumers.ack(positions[2], ack_type=CUMULATIVE) == "NotAllowedError"
    consumers.ack_without_receipt(positions[2], ack_type=CUMULATIVE)
    assert await consumers.replies() == []
    assert await consumers.redelivered() == [0, 1, 2]


async def test_one_ack_acknowledges_many_ids_in_any_order(consumers: Consumers) -> None:
    positions = await consumers.broker.publish(consumers.topic, 6)
    await consumers.subscribe()
    await consumers.delivered()
    assert await consumers.ack(positions[1], positions[4], positions[2]) is None
    assert await consumers.redelivered() == [0, 3, 5]


async def test_ack_of_entry_of_other_consumer_or_no_entry_succeeds(consumers: Consumers) -> None:
    """Delivered to another consumer, acknowledged before, and not existing."""
    positions = await consumers.broker.publish(consumers.topic, 3)
    await consumers.subscribe()
    await consumers.delivered()
    await consumers.subscribe(2, permits=0)
    assert await consumers.ack(positions[0], consumer_id=2) is None
    assert await consumers.ack(positions[0]) is None
    missing = Position(positions[0].ledger_id + 1000, 0)
    assert await consumers.ack(missing, Position(positions[0].ledger_id, 50)) is None
    assert await consumers.redelivered() == [1, 2]


async def test_entry_acknowledged_before_delivery_is_not_delivered(consumers: Consumers) -> None:
    positions = await consumers.broker.publish(consumers.topic, 3)
    await consumers.subscribe(permits=0)
    assert await consumers.ack(positions[1]) is None
    consumers.flow(100)
    assert await consumers.delivered() == [0, 2]


async def test_ack_of_unknown_consumer_is_answered_only_with_request_id(consumers: Consumers) -> None:
    some = Position(1, 1)
    assert await consumers.ack(some, consumer_id=77) == "ConsumerNotFound"
    consumers.ack_without_receipt(some, consumer_id=77)
    assert await consumers.replies() == []


async def test_ack_with_validation_error_acknowledges_and_is_logged_once(
    consumers: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    positions = await consumers.broker.publish(consumers.topic, 3)
    await consumers.subscribe(consumer_name="picky")
    await consumers.delivered()
    error = pb.CommandAck.DecryptionError
    properties = [pb.KeyLongValue(key="k", value=1)]
    assert await consumers.ack(positions[0], validation_error=error, properties=properties) is None
    consumers.ack_without_receipt(positions[1], validation_error=error)
    assert await consumers.redelivered() == [2]
    (record,) = [each for each in caplog.records if each.getMessage() == "messages.unreadable"]
    fields = vars(record)["fields"]
    assert (fields["error"], fields["consumer"]) == ("DecryptionError", "picky")


# --- parts of batches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_kept", "left"), [(True, 0b0101), (False, None)])
async def test_ack_of_part_of_batch_survives_unload_only_with_batch_index_acks(is_kept: bool, left: int | None) -> None:
    async with running(acknowledgment_at_batch_index_level_enabled=is_kept) as consumers:
        single = await consumers.broker.publish(consumers.topic, 6)
        (batch,) = await consumers.broker.publish(consumers.topic, 1, messages_each=4)
        await consumers.subscribe()
        assert await consumers.delivered() == list(range(7))
        ids = [message_id(single[4]), message_id(batch)]
        ids[1].ack_set.append(0b0101)
        answer = await consumers.clients[0].request(Type.ACK, consumer_id=1, ack_type=INDIVIDUAL, message_id=ids)
        assert "error" not in answer
        await consumers.broker.service.topics.unload(consumers.topic)
        assert [each["type"] for each in await consumers.replies()] == ["CLOSE_CONSUMER"]
        consumers.topic = await consumers.broker.topic(NAME)
        await consumers.subscribe()
        again = await consumers.replies()
        assert [int(each["message_id"]["entryId"]) for each in again] == [0, 1, 2, 3, 5, 6]
        assert [int(word) for word in again[-1].get("ack_set", [])] == ([] if left is None else [left])


# --- delivered again -------------------------------------------------------------------------------------------------------


async def test_delivery_counts_when_connection_of_consumer_ends(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    await broker.publish(topic, 1)
    async with binary_port(broker) as port:
        for expected in range(3):
            client = await port.connect()
            await client.answer(client.subscribe(NAME))
            client.send(Type.FLOW, consumer_id=1, messagePermits=1)
            assert int((await client.next()).get("redelivery_count", 0)) == expected
            await client.close()
            await broker.until(lambda: not topic.subscriptions["s"].consumers)


async def test_messages_carry_highest_consumer_epoch_requested(consumers: Consumers) -> None:
    await consumers.broker.publish(consumers.topic, 1)
    await consumers.subscribe(sub_type="Exclusive", consumer_epoch=3)
    await consumers.replies()
    for requested, carried in ((5, "5"), (4, "5"), (6, "6")):
        consumers.clients[0].send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, consumer_epoch=requested)
        (message,) = await consumers.replies()
        assert message["consumer_epoch"] == carried


# --- limits and permits ----------------------------------------------------------------------------------------------------


async def test_consumer_at_unacked_limit_resumes_at_half_of_it() -> None:
    async with running(max_unacked_messages_per_consumer=10) as consumers:
        positions = await consumers.broker.publish(consumers.topic, 30)
        await consumers.subscribe()
        assert await consumers.delivered() == list(range(10))
        assert await consumers.ack(*positions[:4]) is None
        assert await consumers.delivered() == []
        consumers.ack_without_receipt(positions[4])
        assert len(await consumers.delivered()) == 5


async def test_subscription_at_unacked_limit_resumes_at_half_of_it() -> None:
    async with running(max_unacked_messages_per_subscription=10) as consumers:
        positions = await consumers.broker.publish(consumers.topic, 30)
        for consumer_id in (1, 2):
            await consumers.subscribe(consumer_id, permits=0)
        for consumer_id in (1, 2):
            consumers.flow(100, consumer_id)
        delivered = await consumers.delivered()
        assert len(delivered) == 10
        consumers.ack_without_receipt(*[positions[entry_id] for entry_id in delivered[:5]])
        assert len(await consumers.delivered()) == 5


async def test_at_broker_unacked_limit_only_subscriptions_above_their_share_stop() -> None:
    limits = {"max_unacked_messages_per_broker": 20, "max_unacked_messages_per_subscription_on_broker_blocked": 0.25}
    async with running(**limits) as consumers:
        positions = await consumers.broker.publish(consumers.topic, 30)
        await consumers.subscribe(permits=20)
        assert len(await consumers.delivered()) == 20
        consumers.flow(100)
        assert await consumers.delivered() == []
        await consumers.subscribe(permits=3, connection=1, subscription="small")
        small = await consumers.delivered(1)
        assert small == [0, 1, 2]
        assert await consumers.ack(*positions[:12]) is None
        assert await consumers.delivered() == [], "11 are left, more than half of 20, and 8 more than half of its share"
        assert await consumers.ack(*positions[:3], connection=1) is None
        assert len(await consumers.delivered()) == 10, "8 are left: all subscriptions go on"


@pytest.mark.parametrize(("is_precise", "expected"), [(False, 8), (True, 2)])
async def test_exclusive_consumer_permits_count_entries_unless_flow_control_is_precise(
    is_precise: bool, expected: int
) -> None:
    async with running(precise_dispatcher_flow_control=is_precise) as consumers:
        await consumers.broker.publish(consumers.topic, 12, messages_each=5)
        await consumers.subscribe(sub_type="Exclusive", permits=1)
        assert len(await consumers.delivered()) == 1
        consumers.flow(12)
        assert len(await consumers.delivered()) == expected, "8 permits are left of 13"
