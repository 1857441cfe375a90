"""What `GET .../stats` says of a topic, compared with what a test did to it, to the last message and byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker, stored_subscription
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.subscription import LOOK_AHEAD_STEP_BYTES
from pybroker.broker.topic.topic import Topic
from pybroker.dispatch.consumer_state import AUTO_SPLIT, KeySharedOptions
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.model.events import SendRun
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb

NAME = "persistent://public/default/stats"
PATH = "/persistent/public/default/stats"
TYPES = ["Exclusive", "Failover", "Shared", "Key_Shared"]
KEYS = [f"k{index}" for index in range(40)]
AT_ONCE = {"active_consumer_failover_delay_time_millis": 0}


async def shown(broker: MemoryBroker, query: str = "") -> Any:
    answer = await broker.rest("GET", f"{PATH}/stats{query}")
    assert answer.status == 200, answer.text
    return answer.json


async def attached(
    topic: Topic, name: str, kind: str, key_shared: KeySharedOptions = AUTO_SPLIT, permits: int = 1000
) -> tuple[Consumer, RecordingPeer]:
    """A consumer of subscription `s`, from the topic's beginning on."""
    peer = RecordingPeer(address="/10.0.0.1:7", client_version="client 1.2")
    subscription = await topic.subscription("s", True, True, {"from": "test"})
    consumer = Consumer(subscription, 1, name, 0, 0, peer, {"of": name}, 1_600_000_000_000, key_shared)
    topic.attach(subscription, consumer, kind)
    consumer.flow(permits)
    return consumer, peer


def received(*peers: RecordingPeer, count: int) -> Callable[[], bool]:
    return lambda: sum(len(peer.delivered) for peer in peers) >= count


@pytest.mark.parametrize("kind", TYPES)
async def test_rates_counters_and_backlog_are_what_was_done(kind: str) -> None:
    async with memory_broker(**AT_ONCE) as broker:  # type: ignore[arg-type]
        topic = await broker.topic(NAME)
        consumer, peer = await attached(topic, "c", kind)
        await broker.end_window(60)
        positions = await broker.publish(topic, 40, KEYS)
        await broker.until(received(peer, count=40))
        acknowledge(consumer, positions[:10] + positions[20:25])
        await broker.end_window(10)
        size_bytes = topic.ledger.size_bytes
        stats = await shown(broker)
        assert (stats["msgInCounter"], stats["bytesInCounter"]) == (40, size_bytes)
        assert (stats["msgOutCounter"], stats["bytesOutCounter"]) == (40, size_bytes)
        assert (stats["msgRateIn"], stats["msgThroughputIn"]) == (4, size_bytes / 10)
        assert (stats["msgRateOut"], stats["msgThroughputOut"]) == (4, size_bytes / 10)
        assert stats["averageMsgSize"] == size_bytes / 40
        assert stats["storageSize"] == size_bytes
        behind = await topic.bytes_behind(positions[9])
        assert stats["backlogSize"] == behind
        subscription = stats["subscriptions"]["s"]
        assert subscription["type"] == kind
        assert (subscription["msgBacklog"], subscription["backlogSize"]) == (25, behind)
        assert subscription["nonContiguousDeletedMessagesRanges"] == 1
        assert subscription["nonContiguousDeletedMessagesRangesSerializedSize"] > 0
        assert (subscription["msgRateOut"], subscription["messageAckRate"]) == (4, 1.5)
        assert subscription["unackedMessages"] == (25 if "Shared" in kind else 0)
        assert subscription["subscriptionProperties"] == {"from": "test"}
        assert subscription.get("activeConsumerName") == (None if "Shared" in kind else "c")
        assert subscription.get("keySharedMode") == ("AUTO_SPLIT" if kind == "Key_Shared" else None)
        (row,) = subscription["consumers"]
        assert (row["msgRateOut"], row["messageAckRate"], row["msgOutCounter"]) == (4, 1.5, 40)
        assert row["unackedMessages"] == subscription["unackedMessages"]
        assert (row["availablePermits"], row["avgMessagesPerEntry"]) == (960, 1)
        await broker.end_window(10)
        assert (await shown(broker))["msgRateIn"] == 0


