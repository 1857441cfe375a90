"""Consumers of hash ranges on Exclusive subscriptions: only the Java client subscribes like this."""

from __future__ import annotations

import pytest
from tests.support.async_client import AsyncClient, Type
from tests.support.memory_broker import MemoryBroker

from pybroker.broker.topic.topic import Topic
from pybroker.dispatch.selectors.hash_selector import fold_into_ranges
from pybroker.model.hashing import key_hash
from pybroker.wire import pulsar_api_pb2 as pb

NAME = "persistent://public/default/t"
FROM_THE_BEGINNING = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)


def sticky(*ranges: tuple[int, int]) -> pb.KeySharedMeta:
    found = pb.KeySharedMeta(keySharedMode=pb.KeySharedMode.STICKY)
    for start, end in ranges:
        found.hashRanges.add(start=start, end=end)
    return found


@pytest.mark.parametrize("durable", [False, True])
async def test_readers_of_hash_ranges_divide_topic(
    broker: MemoryBroker, topic: Topic, clients: list[AsyncClient], durable: bool
) -> None:
    keys = [f"k{number}" for number in range(40)]
    await broker.publish(topic, len(keys), keys)
    read: list[set[str]] = []
    for client, (start, end) in zip(clients, [(0, 20_000), (20_001, 65_535)], strict=False):
        answer = await client.answer(
            client.subscribe(
                NAME,
                sub_type="Exclusive",
                durable=durable,
                subscription=f"s{start}",
                keySharedMeta=sticky((start, end)),
                start_message_id=FROM_THE_BEGINNING,
            )
        )
        assert answer["type"] == "SUCCESS"
        client.send(Type.FLOW, consumer_id=1, messagePermits=50)
        expected = [key for key in keys if start <= next(iter(fold_into_ranges([key_hash(key.encode())]))) <= end]
        read.append({(await client.next())["metadata"]["partition_key"] for _ in expected})
        assert read[-1] == set(expected)
        await broker.quiet(topic)
        client.send(Type.PING)
        assert (await client.next())["type"] == "PONG", "nothing else is delivered"
    assert not read[0] & read[1]
    assert read[0] | read[1] == set(keys)
    # The other entries are not for this subscription, and no consumer acknowledges them.
    stats = (await broker.rest("GET", "/persistent/public/default/t/stats")).json["subscriptions"]
    assert stats["s0"]["msgBacklog"] == len(keys)


async def test_overlapping_hash_ranges_are_refused(topic: Topic, clients: list[AsyncClient]) -> None:
    client = clients[0]
    meta = sticky((0, 10), (10, 20))
    answer = await client.answer(client.subscribe(NAME, sub_type="Exclusive", durable=False, keySharedMeta=meta))
    assert answer["error"] == "ConsumerAssignError"
    assert topic.subscriptions == {}
