"""Messages that come by REST: what is stored, where it goes, and what is answered when it is not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.memory_broker import START_MS, MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import Answer, call

from pybroker.broker.publishing.producer import Producer
from pybroker.broker.publishing.producer_access import AccessMode
from pybroker.broker.topic.topic import Topic
from pybroker.model.names import TopicName
from pybroker.wire.entry_metadata import message_metadata, metadata_span
from pybroker.wire.pulsar_api_pb2 import MessageMetadata

NAME = "persistent://public/default/t"
PARTITIONED = TopicName.parse("persistent://public/default/p")


async def produce(
    broker: MemoryBroker, *messages: dict[str, Any], path: str = "persistent/public/default/t", **others: Any
) -> Answer:
    body = {"messages": list(messages), **others}
    return await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}/topics/{path}", "POST", body=body)


async def stored(topic: Topic) -> list[tuple[MessageMetadata, bytes]]:
    run = await topic.ledger.read(topic.ledger.ledgers.first_position, 100, 1 << 20)
    return [(message_metadata(entry), entry[metadata_span(entry)[1] :]) for entry in run.payloads]


async def kept(broker: MemoryBroker, name: str = NAME) -> Topic:
    """The topic, with a subscription that wants all of it."""
    topic = await broker.topic(name)
    await topic.subscription("keep", True, True, {})
    return topic


async def test_messages_are_entries_of_their_own_with_all_that_was_said_of_them(broker: MemoryBroker) -> None:
    topic = await kept(broker)
    answer = await produce(
        broker,
        {"payload": "one", "key": "k", "properties": {"a": "b"}, "eventTime": "5", "sequenceId": 7},
        {"payload": "two", "deliverAfterMs": 100},
        {"payload": "three", "deliverAt": START_MS + 5, "replicationClusters": ["elsewhere"]},
        producerName="me",
    )
    ledger_id = topic.ledger.ledgers.first_position.ledger_id
    assert answer.json == {
        "messagePublishResults": [
            {"messageId": f"{ledger_id}:{index}:-1", "errorCode": 0, "schemaVersion": 0} for index in range(3)
        ],
        "schemaVersion": 0,
    }
    (one, first), (two, second), (three, third) = await stored(topic)
    assert (first, second, third) == (b"one", b"two", b"three")
    assert (one.partition_key, one.partition_key_b64_encoded, one.event_time, one.sequence_id) == ("k", False, 5, 7)
    assert {each.key: each.value for each in one.properties} == {"a": "b"}
    assert one.producer_name == "me"
    assert one.schema_version == bytes(8)
    assert two.deliver_at_time == START_MS + 100
    assert (three.deliver_at_time, list(three.replicate_to)) == (START_MS + 5, ["elsewhere"])


async def test_a_first_message_registers_its_schema_and_others_must_fit(broker: MemoryBroker) -> None:
    await kept(broker)
    integer = json.dumps({"name": "", "type": "INT32", "schema": "", "properties": {}})
    assert (await produce(broker, {"payload": "17"}, valueSchema=integer)).status == 200
    refused = await produce(broker, {"payload": "text"})
    assert (refused.status, "reason" in refused.json) == (409, True)
    again = await produce(broker, {"payload": "18"}, schemaVersion=0)
    assert again.json["messagePublishResults"][0]["errorCode"] == 0
    assert (await produce(broker, {"payload": "18"}, schemaVersion=9)).status == 404
    assert (await produce(broker, {"payload": "x"}, schemaVersion=0)).status == 400


async def test_bytes_have_no_schema(broker: MemoryBroker) -> None:
    topic = await kept(broker)
    answer = await produce(broker, {"payload": "x"}, valueSchema='{"type":"BYTES","schema":"","properties":{}}')
    assert answer.status == 200
    ((metadata, _),) = await stored(topic)
    assert not metadata.HasField("schema_version")


async def test_messages_with_a_key_go_by_it_and_others_by_turns(broker: MemoryBroker) -> None:
    await broker.service.partitioned_operations.create(PARTITIONED, 3, {})
    path = "persistent/public/default/p"
    answers = [await produce(broker, {"payload": "x"}, path=path) for _ in range(6)]
    partitions = [answer.json["messagePublishResults"][0]["messageId"].rpartition(":")[2] for answer in answers]
    assert partitions == ["0", "1", "2", "0", "1", "2"]
    # The hash of "b" is 98.
    keyed = await produce(
        broker, {"payload": "x", "key": "b"}, {"payload": "y"}, {"payload": "z", "key": "b"}, path=path
    )
    partitions = [each["messageId"].rpartition(":")[2] for each in keyed.json["messagePublishResults"]]
    assert partitions == ["2", "0", "2"]


async def test_one_partition_may_be_named(broker: MemoryBroker) -> None:
    await broker.service.partitioned_operations.create(PARTITIONED, 2, {})
    path = "persistent/public/default/p/partitions"
    answer = await produce(broker, {"payload": "x", "key": "b"}, path=f"{path}/1")
    assert answer.json["messagePublishResults"][0]["messageId"].endswith(":1")
    for partition, status in ((2, 404), (-1, 404), ("x", 404), (10**30, 404)):
        assert (await produce(broker, {"payload": "x"}, path=f"{path}/{partition}")).status == status
    assert (await produce(broker, {"payload": "x"}, path="persistent/public/default/t/partitions/0")).status == 404


async def test_what_does_not_exist_or_is_no_body_is_refused_as_a_whole(broker: MemoryBroker) -> None:
    assert (await produce(broker, {"payload": "x"})).status == 404
    assert (await produce(broker, {"payload": "x"}, path="persistent/public/none/t")).status == 404
    assert (await produce(broker, {"payload": "x"}, path="other/public/default/t")).status == 404
    topic = await kept(broker)
    for message in ({}, {"payload": 5}, {"payload": "x", "eventTime": "x"}, {"payload": "x", "sequenceId": 1 << 70}):
        assert (await produce(broker, {"payload": "good"}, message)).status == 400
    for name, value in (("messages", None), ("valueSchema", "no json"), ("producerName", 5)):
        assert (await produce(broker, {"payload": "x"}, **{name: value})).status == 400  # type: ignore[arg-type]
    assert topic.counters.messages_in == 0
    assert (await produce(broker)).json == {"messagePublishResults": [], "schemaVersion": 0}


async def test_each_message_that_a_policy_refuses_is_answered_and_the_others_are_stored() -> None:
    async with memory_broker(max_message_size=5_000) as broker:
        topic = await kept(broker)
        assert (await broker.rest("POST", "/persistent/public/default/t/maxMessageSize", 120)).status == 204
        await broker.until(lambda: topic.policies.max_message_size == 120)
        answer = await produce(broker, {"payload": "x" * 200}, {"payload": "y"})
    large, small = answer.json["messagePublishResults"]
    assert (large["messageId"], large["errorCode"]) == ("-1", 2)
    assert "maximum message size" in large["errorMsg"]
    assert small["errorCode"] == 0


async def test_the_brokers_own_limit_holds_without_a_policy() -> None:
    async with memory_broker(max_message_size=500) as broker:
        await kept(broker)
        answer = await produce(broker, {"payload": "x" * 600})
    assert answer.json["messagePublishResults"][0]["errorCode"] == 2


async def test_a_terminated_topic_takes_nothing(broker: MemoryBroker) -> None:
    topic = await kept(broker)
    await topic.terminate()
    answer = await produce(broker, {"payload": "x"}, {"payload": "y"})
    assert [each["errorCode"] for each in answer.json["messagePublishResults"]] == [2, 2]


async def test_a_topic_with_an_exclusive_producer_takes_nothing_else(broker: MemoryBroker) -> None:
    topic = await kept(broker)
    producer = Producer(
        topic.producer_registry.remove, 1, "p", False, 0, RecordingPeer(), {}, 0, access_mode=AccessMode.EXCLUSIVE
    )
    await topic.producer_registry.enter(producer)
    assert (await produce(broker, {"payload": "x"})).status == 409


async def test_messages_wait_for_a_publish_rate(broker: MemoryBroker) -> None:
    topic = await kept(broker)
    rate = {"publishThrottlingRateInMsg": 20}
    assert (await broker.rest("POST", "/persistent/public/default/t/publishRate", rate)).status == 204
    await broker.until(lambda: topic.publish_throttle is not None)
    answer = await produce(broker, *({"payload": "x"} for _ in range(25)))
    assert [each["errorCode"] for each in answer.json["messagePublishResults"]] == [0] * 25
    assert topic.counters.publish_rate_limited > 0


async def test_what_the_rate_does_not_let_pass_in_time_may_be_tried_again(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.broker.topic.internal_producer.RATE_DEADLINE_S", 0.05)
    topic = await kept(broker)
    await broker.rest("POST", "/persistent/public/default/t/publishRate", {"publishThrottlingRateInMsg": 1})
    await broker.until(lambda: topic.publish_throttle is not None)
    answer = await produce(broker, *({"payload": str(index)} for index in range(5)))
    codes = [each["errorCode"] for each in answer.json["messagePublishResults"]]
    assert codes == [0, 1, 1, 1, 1]
    assert topic.counters.messages_in == 1


async def test_thousands_of_messages_come_back_in_their_order(broker: MemoryBroker) -> None:
    topic = await kept(broker)
    answer = await produce(broker, *({"payload": str(index)} for index in range(2000)))
    places = [int(each["messageId"].split(":")[1]) for each in answer.json["messagePublishResults"]]
    assert places == list(range(2000))
    assert topic.counters.messages_in == 2000


async def test_a_request_may_have_so_many_messages() -> None:
    async with memory_broker(max_http_messages_per_request=3) as broker:
        await kept(broker)
        assert (await produce(broker, *[{"payload": "x"}] * 3)).status == 200
        refused = await produce(broker, *[{"payload": "x"}] * 4)
        assert (refused.status, "maxHttpMessagesPerRequest" in refused.text) == (413, True)