@pytest.mark.parametrize("kind", TYPES)
async def test_batches_count_as_messages_in_all_but_the_backlog(kind: str) -> None:
    async with memory_broker(**AT_ONCE) as broker:  # type: ignore[arg-type]
        topic = await broker.topic(NAME)
        consumer, peer = await attached(topic, "c", kind)
        await broker.end_window(60)
        positions = await broker.publish(topic, 4, messages_each=10)
        await broker.until(received(peer, count=4))
        acknowledge(consumer, positions[:1])
        await broker.end_window(10)
        subscription = (await shown(broker))["subscriptions"]["s"]
        assert (subscription["msgBacklog"], subscription["msgOutCounter"], subscription["msgRateOut"]) == (3, 40, 4)
        assert subscription["messageAckRate"] == 1
        assert subscription["unackedMessages"] == (30 if "Shared" in kind else 0)
        (row,) = subscription["consumers"]
        assert (row["avgMessagesPerEntry"], row["availablePermits"]) == (10, 960)


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
async def test_what_is_sent_again_counts_again(kind: str) -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        consumer, peer = await attached(topic, "c", kind)
        await broker.end_window(60)
        positions = await broker.publish(topic, 10)
        await broker.until(received(peer, count=10))
        consumer.subscription.redeliver(consumer, positions[:5], -1)
        await broker.until(received(peer, count=15))
        await broker.end_window(10)
        stats = await shown(broker)
        subscription = stats["subscriptions"]["s"]
        assert (stats["msgInCounter"], subscription["msgOutCounter"]) == (10, 15)
        assert (subscription["msgRateRedeliver"], subscription["unackedMessages"]) == (0.5, 10)
        assert subscription["consumers"][0]["msgRateRedeliver"] == 0.5


async def test_entries_that_wait_to_be_sent_again_are_shown() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        consumer, peer = await attached(topic, "c", "Shared", permits=10)
        await broker.publish(topic, 10)
        await broker.until(received(peer, count=10))
        consumer.subscription.redeliver(consumer, None, -1)
        subscription = (await shown(broker))["subscriptions"]["s"]
        assert (subscription["msgInReplay"], subscription["unackedMessages"]) == (10, 0)
        assert subscription["entriesToRedeliver"] == 10


async def test_stats_count_as_redelivery_only_entries_that_a_consumer_had_before() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        slow, slow_peer = await attached(topic, "slow", "Key_Shared", permits=10)
        other, other_peer = await attached(topic, "other", "Key_Shared", permits=10)
        await broker.publish(topic, 200, [f"k{number}" for number in range(40)])
        await broker.until(lambda: len(slow_peer.delivered) == len(other_peer.delivered) == 10)
        subscription = (await shown(broker))["subscriptions"]["s"]
        assert subscription["msgInReplay"] > 0, "entries are read ahead for consumers without permits"
        assert "entriesToRedeliver" not in subscription
        slow.subscription.redeliver(slow, None, -1)
        subscription = (await shown(broker))["subscriptions"]["s"]
        assert subscription["entriesToRedeliver"] == 10
        assert subscription["msgInReplay"] > 10
        other.subscription.redeliver(other, None, -1)
        assert (await shown(broker))["subscriptions"]["s"]["entriesToRedeliver"] == 20


async def test_who_is_connected_since_when_and_from_where() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        await attached(topic, "c", "Shared")
        producer_peer = RecordingPeer(address="/10.0.0.2:8", client_version="other 3", supports_partial_producer=True)
        producer = broker.producer(topic, producer_peer)
        (publisher,) = (await shown(broker))["publishers"]
        assert publisher == {
            "accessMode": "Shared",
            "msgRateIn": 0.0,
            "msgThroughputIn": 0.0,
            "averageMsgSize": 0.0,
            "chunkedMessageRate": 0.0,
            "producerId": 1,
            "supportsPartialProducer": True,
            "producerName": producer.name,
            "address": "/10.0.0.2:8",
            "connectedSince": "2023-11-14T22:13:20Z",
            "clientVersion": "other 3",
            "metadata": {},
        }
        (row,) = (await shown(broker))["subscriptions"]["s"]["consumers"]
        assert (row["consumerName"], row["address"], row["clientVersion"]) == ("c", "/10.0.0.1:7", "client 1.2")
        assert (row["connectedSince"], row["metadata"]) == ("2020-09-13T12:26:40Z", {"of": "c"})
        assert "appId" not in row


