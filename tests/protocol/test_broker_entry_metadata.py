"""What the broker adds to entries: on the wire, over REST, over a kill, in expiry and searches by time."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.memory_broker import START_MS, MemoryBroker, memory_broker, stored_subscription
from tests.support.raw_client import NOTHING, RawClient, Type
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import call

from pybroker.broker.context.added_entry_metadata import added_metadata
from pybroker.config import ConfigError
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.broker_entry_metadata import broker_metadata

INDEX = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
TIMESTAMP = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"
ADDED = {"brokerEntryMetadataInterceptors": f"{INDEX},{TIMESTAMP}"}
NAME = "persistent://public/default/t"
PATH = "/persistent/public/default/t"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        **ADDED,
        "exposingBrokerEntryMetadataToClientEnabled": "true",
        "activeConsumerFailoverDelayTimeMillis": "0",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings).running() as running:
        yield running


def connected(broker: BrokerProcess, *, wants_metadata: bool = True) -> RawClient:
    raw = RawClient(broker.url)
    raw.connect(feature_flags=pb.FeatureFlags(supports_broker_entry_metadata=wants_metadata))
    return raw


def received(raw: RawClient, topic: str, count: int, **options: Any) -> list[dict[str, Any]]:
    """The first `count` entries of `topic`, for a reader of its own."""
    start = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    raw.subscribe(topic, 99, durable=False, subscription="look", start_message_id=start, **options)
    raw.send(Type.FLOW, consumer_id=99, messagePermits=1000)
    messages = [raw.reply() for _ in range(count)]
    raw.request(Type.CLOSE_CONSUMER, consumer_id=99)
    return messages


def indexes(messages: list[dict[str, Any]]) -> list[int]:
    return [int(message["entry_metadata"]["index"]) for message in messages]


def test_whoever_asks_sees_time_and_index_in_front_of_the_message(broker: BrokerProcess) -> None:
    raw = connected(broker)
    raw.open_producer(NAME)
    before_ms = int(time.time() * 1000)
    raw.publish(1, 2)
    raw.send_message(1, 2, batch=[b"a", b"b", b"c"])
    raw.reply()
    raw.publish(1, 1, first=5)
    messages = received(raw, NAME, 4)
    assert indexes(messages) == [0, 1, 4, 5], "a batch has the index of its last message"
    for message in messages:
        assert before_ms <= int(message["entry_metadata"]["broker_timestamp"]) <= time.time() * 1000
        assert message["checksum"] == "good"
    raw.close()


def test_whoever_does_not_ask_gets_the_message_as_it_was_sent(broker: BrokerProcess) -> None:
    topic = f"{NAME}-plain"
    with_it, without = connected(broker), connected(broker, wants_metadata=False)
    with_it.open_producer(topic)
    with_it.publish(1, 2)
    for message in received(without, topic, 2):
        assert "entry_metadata" not in message
        assert message["checksum"] == "good"
    for message in received(with_it, topic, 2):
        assert "entry_metadata" in message
    with_it.close()
    without.close()


def test_nobody_sees_it_unless_the_broker_may_show_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, ADDED).running() as broker:
        raw = connected(broker)
        raw.open_producer(NAME)
        raw.publish(1, 1)
        assert "entry_metadata" not in received(raw, NAME, 1)[0]
        raw.close()


def test_the_index_goes_on_where_it_was_whatever_happens(tmp_path: Path) -> None:
    shown = {"exposingBrokerEntryMetadataToClientEnabled": "true"}
    broker = BrokerProcess(tmp_path, {**ADDED, **shown}).start()
    path = f"{broker.http_url}/admin/v2{PATH}"

    def publish(batch: int = 1) -> None:
        raw = connected(broker)
        raw.open_producer(NAME)
        raw.send_message(1, 0, batch=[b"x"] * batch)
        assert raw.reply()["type"] == "SEND_RECEIPT"
        raw.close()

    publish(3)
    broker.restart_after_kill()
    publish()
    assert broker.stop() == 0
    broker.start()
    publish(2)
    assert call(f"{path}/unload", "PUT").status == 204
    publish()
    # Entries without an index come in between, and the process is killed with them as the last ones.
    broker.kill()
    broker.settings = shown
    broker.start()
    publish(5)
    broker.restart_after_kill()
    publish(5)
    broker.kill()
    broker.settings = {**ADDED, **shown}
    broker.start()
    publish(2)
    raw = connected(broker)
    found = [int(m["entry_metadata"]["index"]) if "entry_metadata" in m else None for m in received(raw, NAME, 7)]
    assert found == [2, 3, 5, 6, None, None, 8]
    raw.close()
    assert broker.stop() == 0


# --- without a process --------------------------------------------------------------------------------------------------


def names(*interceptors: str) -> dict[str, Any]:
    return {"broker_entry_metadata_interceptors": interceptors}


async def stored(broker: MemoryBroker, positions: list[Position]) -> list[tuple[int | None, int | None]]:
    topic = await broker.topic(NAME)
    runs = [await topic.ledger.read(position, 1, 1) for position in positions]
    return [((found := broker_metadata(run.payloads[0])).timestamp_ms, found.index) for run in runs]


def headers_of(url: str) -> Message:
    with urllib.request.urlopen(url, timeout=10) as answer:
        headers: Message = answer.headers
        return headers


async def test_each_of_both_may_be_added_alone() -> None:
    async with memory_broker(**names(INDEX)) as broker:
        positions = await broker.publish(await broker.topic(NAME), 2, messages_each=2)
        assert await stored(broker, positions) == [(None, 1), (None, 3)]
    async with memory_broker(**names("AppendBrokerTimestampMetadataInterceptor")) as broker:
        positions = await broker.publish(await broker.topic(NAME), 2)
        assert await stored(broker, positions) == [(START_MS, None)] * 2
        assert (await broker.rest("GET", f"{PATH}/getMessageIdByIndex?index=0")).status == 412


async def test_the_index_goes_on_after_everything_is_trimmed() -> None:
    async with memory_broker(LedgerLimits(max_entries_per_ledger=3, min_rollover_ms=0), **names(INDEX)) as broker:
        topic = await broker.topic(NAME)
        await broker.publish(topic, 3)
        await broker.until(lambda: not topic.ledger.ledgers.entry_count)
        assert (await broker.rest("PUT", f"{PATH}/unload")).status == 204
        topic = await broker.topic(NAME)
        await topic.subscription("keep", True, True, {})
        assert await stored(broker, await broker.publish(topic, 1)) == [(None, 3)]
        assert (await broker.rest("GET", f"{PATH}/properties")).json == {}, "it is no property of the topic"


async def test_messages_that_are_not_stored_take_no_index() -> None:
    async with memory_broker(**names(INDEX)) as broker:
        topic = await broker.topic(NAME)
        await broker.publish(topic, 2)
        topic.ledger.is_write_failed = True
        with pytest.raises(AssertionError):
            await broker.publish(topic, 2)
        topic.ledger.is_write_failed = False
        assert await stored(broker, await broker.publish(topic, 1)) == [(None, 2)]


async def test_rest_shows_it_and_finds_messages_by_index() -> None:
    limits = LedgerLimits(max_entries_per_ledger=2, min_rollover_ms=0)
    async with memory_broker(limits, **names(INDEX, TIMESTAMP)) as broker:
        topic = await broker.topic(NAME)
        await topic.subscription("keep", True, True, {})
        assert (await broker.rest("GET", f"{PATH}/getMessageIdByIndex?index=0")).status == 404
        positions = [*await broker.publish(topic, 3), *await broker.publish(topic, 2, messages_each=3)]
        for index, entry in [(0, 0), (1, 1), (2, 2), (3, 3), (5, 3), (6, 4), (8, 4)]:
            found = (await broker.rest("GET", f"{PATH}/getMessageIdByIndex?index={index}")).json
            assert (found["ledgerId"], found["entryId"]) == positions[entry], index
        for query, status in (("?index=9", 404), ("?index=-1", 404), ("?index=x", 404), ("", 200)):
            assert (await broker.rest("GET", f"{PATH}/getMessageIdByIndex{query}")).status == status
        headers = await asyncio.to_thread(headers_of, broker.url(f"{PATH}/subscription/keep/position/5"))
        assert headers["X-Pulsar-Broker-Entry-METADATA-index"] == "8"
        assert headers["X-Pulsar-Broker-Entry-METADATA-timestamp"] == "2023-11-14T22:13:20Z"


async def test_expiry_and_searches_by_time_go_by_the_brokers_clock() -> None:
    async with memory_broker(**names(TIMESTAMP)) as broker:
        topic = await broker.topic(NAME)
        consumer = await broker.consumer(topic, "s", RecordingPeer())
        now_ms = broker.clock.now_ms
        early = await broker.publish(topic, 1, publish_time_ms=now_ms + 3_600_000)
        broker.clock.now_ms += 10_000
        late = await broker.publish(topic, 1, publish_time_ms=1)
        for time_ms, expected in ((now_ms - 1, early[0]), (now_ms + 1, late[0])):
            found = (await broker.rest("GET", f"{PATH}/messageid/{time_ms}")).json
            assert (found["ledgerId"], found["entryId"]) == expected
        assert (await broker.rest("POST", f"{PATH}/subscription/s/expireMessages/5")).status == 204
        assert stored_subscription(consumer.subscription).cursor.state.nth_undeleted(1) == late[0]


def test_a_name_that_is_none_is_refused() -> None:
    assert added_metadata(()) is None
    with pytest.raises(ConfigError, match="Nonsense"):
        added_metadata((INDEX, "org.example.Nonsense"))


# --- markers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared"])
def test_markers_are_acknowledged_and_never_delivered(broker: BrokerProcess, kind: str) -> None:
    topic = f"{NAME}-markers-{kind}"
    raw = connected(broker)
    raw.open_producer(topic)
    raw.subscribe(topic, sub_type=kind)
    raw.publish(1, 1)
    raw.send_message(1, 1, b"marker", metadata={"marker_type": 10})
    raw.send_message(1, 2, b"marker", metadata={"marker_type": 12}, marker=True)
    assert [raw.reply()["type"] for _ in range(2)] == ["SEND_RECEIPT"] * 2
    raw.publish(1, 1, first=3)
    raw.send_message(1, 4, b"marker", metadata={"marker_type": 11})
    raw.reply()
    raw.send(Type.FLOW, consumer_id=1, messagePermits=2)
    payloads = [reply["payload"] for reply in raw.replies(0.2) if reply["type"] == "MESSAGE"]
    assert payloads == ["m0", "m3"], "a marker costs no permit"
    last = raw.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1)["last_message_id"]
    assert last["entryId"] == "3", "nobody waits for a marker"
    path = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}"
    raw.send(Type.FLOW, consumer_id=1, messagePermits=1)
    assert raw.reply(0.2) == NOTHING
    assert call(f"{path}/stats", "GET").json["subscriptions"]["sub"]["msgBacklog"] == 2
    raw.close()


def test_markers_from_before_a_restart_are_not_delivered_either(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path).running() as broker:
        raw = connected(broker)
        raw.open_producer(NAME)
        raw.subscribe(NAME)
        raw.send_message(1, 0, b"marker", metadata={"marker_type": 10})
        raw.reply()
        raw.publish(1, 1, first=1)
        raw.close()
        broker.restart_after_kill()
        raw = connected(broker)
        raw.subscribe(NAME)
        raw.send(Type.FLOW, consumer_id=1, messagePermits=10)
        assert raw.reply()["payload"] == "m1"
        raw.close()
