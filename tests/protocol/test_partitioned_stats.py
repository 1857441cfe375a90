"""The figures of all partitions of a topic together, and what they are made of."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.admin.stats.partitioned_stats import partitioned_stats

PATH = "/persistent/public/default/pt"
NAME = "persistent://public/default/pt"


async def partitioned(broker: MemoryBroker, partitions: int = 2) -> None:
    assert (await broker.rest("PUT", f"{PATH}/partitions", partitions)).status == 204


async def shown(broker: MemoryBroker, query: str = "") -> Any:
    answer = await broker.rest("GET", f"{PATH}/partitioned-stats{query}")
    assert answer.status == 200, answer.text
    return answer.json


async def test_figures_are_summed_over_the_partitions() -> None:
    async with memory_broker() as broker:
        await partitioned(broker)
        topics = [await broker.topic(f"{NAME}-partition-{index}") for index in range(2)]
        peers = [RecordingPeer(), RecordingPeer()]
        consumers = [await broker.consumer(topic, "s", peer) for topic, peer in zip(topics, peers, strict=True)]
        await broker.end_window(60)
        positions = [await broker.publish(topic, count) for topic, count in zip(topics, (4, 8), strict=True)]
        await broker.until(lambda: len(peers[0].delivered) == 4 and len(peers[1].delivered) == 8)
        acknowledge(consumers[0], positions[0][:1])
        acknowledge(consumers[1], positions[1][:2])
        await broker.end_window(4)
        stats = await shown(broker)
        size_bytes = sum(topic.ledger.size_bytes for topic in topics)
        assert (stats["msgInCounter"], stats["bytesInCounter"], stats["storageSize"]) == (12, size_bytes, size_bytes)
        assert (stats["msgRateIn"], stats["msgRateOut"]) == (3, 3)
        assert stats["averageMsgSize"] == pytest.approx(size_bytes / 12, rel=0.01)
        assert stats["topicCreationTimeStamp"] == min(topic.ledger.created_ms for topic in topics)
        assert stats["lastPublishTimeStamp"] == broker.clock.now_ms
        assert stats["metadata"] == {"partitions": 2, "deleted": False}
        subscription = stats["subscriptions"]["s"]
        assert (subscription["msgBacklog"], subscription["unackedMessages"], subscription["msgOutCounter"]) == (
            9,
            9,
            12,
        )
        assert subscription["messageAckRate"] == 0.75
        assert subscription["lastAckedTimestamp"] == 0
        (consumer,) = subscription["consumers"]
        assert (consumer["consumerName"], consumer["availablePermits"], consumer["unackedMessages"]) == ("c", 1988, 9)
        assert "address" not in consumer
        assert "deduplicationStatus" not in stats
        assert "ownerBroker" not in stats
        of_first = stats["partitions"][f"{NAME}-partition-0"]
        assert (of_first["msgInCounter"], of_first["subscriptions"]["s"]["msgBacklog"]) == (4, 3)
        assert stats["backlogSize"] == sum(each["backlogSize"] for each in stats["partitions"].values())
        assert (await shown(broker, "?perPartition=false"))["partitions"] == {}


async def test_partitions_that_are_not_loaded_are_loaded_and_those_that_do_not_exist_are_left_out() -> None:
    async with memory_broker() as broker:
        await partitioned(broker, 3)
        for index in (0, 2):
            await broker.topic(f"{NAME}-partition-{index}")
        topic = await broker.topic(f"{NAME}-partition-0")
        await broker.service.topics.unload(topic)
        assert (await broker.rest("DELETE", f"{PATH}-partition-1")).status == 204
        stats = await shown(broker)
        assert sorted(stats["partitions"]) == [f"{NAME}-partition-0", f"{NAME}-partition-2"]
        internal = (await broker.rest("GET", f"{PATH}/partitioned-internalStats")).json
        assert internal["metadata"]["partitions"] == 3
        assert sorted(internal["partitions"]) == sorted(stats["partitions"])
        assert internal["partitions"][f"{NAME}-partition-0"]["state"] == "LedgerOpened"


async def test_without_any_partition_there_are_zeros_under_the_topics_own_name() -> None:
    async with memory_broker() as broker:
        await partitioned(broker, 1)
        assert (await broker.rest("DELETE", f"{PATH}-partition-0")).status == 204
        stats = await shown(broker)
        assert (list(stats["partitions"]), stats["msgInCounter"], stats["publishers"]) == ([NAME], 0, [])
        assert (await broker.rest("GET", f"{PATH}/partitioned-internalStats")).status == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("persistent/public/default/missing", 404),
        ("persistent/public/none/t", 404),
        ("persistent/public/default/plain", 404),
        ("persistent/public/default/pt-partition-0", 412),
    ],
)
async def test_what_is_no_partitioned_topic_has_no_partitioned_stats(path: str, status: int) -> None:
    async with memory_broker() as broker:
        await partitioned(broker)
        await broker.topic("persistent://public/default/plain")
        for what in ("partitioned-stats", "partitioned-internalStats"):
            answer = await broker.rest("GET", f"/{path}/{what}")
            assert (answer.status, bool(answer.json["reason"])) == (status, True)


async def test_the_partitioned_name_itself_has_no_stats() -> None:
    async with memory_broker() as broker:
        await partitioned(broker)
        assert (await broker.rest("GET", f"{PATH}/stats")).status == 404
        assert (await broker.rest("GET", f"{PATH}/internalStats")).status == 404


async def test_producers_are_merged_by_place_or_by_name_when_that_is_wanted() -> None:
    for by_name, expected in ((False, [None, None]), (True, ["a", "b", "c"])):
        async with memory_broker(aggregate_publisher_stats_by_producer_name=by_name) as broker:
            await partitioned(broker)
            for index, names in enumerate((("a", "b"), ("a", "c"))):
                topic = await broker.topic(f"{NAME}-partition-{index}")
                for name in names:
                    broker.producer(topic, RecordingPeer(), name)
            publishers = (await shown(broker))["publishers"]
            assert [each.get("producerName") for each in publishers] == expected


async def test_producers_of_some_partitions_only_are_merged_by_name() -> None:
    async with memory_broker() as broker:
        await partitioned(broker)
        for index in range(2):
            topic = await broker.topic(f"{NAME}-partition-{index}")
            broker.producer(topic, RecordingPeer(supports_partial_producer=True), "a")
        broker.producer(topic, RecordingPeer(supports_partial_producer=True), "b")
        publishers = (await shown(broker))["publishers"]
        assert [(each["producerName"], each["supportsPartialProducer"]) for each in publishers] == [
            ("a", True),
            ("b", True),
        ]


async def test_consumers_of_subscriptions_that_differ_in_number_are_all_listed() -> None:
    async with memory_broker() as broker:
        await partitioned(broker)
        topics = [await broker.topic(f"{NAME}-partition-{index}") for index in range(2)]
        for topic, names in zip(topics, (("x", "y"), ("z",)), strict=True):
            for name in names:
                subscription = await topic.subscription("s", True, True, {"of": name})
                broker.consumer_on(subscription, RecordingPeer(), "Shared", name)
        subscription_stats = (await shown(broker))["subscriptions"]["s"]
        assert [each["consumerName"] for each in subscription_stats["consumers"]] == ["x", "y", "z"]
        assert subscription_stats["subscriptionProperties"] == {"of": "z"}


async def test_the_oldest_backlog_names_its_subscription() -> None:
    async with memory_broker(precise_time_based_backlog_quota_check=True) as broker:
        await partitioned(broker)
        for index, name in enumerate(("slow", "slower")):
            topic = await broker.topic(f"{NAME}-partition-{index}")
            await topic.subscription(name, True, True, {})
            broker.clock.now_ms -= 20_000 * index
            await broker.publish(topic, 1)
        broker.clock.now_ms += 50_000
        await broker.service.maintenance.check_backlog_quotas()
        stats = await shown(broker)
        found = (stats["oldestBacklogMessageAgeSeconds"], stats["oldestBacklogMessageSubscriptionName"])
        assert found == (50, "slower")
        first = stats["partitions"][f"{NAME}-partition-0"]
        assert (first["oldestBacklogMessageAgeSeconds"], first["oldestBacklogMessageSubscriptionName"]) == (30, "slow")


def test_of_no_partitions_everything_is_zero() -> None:
    steps = partitioned_stats([], merges_publishers_by_name=False)
    document: Any = None
    while document is None:
        try:
            next(steps)
        except StopIteration as done:
            document = done.value
    assert (document["msgRateIn"], document["subscriptions"], document["topicCreationTimeStamp"]) == (0, {}, 0)