async def test_the_times_of_first_and_last_events_are_shown() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        created_ms = broker.clock.now_ms
        consumer, peer = await attached(topic, "c", "Shared")
        broker.clock.now_ms += 1000
        positions = await broker.publish(topic, 2)
        await broker.until(received(peer, count=2))
        broker.clock.now_ms += 1000
        acknowledge(consumer, positions[:1])
        broker.clock.now_ms += 1000
        consumer.flow(1)
        stats = await shown(broker, "?getEarliestTimeInBacklog=true")
        assert stats["topicCreationTimeStamp"] == created_ms
        assert stats["lastPublishTimeStamp"] == created_ms + 1000
        assert stats["earliestMsgPublishTimeInBacklogs"] == created_ms + 1000
        subscription = stats["subscriptions"]["s"]
        assert subscription["earliestMsgPublishTimeInBacklog"] == created_ms + 1000
        assert subscription["lastConsumedTimestamp"] == created_ms + 1000
        assert subscription["lastAckedTimestamp"] == created_ms + 2000
        assert subscription["lastMarkDeleteAdvancedTimestamp"] == created_ms + 2000
        assert subscription["lastConsumedFlowTimestamp"] == created_ms + 3000
        (row,) = subscription["consumers"]
        assert row["firstConsumedFlowTimestamp"] == created_ms
        assert row["firstMessagesSentTimestamp"] == row["lastConsumedTimestamp"] == created_ms + 1000
        assert row["lastConsumedFlowTimestamp"] == created_ms + 3000
        assert (row["lastAckedTimestamp"], row["lastAckedTime"]) == (created_ms + 2000, "2023-11-14T22:13:22Z")


async def test_expired_messages_are_counted() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        await topic.subscription("s", True, True, {})
        await broker.end_window(60)
        await broker.publish(topic, 5)
        broker.clock.now_ms += 60_000
        await broker.publish(topic, 1)
        assert (await broker.rest("POST", f"{PATH}/subscription/s/expireMessages/30")).status == 204
        await broker.end_window(10)
        subscription = (await shown(broker))["subscriptions"]["s"]
        assert (subscription["msgExpired"], subscription["totalMsgExpired"], subscription["msgBacklog"]) == (5, 5, 1)
        assert subscription["msgRateExpired"] == 0.5
        assert subscription["lastExpireTimestamp"] == broker.clock.now_ms


async def test_a_dispatch_rate_that_holds_a_subscription_back_is_counted_by_whose_it_is() -> None:
    settings = {
        "dispatch_throttling_rate_per_subscription_in_msg": 500,
        "dispatch_throttling_rate_per_topic_in_byte": 1,
    }
    async with memory_broker(**settings) as broker:  # type: ignore[arg-type]
        topic = await broker.topic(NAME)
        await broker.publish(topic, 20)
        _, peer = await attached(topic, "c", "Shared")
        await broker.until(received(peer, count=1))
        subscription = (await shown(broker))["subscriptions"]["s"]
        throttled = {key: value for key, value in subscription.items() if key.startswith("dispatchThrottled") and value}
        assert list(throttled) == ["dispatchThrottledBytesEventsByTopicLimit"]


async def test_draining_hashes_are_shown_by_consumer_and_in_all() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        first, first_peer = await attached(topic, "c1", "Key_Shared")
        positions = await broker.publish(topic, 40, KEYS)
        await broker.until(received(first_peer, count=40))
        second, second_peer = await attached(topic, "c2", "Key_Shared")
        await broker.publish(topic, 40, KEYS)
        dispatcher = stored_subscription(first.subscription).dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        draining = dispatcher.draining
        await broker.until(lambda: all(each.blocked_attempts for _, each in draining))
        moved = len(draining)
        assert moved > 5
        subscription = (await shown(broker))["subscriptions"]["s"]
        assert subscription["drainingHashesCount"] == moved
        assert subscription["drainingHashesUnackedMessages"] == moved
        rows = {row["consumerName"]: row for row in subscription["consumers"]}
        assert rows["c2"]["drainingHashes"] == []
        assert [each["hash"] for each in rows["c1"]["drainingHashes"]] == sorted(key_hash for key_hash, _ in draining)
        assert {each["unackMsgs"] for each in rows["c1"]["drainingHashes"]} == {1}
        assert all(each["blockedAttempts"] > 0 for each in rows["c1"]["drainingHashes"])
        assert (rows["c1"]["drainingHashesCount"], rows["c1"]["drainingHashesUnackedMessages"]) == (moved, moved)
        ranges = sorted(each for row in rows.values() for each in row["keyHashRangeArrays"])
        assert ranges[0][0] == 1
        assert sum(end - start + 1 for start, end in ranges) == 65_535
        acknowledge(first, positions)
        subscription = (await shown(broker))["subscriptions"]["s"]
        assert (subscription["drainingHashesCount"], subscription["drainingHashesClearedTotal"]) == (0, moved)
        await broker.until(lambda: bool(second_peer.delivered))
        first.detach()
        second.detach()
        await attached(topic, "c3", "Key_Shared")
        subscription = (await shown(broker))["subscriptions"]["s"]
        assert subscription["drainingHashesClearedTotal"] == moved, "a subscription's total outlives its consumers"
        assert subscription["consumers"][0]["drainingHashesClearedTotal"] == 0


