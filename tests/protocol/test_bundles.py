"""Bundles over real HTTP: split, looked into, unloaded with clients connected."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.topic.topic import Topic
from pybroker.cluster.bundles import hash_position
from pybroker.model.names import TopicName

NAMESPACE = "/namespaces/public/default"
FOUR = ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
THIRD = "0x80000000_0xc0000000"  # where the topic `t` is
FIRST = "0x00000000_0x40000000"


async def boundaries(broker: MemoryBroker) -> list[str]:
    bundles = (await broker.rest("GET", f"{NAMESPACE}/bundles")).json
    assert bundles["numBundles"] == len(bundles["boundaries"]) - 1
    found: list[str] = bundles["boundaries"]
    return found


async def topic_with_clients(broker: MemoryBroker, name: str) -> tuple[Topic, RecordingPeer]:
    topic, peer = await broker.topic(name), RecordingPeer()
    broker.producer(topic, peer, "connected")
    await broker.consumer(topic, "s", peer)
    return topic, peer


def is_loaded(broker: MemoryBroker, name: str) -> bool:
    return str(TopicName.parse(name)) in broker.service.loaded.persistent


async def test_unloading_a_bundle_sends_its_clients_away_and_leaves_the_others(broker: MemoryBroker) -> None:
    topic, peer = await topic_with_clients(broker, "t")
    positions = await broker.publish(topic, 3)
    _, other = await topic_with_clients(broker, "some-topic")
    assert (await broker.rest("PUT", f"{NAMESPACE}/{THIRD}/unload")).status == 204
    assert (peer.closed_producers, peer.closed_consumers) == ([1], [1])
    assert (other.closed_producers, other.closed_consumers) == ([], [])
    assert (is_loaded(broker, "t"), is_loaded(broker, "some-topic")) == (False, True)
    assert (await broker.rest("PUT", f"{NAMESPACE}/{THIRD}/unload")).status == 204
    back = RecordingPeer()
    await broker.consumer(await broker.topic("t"), "s", back)
    await broker.until(lambda: back.delivered == positions)


async def test_unloading_a_namespace_unloads_its_topics_alone(broker: MemoryBroker) -> None:
    await broker.rest("PUT", "/namespaces/public/other")
    for name in ("t", "some-topic", "public/other/t"):
        await broker.topic(name)
    assert (await broker.rest("PUT", f"{NAMESPACE}/unload")).status == 204
    assert [is_loaded(broker, name) for name in ("t", "some-topic", "public/other/t")] == [False, False, True]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/namespaces/public/nowhere/unload", 404),
        ("PUT", f"/namespaces/public/nowhere/{FIRST}/unload", 404),
        ("PUT", f"{NAMESPACE}/0x00000000_0x50000000/unload", 412),
        ("PUT", f"{NAMESPACE}/LARGEST/unload", 412),
        ("PUT", f"{NAMESPACE}/{FIRST}/unload?destinationBroker=other:1", 409),
        ("PUT", f"{NAMESPACE}/{FIRST}/unload?destinationBroker=127.0.0.1:8080", 204),
        ("PUT", f"{NAMESPACE}/0x00000000_0x50000000/split", 412),
        ("PUT", f"{NAMESPACE}/HOT/split", 404),
        ("PUT", f"{NAMESPACE}/LARGEST/split", 404),
        ("PUT", f"{NAMESPACE}/{FIRST}/split?splitAlgorithmName=by_hand", 412),
        ("PUT", f"{NAMESPACE}/{FIRST}/split?splitAlgorithmName=specified_positions_divide", 412),
        ("GET", f"{NAMESPACE}/nothing/topicHashPositions", 412),
        ("GET", f"/namespaces/public/nowhere/{FIRST}/topicHashPositions", 404),
        ("DELETE", f"{NAMESPACE}/0x00000000_0x50000000", 412),
        ("DELETE", f"{NAMESPACE}/{FIRST}", 204),
        ("DELETE", f"{NAMESPACE}/{FIRST}?force=true", 405),
        ("POST", f"{NAMESPACE}/0x00000000_0x50000000/clearBacklog", 412),
    ],
)
async def test_a_call_about_a_bundle_is_answered_with_pulsars_status(
    broker: MemoryBroker, method: str, path: str, status: int
) -> None:
    assert (await broker.rest(method, path)).status == status
    assert await boundaries(broker) == FOUR


async def test_a_bundle_is_split_and_its_topics_stay_where_they_are(broker: MemoryBroker) -> None:
    await broker.topic("t")
    split = f"{NAMESPACE}/{THIRD}/split"
    assert (await broker.rest("PUT", split)).status == 204
    assert await boundaries(broker) == [*FOUR[:3], "0xa0000000", *FOUR[3:]]
    assert is_loaded(broker, "t")
    assert (await broker.rest("PUT", split)).status == 412  # it is no bundle any more
    assert (await broker.rest("PUT", f"{NAMESPACE}/0x80000000_0xa0000000/split?unload=true")).status == 204
    assert not is_loaded(broker, "t")
    assert (await boundaries(broker))[2:5] == ["0x80000000", "0x90000000", "0xa0000000"]


async def test_a_bundle_is_split_where_the_request_says(broker: MemoryBroker) -> None:
    split = f"{NAMESPACE}/{THIRD}/split?splitAlgorithmName=specified_positions_divide"
    assert (await broker.rest("PUT", split, [1])).status == 204
    assert await boundaries(broker) == FOUR
    assert (await broker.rest("PUT", split, ["a"])).status == 400
    assert (await broker.rest("PUT", split, [2300000000, 2400000000, 5, 2300000000])).status == 204
    assert await boundaries(broker) == [*FOUR[:3], "0x89173700", "0x8f0d1800", *FOUR[3:]]


async def test_the_largest_bundle_is_the_one_with_most_topics(broker: MemoryBroker) -> None:
    await broker.topic("t")
    assert (await broker.rest("PUT", f"{NAMESPACE}/LARGEST/split")).status == 204
    assert await boundaries(broker) == [*FOUR[:3], "0xa0000000", *FOUR[3:]]


async def test_hottest_bundle_is_split_by_rates_of_its_topics() -> None:
    async with memory_broker(load_balancer_namespace_bundle_max_msg_rate=1) as broker:
        names = [f"t-{number}" for number in range(12)]
        inside = [name for name in names if hash_position(TopicName.parse(name)) >> 30 == 2]
        topics = [await broker.topic(name) for name in names]
        await broker.end_window(1)
        for name, topic in zip(names, topics, strict=True):
            await broker.publish(topic, 30 if name in inside else 1)
        await broker.end_window(1)
        split = f"{NAMESPACE}/HOT/split?splitAlgorithmName=flow_or_qps_equally_divide"
        assert (await broker.rest("PUT", split)).status == 204
        found = [int(each, 16) for each in await boundaries(broker)]
        positions = sorted(hash_position(TopicName.parse(name)) for name in inside)
        middles = [before + (after - before) // 2 + 1 for before, after in pairwise(positions)]
        assert [each for each in found if 0x80000000 < each < 0xC0000000] == middles
        assert len(middles) > 1


async def test_the_way_to_split_is_a_setting(broker: MemoryBroker) -> None:
    configuration = "/brokers/configuration"
    key = "defaultNamespaceBundleSplitAlgorithm"
    assert (await broker.rest("POST", f"{configuration}/{key}/topic_count_equally_divide")).status == 200
    assert (await broker.rest("PUT", f"{NAMESPACE}/{FIRST}/split")).status == 204
    assert await boundaries(broker) == FOUR  # there is no topic to count
    key = "supportedNamespaceBundleSplitAlgorithms"
    assert (await broker.rest("POST", f"{configuration}/{key}/range_equally_divide")).status == 200
    assert (await broker.rest("PUT", f"{NAMESPACE}/{FIRST}/split")).status == 412


async def test_where_topics_lie_in_a_bundle_is_told(broker: MemoryBroker) -> None:
    await broker.topic("t")
    await broker.topic("some-topic")
    path = f"{NAMESPACE}/{THIRD}/topicHashPositions"
    name = "persistent://public/default/t"
    shown = {"namespace": "public/default", "bundle": THIRD, "topicHashPositions": {name: 0x823CD929}}
    assert (await broker.rest("GET", path)).json == shown
    assert (await broker.rest("GET", f"{path}?topics=x&topics={name}")).json == shown
    assert (await broker.rest("GET", f"{path}?topics=x")).json == {**shown, "topicHashPositions": {}}


async def test_a_bundle_with_topics_is_deleted_only_by_force_where_that_is_allowed() -> None:
    async with memory_broker(force_delete_namespace_allowed=True) as broker:
        await broker.topic("t")
        await broker.topic("some-topic")
        assert (await broker.rest("DELETE", f"{NAMESPACE}/{THIRD}")).status == 409
        assert (await broker.rest("DELETE", f"{NAMESPACE}/{THIRD}?force=true")).status == 204
        left = (await broker.rest("GET", f"{NAMESPACE}/topics")).json
        assert left == ["persistent://public/default/some-topic"]
        assert await boundaries(broker) == FOUR


async def test_the_backlog_of_one_bundle_is_cleared(broker: MemoryBroker) -> None:
    names = ("t", "some-topic")
    for name in names:
        topic = await broker.topic(name)
        await broker.consumer(topic, "s", RecordingPeer())
        await broker.publish(topic, 2)
    assert (await broker.rest("POST", f"{NAMESPACE}/{THIRD}/clearBacklog")).status == 204
    cursors = [broker.service.loaded.persistent[str(TopicName.parse(name))].subscriptions["s"].cursor for name in names]
    assert [cursor.backlog_entries for cursor in cursors] == [0, 2]


async def test_non_persistent_topics_are_listed_by_bundle(broker: MemoryBroker) -> None:
    names = [f"non-persistent://public/default/{name}" for name in ("t", "some-topic")]
    for name in names:
        await broker.service.topics.any(TopicName.parse(name), may_create=True)
    bundles = [f"{low}_{high}" for low, high in pairwise(FOUR)]
    listed = [(await broker.rest("GET", f"/non-persistent/public/default/{bundle}")).json for bundle in bundles]
    assert sorted(name for each in listed for name in each) == sorted(names)
    assert names not in listed, "not all in one bundle"
    assert (await broker.rest("GET", "/non-persistent/public/default/0x00000001_0x40000000")).status == 412
    assert (await broker.rest("GET", f"/non-persistent/public/none/{FIRST}")).status == 404
