"""Messages and their ids over REST: by place in a backlog, by place in a topic, by id, by time."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from email.message import Message

import pytest
from tests.support.memory_broker import PAYLOAD, START_MS, MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.topic.topic import Topic
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.model.position import Position

NAME = "persistent://public/default/t"
PATH = "/persistent/public/default/t"


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    # Three entries fill a ledger, so that places are counted across ledgers.
    async with memory_broker(LedgerLimits(max_entries_per_ledger=3, min_rollover_ms=0)) as running:
        yield running


async def shown(broker: MemoryBroker, path: str) -> tuple[Message, bytes]:
    """Headers and body of a message."""

    def get() -> tuple[Message, bytes]:
        with urllib.request.urlopen(broker.url(path), timeout=10) as answer:
            return answer.headers, answer.read()

    return await asyncio.to_thread(get)


async def kept(broker: MemoryBroker) -> Topic:
    """The topic, with a subscription that wants all of it."""
    topic = await broker.topic(NAME)
    await topic.subscription("keep", True, True, {})
    return topic


async def id_shown(broker: MemoryBroker, path: str) -> str:
    headers, _ = await shown(broker, path)
    return str(headers["X-Pulsar-Message-ID"])


async def test_a_peek_goes_by_what_is_not_acknowledged(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    positions = await broker.publish(topic, 7)
    acknowledge(consumer, [positions[0], positions[2], positions[4]])
    for number, index in enumerate((1, 3, 5, 6), 1):
        assert await id_shown(broker, f"{PATH}/subscription/s/position/{number}") == str(positions[index])
    for place, status in ((5, 404), (10**30, 404), (0, 412), (-1, 412), ("x", 404)):
        assert (await broker.rest("GET", f"{PATH}/subscription/s/position/{place}")).status == status
    assert topic.subscriptions["s"].cursor.backlog_entries == 4


async def test_a_peek_by_a_subscription_that_is_not_there_shows_the_topic_and_makes_none(broker: MemoryBroker) -> None:
    topic = await kept(broker)
    positions = await broker.publish(topic, 4)
    assert await id_shown(broker, f"{PATH}/subscription/none/position/4") == str(positions[3])
    assert list(topic.subscriptions) == ["keep"]


async def test_the_body_is_the_payload_and_headers_are_the_metadata(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    (position,) = await broker.publish(topic, 1, keys=["k"], messages_each=3)
    headers, body = await shown(broker, f"{PATH}/ledger/{position.ledger_id}/entry/{position.entry_id}")
    assert body == PAYLOAD
    assert headers["Content-Type"] == "application/json"
    assert {name: value for name, value in headers.items() if name.startswith("X-Pulsar-")} == {
        "X-Pulsar-Message-ID": str(position),
        "X-Pulsar-PROPERTY": "{}",
        "X-Pulsar-publish-time": "2023-11-14T22:13:20Z",
        "X-Pulsar-num-batch-message": "3",
        "X-Pulsar-batch-size": "84",
        "X-Pulsar-Is-Encrypted": "false",
        "X-Pulsar-producer-name": "p",
        "X-Pulsar-sequence-id": "0",
        "X-Pulsar-partition-key": "k",
        "X-Pulsar-txn-uncommitted": "false",
    }


async def test_a_message_is_found_by_its_id(broker: MemoryBroker) -> None:
    topic = await kept(broker)
    positions = await broker.publish(topic, 7)
    for position in positions:
        path = f"{PATH}/ledger/{position.ledger_id}/entry/{position.entry_id}"
        assert await id_shown(broker, path) == str(position)
    ledger_id = positions[-1].ledger_id
    for path in (f"{ledger_id}/entry/99", f"{ledger_id}/entry/-1", f"{10**30}/entry/0", "-1/entry/-1", "x/entry/0"):
        assert (await broker.rest("GET", f"{PATH}/ledger/{path}")).status == 404


async def test_a_topic_is_examined_from_both_ends_acknowledged_or_not(broker: MemoryBroker) -> None:
    topic = await kept(broker)
    assert (await broker.rest("GET", f"{PATH}/examinemessage")).status == 412, "it is empty"
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    positions = await broker.publish(topic, 5)
    acknowledge(consumer, positions)
    for query, index in (
        ("", 4),
        ("initialPosition=earliest", 0),
        ("initialPosition=earliest&messagePosition=2", 1),
        ("initialPosition=earliest&messagePosition=99", 4),
        ("initialPosition=latest&messagePosition=2", 3),
        ("initialPosition=latest&messagePosition=5", 0),
        ("initialPosition=latest&messagePosition=0", 4),
        ("initialPosition=latest&messagePosition=-7", 4),
    ):
        assert await id_shown(broker, f"{PATH}/examinemessage?{query}") == str(positions[index]), query
    assert (await broker.rest("GET", f"{PATH}/examinemessage?messagePosition=6")).status == 404
    assert (await broker.rest("GET", f"{PATH}/examinemessage?messagePosition=x")).status == 404


async def test_message_ids_are_found_by_publish_time(broker: MemoryBroker) -> None:
    topic = await kept(broker)
    first = await broker.publish(topic, 2)
    broker.clock.now_ms += 1000
    second = await broker.publish(topic, 2)
    last = second[-1]
    for time_ms, expected in (
        (0, Position(-1, -1)),
        (1, first[0]),
        (START_MS, first[0]),
        (START_MS + 1, second[0]),
        (START_MS + 1001, Position(last.ledger_id, last.entry_id + 1)),
    ):
        found = (await broker.rest("GET", f"{PATH}/messageid/{time_ms}")).json
        assert (found["ledgerId"], found["entryId"]) == expected, time_ms
        assert (found["partitionIndex"], found["batchIndex"], found["batchSize"]) == (-1, -1, 0)


async def test_the_last_message_id_names_a_message_in_a_batch(broker: MemoryBroker) -> None:
    topic = await broker.topic(NAME)
    assert (await broker.rest("GET", f"{PATH}/lastMessageId")).json["entryId"] == -1
    (position,) = await broker.publish(topic, 1)
    plain = {"partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    expected = {"ledgerId": position.ledger_id, "entryId": position.entry_id, **plain}
    assert (await broker.rest("GET", f"{PATH}/lastMessageId")).json == expected
    (position,) = await broker.publish(topic, 1, messages_each=3)
    in_batch = {**plain, "batchIndex": 2, "outstandingAcksInSameBatch": 0, "originalBatchSize": 0}
    expected = {"ledgerId": position.ledger_id, "entryId": position.entry_id, **in_batch}
    assert (await broker.rest("GET", f"{PATH}/lastMessageId")).json == expected


async def test_ids_of_a_partition_name_it(broker: MemoryBroker) -> None:
    assert (await broker.rest("PUT", f"{PATH}/partitions", 2)).status == 204
    for path in ("messageid/0", "messageid/1", "lastMessageId"):
        assert (await broker.rest("GET", f"{PATH}-partition-1/{path}")).json["partitionIndex"] == 1


async def test_there_is_no_message_id_by_index(broker: MemoryBroker) -> None:
    await broker.topic(NAME)
    assert (await broker.rest("GET", f"{PATH}/getMessageIdByIndex?index=0")).status == 412


@pytest.mark.parametrize("path", ["subscription/s/position/1", "examinemessage", "ledger/1/entry/0", "messageid/1"])
async def test_only_one_topic_that_is_there_and_persistent_has_messages_to_show(
    broker: MemoryBroker, path: str
) -> None:
    assert (await broker.rest("GET", f"{PATH}/{path}")).status == 404
    assert (await broker.rest("GET", f"/persistent/public/missing/t/{path}")).status == 404
    assert (await broker.rest("GET", f"/non-persistent/public/default/t/{path}")).status == 404
    await broker.rest("PUT", f"{PATH}/partitions", 2)
    assert (await broker.rest("GET", f"{PATH}/{path}")).status == 405


async def test_what_was_trimmed_is_not_found(broker: MemoryBroker) -> None:
    topic = await kept(broker)
    positions = await broker.publish(topic, 7)
    assert (await broker.rest("DELETE", f"{PATH}/truncate")).status == 204
    assert (await broker.rest("GET", f"{PATH}/ledger/{positions[0].ledger_id}/entry/0")).status == 404


async def test_messages_of_a_topic_that_is_not_loaded_are_shown(broker: MemoryBroker) -> None:
    positions = await broker.publish(await kept(broker), 2)
    assert (await broker.rest("PUT", f"{PATH}/unload")).status == 204
    assert await id_shown(broker, f"{PATH}/examinemessage") == str(positions[1])