async def test_the_classic_mode_shows_who_waits_for_which_position() -> None:
    async with memory_broker(subscription_key_shared_use_classic_persistent_implementation=True) as broker:
        topic = await broker.topic(NAME)
        first, peer = await attached(topic, "c1", "Key_Shared")
        positions = await broker.publish(topic, 40, KEYS)
        await broker.until(received(peer, count=40))
        await attached(topic, "c2", "Key_Shared")
        subscription = (await shown(broker))["subscriptions"]["s"]
        waiting = subscription["consumersAfterMarkDeletePosition"]
        assert waiting == {"c2": f"{positions[-1].ledger_id}:{positions[-1].entry_id + 1}"}
        rows = {row["consumerName"]: row for row in subscription["consumers"]}
        assert rows["c2"]["readPositionWhenJoining"] == waiting["c2"]
        assert "readPositionWhenJoining" not in rows["c1"]
        acknowledge(first, positions)
        assert (await shown(broker))["subscriptions"]["s"]["consumersAfterMarkDeletePosition"] == {}


async def test_sticky_ranges_and_out_of_order_delivery_are_shown() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        await attached(topic, "c1", "Key_Shared", KeySharedOptions([(0, 99), (200, 299)], True))
        await attached(topic, "c2", "Key_Shared", KeySharedOptions([(100, 199)], True))
        subscription = (await shown(broker))["subscriptions"]["s"]
        assert (subscription["keySharedMode"], subscription["allowOutOfOrderDelivery"]) == ("STICKY", True)
        assert [row["keyHashRangeArrays"] for row in subscription["consumers"]] == [[[0, 99], [200, 299]], [[100, 199]]]


async def test_queries_leave_out_what_was_not_asked_for() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        await attached(topic, "c", "Shared", permits=1)
        await broker.publish(topic, 3)
        broker.producer(topic, RecordingPeer())
        stats = await shown(broker, "?subscriptionBacklogSize=false&excludePublishers=true&excludeConsumers=true")
        subscription = stats["subscriptions"]["s"]
        assert (stats["publishers"], subscription["consumers"], subscription["backlogSize"]) == ([], [], -1)
        assert subscription["earliestMsgPublishTimeInBacklog"] == stats["earliestMsgPublishTimeInBacklogs"] == 0
        assert stats["backlogSize"] == topic.ledger.size_bytes
        stats = await shown(broker, "?getPreciseBacklog=true")
        assert stats["subscriptions"]["s"]["backlogSize"] == topic.ledger.size_bytes


async def test_what_a_removed_subscription_delivered_stays_in_the_topics_totals() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        consumer, peer = await attached(topic, "c", "Shared")
        await broker.publish(topic, 3)
        await broker.until(received(peer, count=3))
        await broker.topic_of(consumer.subscription).delete_subscription(consumer.subscription)
        stats = await shown(broker)
        assert (stats["subscriptions"], stats["msgOutCounter"]) == ({}, 3)
        assert stats["bytesOutCounter"] == topic.ledger.size_bytes


def parts_run(count: int) -> SendRun:
    """The parts of one large message but the last one, then a message of its own."""
    run = SendRun(1)
    for index in range(count):
        meta = pb.MessageMetadata(producer_name="p", sequence_id=index, publish_time=1)
        if index < count - 1:
            meta.uuid, meta.num_chunks_from_msg, meta.chunk_id = "u", count, index
            run.chunk_count += 1
        header = meta.SerializeToString()
        run.sequence_ids.append(index)
        run.highest_sequence_ids.append(0)
        run.message_counts.append(1)
        run.payloads.append(len(header).to_bytes(4, "big") + header + b"part")
    run.size_bytes = sum(map(len, run.payloads))
    return run


async def test_chunks_are_counted_as_they_come_and_go() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        _, peer = await attached(topic, "c", "Exclusive")
        producer = broker.producer(topic, RecordingPeer())
        await broker.end_window(60)
        assert (await shown(broker))["msgChunkPublished"] is False
        topic.publish(producer, parts_run(5))
        await broker.until(received(peer, count=5))
        await broker.end_window(10)
        stats = await shown(broker)
        subscription = stats["subscriptions"]["s"]
        assert stats["msgChunkPublished"] is True
        rows = (stats["publishers"][0], subscription, subscription["consumers"][0])
        assert [row["chunkedMessageRate"] for row in rows] == [0.4, 0.4, 0.4]


@pytest.mark.parametrize("room_bytes", [0, 1, 2 << 20])
async def test_chunks_that_wait_for_the_consumer_that_has_others_are_shown_and_counted(room_bytes: int) -> None:
    async with memory_broker(key_shared_look_ahead_max_bytes_per_subscription=room_bytes) as broker:
        budget = broker.service.runtime.memory.look_ahead
        topic = await broker.topic(NAME)
        first, first_peer = await attached(topic, "first", "Shared", permits=1)
        topic.publish(broker.producer(topic, RecordingPeer()), parts_run(400))
        await broker.until(received(first_peer, count=1))
        _, second_peer = await attached(topic, "second", "Shared")
        await broker.until(
            lambda: received(second_peer, count=1)() and not stored_subscription(first.subscription).is_queued
        )
        waits = (await shown(broker))["subscriptions"]["s"]["lookAhead"]
        (row,) = waits["consumers"]
        assert (row["consumer"], row["entries"]) == ("first", waits["entries"])
        assert row["since"].startswith("20")
        if room_bytes == 1:  # room for one
            assert (waits["entries"], waits["consumersSetAside"]) == (1, 1)
            assert row["setAsideFrom"] == str(Position(first_peer.delivered[0].ledger_id, 2))
        else:
            assert (waits["entries"], waits["consumersSetAside"], row["setAsideFrom"]) == (398, 0, None)
            assert abs(waits["sizeBytes"] - budget.used_bytes) < LOOK_AHEAD_STEP_BYTES
            assert LOOK_AHEAD_STEP_BYTES < waits["sizeBytes"] <= waits["maxSizeBytes"]
        first.flow(1000)
        await broker.until(
            lambda: received(first_peer, count=399)() and not stored_subscription(first.subscription).is_queued
        )
        assert "lookAhead" not in (await shown(broker))["subscriptions"]["s"]
        assert budget.used_bytes == 0


async def test_hundreds_of_consumers_are_all_shown() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        for index in range(300):
            await attached(topic, f"c{index}", "Key_Shared")
            broker.producer(topic, RecordingPeer(), f"p{index}")
        stats = await shown(broker)
        assert len(stats["publishers"]) == 300
        assert [row["consumerName"] for row in stats["subscriptions"]["s"]["consumers"]] == [
            f"c{i}" for i in range(300)
        ]


@pytest.mark.parametrize("path", ["persistent/public/default/missing", "persistent/public/missing/stats"])
async def test_what_does_not_exist_has_no_stats(path: str) -> None:
    async with memory_broker() as broker:
        answer = await broker.rest("GET", f"/{path}/stats")
        assert answer.status == 404
        assert answer.json["reason"]


async def test_replication_and_publish_limits_are_told_and_publishers_come_by_name() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        subscription = await topic.subscription("s", True, True, {"a": "b"})
        await subscription.set_replicated(True)
        topic.counters.publish_rate_limited = 3
        for name in ("b", "a"):
            broker.producer(topic, RecordingPeer(), name)
        stats = await shown(broker)
        shown_subscription = stats["subscriptions"]["s"]
        assert (shown_subscription["isReplicated"], shown_subscription["replicated"]) == (True, True)
        assert shown_subscription["subscriptionProperties"] == {"a": "b"}
        assert stats["publishRateLimitedTimes"] == 3
        assert [each["producerName"] for each in stats["publishers"]] == ["a", "b"]


async def test_publishers_can_be_kept_out_of_all_stats() -> None:
    async with memory_broker(expose_publisher_stats=False) as broker:
        topic = await broker.topic(NAME)
        broker.producer(topic, RecordingPeer())
        assert (await shown(broker))["publishers"] == []


async def test_internal_stats_tell_how_ledgers_are_stored_when_asked() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(NAME)
        await broker.publish(topic, 3)
        plain = (await broker.rest("GET", f"{PATH}/internalStats")).json
        assert "metadata" not in plain["ledgers"][0]
        asked = (await broker.rest("GET", f"{PATH}/internalStats?metadata=true")).json
        metadata = asked["ledgers"][0]["metadata"]  # more of them on BookKeeper
        assert metadata.startswith("LedgerMetadata{")
        assert "state=OPEN, digestType=CRC32C" in metadata
