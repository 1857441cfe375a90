"""Non-persistent topics over the wire and by REST: receipts, drops, limits, and that nothing is left of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.raw_client import RawClient, Type, connected
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import call

from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.entry_filters import EntryFilter, FilteredEntry, Verdict
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.topic.non_persistent_topic import NonPersistentTopic
from pybroker.errors import NotAllowedError, TopicNotFound
from pybroker.model.events import SendRun
from pybroker.model.names import TopicName
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb

PATH = "/non-persistent/public/default"
NAMESPACE = "/namespaces/public/default"
TOPIC = "non-persistent://public/default/"
NAME = TopicName.parse(TOPIC + "t")
AT_ONCE = 3
ONE_ID = Position(0, 0)
UNSIGNED_MINUS_ONE = str((1 << 64) - 1)


# --- over the wire ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that takes few messages at once, and keeps little for clients that do not read."""
    settings = {
        "maxConcurrentNonPersistentMessagePerConnection": str(AT_ONCE - 1),
        "maxOutboundBytesPerConnection": "65536",
    }
    directory = tmp_path_factory.mktemp("narrow")
    with BrokerProcess(directory, settings).running_well() as process:
        yield process


def consuming(client: RawClient, topic: str, permits: int, sub_type: str = "Exclusive", **fields: Any) -> None:
    """A consumer whose permits the broker knows of."""
    assert client.subscribe(topic, sub_type=sub_type, **fields)["type"] == "SUCCESS"
    client.send(Type.FLOW, consumer_id=1, messagePermits=permits)
    assert client.request(Type.CONSUMER_STATS, consumer_id=1)["availablePermits"] == str(permits)


def at_once(client: RawClient, count: int) -> None:
    """`count` SENDs in one write, which the broker reads in one turn of its loop."""
    parts: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "send_bytes", parts.append)
        for index in range(count):
            client.send_message(1, index, b"m%d" % index)
    client.send_bytes(b"".join(parts))


def test_what_comes_too_fast_is_dropped_and_answered_so(narrow: BrokerProcess) -> None:
    with connected(narrow) as producer, connected(narrow) as consumer:
        consuming(consumer, TOPIC + "fast", 100)
        producer.open_producer(TOPIC + "fast")
        at_once(producer, 5)
        receipts = [producer.reply() for _ in range(5)]
        ids = [
            (each["sequence_id"], each["message_id"]["ledgerId"], each["message_id"]["entryId"]) for each in receipts
        ]
        taken = [(str(index), "0", "0") for index in range(AT_ONCE)]
        dropped = [(str(index), UNSIGNED_MINUS_ONE, UNSIGNED_MINUS_ONE) for index in range(AT_ONCE, 5)]
        assert ids == taken + dropped
        assert [each["payload"] for each in consumer.replies(0.3)] == ["m0", "m1", "m2"]
        # The next turn is a new one.
        assert producer.publish(1, 1, first=10)[0]["message_id"]["ledgerId"] == "0"
        assert consumer.reply()["payload"] == "m10"


def test_a_consumer_that_does_not_read_misses_messages_and_costs_no_memory(narrow: BrokerProcess) -> None:
    with connected(narrow) as producer, connected(narrow) as consumer:
        consuming(consumer, TOPIC + "slow", 100_000)
        producer.open_producer(TOPIC + "slow")
        consumer.stop_reading()
        payload = b"x" * 100_000
        count = 200  # 20 MB, far more than sockets and outbox hold
        for index in range(count):
            producer.send_message(1, index, payload)
            assert producer.reply()["type"] == "SEND_RECEIPT"
        consumer.read_again()
        got = [each for each in consumer.replies(1.0) if each["type"] == "MESSAGE"]
        assert 0 < len(got) < count
        numbers = [int(each["metadata"].get("sequence_id", "0")) for each in got]
        assert numbers == sorted(set(numbers))
        # It goes on with what comes now.
        producer.publish(1, 1, first=1000)
        assert consumer.reply()["payload"] == "m1000"


def test_acknowledgements_are_answered_and_redelivery_and_seek_do_nothing(narrow: BrokerProcess) -> None:
    with connected(narrow) as producer, connected(narrow) as consumer:
        consuming(consumer, TOPIC + "acks", 10, "Shared")
        producer.open_producer(TOPIC + "acks")
        producer.publish(1, 2)
        assert [consumer.reply()["payload"] for _ in range(2)] == ["m0", "m1"]
        ids = [pb.MessageIdData(ledgerId=0, entryId=0)]
        consumer.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Cumulative, message_id=ids, request_id=70)
        assert consumer.reply() == {"type": "ACK_RESPONSE", "consumer_id": "1", "request_id": "70"}
        consumer.send(Type.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids)
        consumer.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1)
        assert consumer.request(Type.SEEK, consumer_id=1, message_publish_time=1)["type"] == "SUCCESS"
        assert consumer.request(Type.GET_LAST_MESSAGE_ID, consumer_id=1)["error"] == "UnknownError"
        assert consumer.replies(0.2) == []
        assert consumer.request(Type.UNSUBSCRIBE, consumer_id=1)["type"] == "SUCCESS"


def test_nothing_of_the_messages_is_stored(tmp_path: Path) -> None:
    marker = b"a marker that would be found"
    process = BrokerProcess(tmp_path)
    with process.running(), connected(process) as producer, connected(process) as consumer:
        consuming(consumer, TOPIC + "t", 1)
        producer.open_producer(TOPIC + "t")
        for index in range(3):
            producer.send_message(1, index, marker)
            producer.reply()
        assert consumer.reply()["payload"] == marker.decode()
    assert not [path for path in process.data.rglob("*") if path.is_file() and marker in path.read_bytes()]


# --- in one process --------------------------------------------------------------------------------------------------


async def topic_of(broker: MemoryBroker, name: TopicName = NAME) -> NonPersistentTopic:
    topic = await broker.service.topics.any(name, may_create=True)
    assert isinstance(topic, NonPersistentTopic)
    return topic


def consumer_of(
    topic: NonPersistentTopic, peer: RecordingPeer, permits: int, subscription: str = "s", kind: str = "Exclusive"
) -> Consumer:
    consumer = Consumer(topic.subscription(subscription, {}), 1, "c", 0, 0, peer, {}, 0)
    topic.attach(consumer.subscription, consumer, kind)
    consumer.flow(permits)
    return consumer


def publish(broker: MemoryBroker, topic: NonPersistentTopic, count: int, messages_each: int = 1) -> RecordingPeer:
    peer = RecordingPeer()
    producer: Producer = broker.producer(topic, peer)
    run = SendRun(1)
    header = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString()
    for index in range(count):
        run.sequence_ids.append(index)
        run.highest_sequence_ids.append(0)
        run.message_counts.append(messages_each)
        run.payloads.append(len(header).to_bytes(4, "big") + header + b"%d" % index)
    run.size_bytes = sum(map(len, run.payloads))
    topic.publish(producer, run)
    producer.detach()
    return peer


async def test_each_subscription_counts_what_it_missed(broker: MemoryBroker) -> None:
    topic = await topic_of(broker)
    assert publish(broker, topic, 2).receipts == [ONE_ID] * 2  # lost for nobody
    peer = RecordingPeer()
    some = consumer_of(topic, peer, 3, "some")
    none = consumer_of(topic, peer, 0, "none")
    assert publish(broker, topic, 4, messages_each=2).receipts == [ONE_ID] * 4
    assert peer.delivered == [ONE_ID] * 2
    assert (some.subscription.counters.messages_out, some.subscription.counters.dropped_messages) == (4, 4)
    assert (none.subscription.counters.messages_out, none.subscription.counters.dropped_messages) == (0, 8)
    assert (some.counters.messages_out, topic.counters.messages_in) == (4, 10)


async def test_rates_of_drops_are_shown(broker: MemoryBroker) -> None:
    topic = await topic_of(broker)
    consumer_of(topic, RecordingPeer(), 0)
    await broker.end_window(0)
    stats = (await broker.rest("GET", f"{PATH}/t/stats")).json
    assert (stats["msgDropRate"], stats["subscriptions"]["s"]["msgDropRate"]) == (0, 0)
    publish(broker, topic, 60)
    await broker.end_window(60)
    stats = (await broker.rest("GET", f"{PATH}/t/stats")).json
    assert stats["subscriptions"]["s"]["msgDropRate"] == pytest.approx(1.0)
    assert stats["msgDropRate"] == 0, "that of the topic is about what came too fast"
    page = await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}/metrics/")
    rows = [line for line in page.text.splitlines() if line.startswith("pulsar_subscription_msg_drop_rate{")]
    (row,) = (line for line in rows if f'topic="{NAME}"' in line)
    assert float(row.split()[-1]) == pytest.approx(1.0)


async def test_a_subscription_lives_as_long_as_it_has_a_consumer(broker: MemoryBroker) -> None:
    topic = await topic_of(broker)
    one, other = (
        consumer_of(topic, RecordingPeer(), 1, kind="Shared"),
        consumer_of(topic, RecordingPeer(), 1, kind="Shared"),
    )
    assert (await broker.rest("GET", f"{PATH}/t/subscriptions")).json == ["s"]
    publish(broker, topic, 2)
    one.detach()
    assert list(topic.subscriptions) == ["s"]
    other.detach()
    assert (await broker.rest("GET", f"{PATH}/t/subscriptions")).json == []
    assert topic.counters.messages_out_of_removed == 2
    # The next one brings its own type.
    consumer_of(topic, RecordingPeer(), 1, kind="Failover")
    assert topic.subscriptions["s"].type_name == "Failover"


async def test_limits_hold_as_on_persistent_topics(broker: MemoryBroker) -> None:
    topic = await topic_of(broker)
    for limit in ("maxSubscriptionsPerTopic", "maxProducers"):
        assert (await broker.rest("POST", f"{PATH}/t/{limit}", 1)).status == 204
    consumer_of(topic, RecordingPeer(), 1)
    with pytest.raises(NotAllowedError, match="maximum number of subscriptions"):
        consumer_of(topic, RecordingPeer(), 1, "another")
    assert list(topic.subscriptions) == ["s"], "nothing remains of who was refused"
    assert (await broker.rest("POST", f"{PATH}/t/maxMessageSize", 10)).status == 204
    peer = publish(broker, topic, 1)
    assert (peer.receipts, [type(error) for error in peer.errors]) == ([], [NotAllowedError])


async def test_topics_that_nobody_uses_go(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 0.0
    monkeypatch.setattr(broker.service.runtime.clock, "monotonic_ms", lambda: now_ms)
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": True,
    }
    assert (await broker.rest("POST", f"{NAMESPACE}/inactiveTopicPolicies", policy)).status == 204
    assert (
        await broker.rest("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    ).status == 204
    topic = await topic_of(broker)
    consumer = consumer_of(topic, RecordingPeer(), 1)
    for is_there in (True, False):
        await broker.service.maintenance.check_inactive_topics()
        now_ms += 61_000
        await broker.service.maintenance.check_inactive_topics()
        assert (str(NAME) in broker.service.loaded.non_persistent) is is_there
        consumer.detach()


async def test_topics_are_listed_counted_and_unloaded_while_they_are_loaded(broker: MemoryBroker) -> None:
    await topic_of(broker)
    assert (await broker.rest("GET", PATH)).json == [TOPIC + "t"]
    assert (await broker.rest("GET", f"{NAMESPACE}/topics?mode=ALL")).json == [TOPIC + "t"]
    assert (await broker.rest("GET", f"{NAMESPACE}/topics")).json == []
    assert (await broker.rest("POST", f"{NAMESPACE}/maxTopicsPerNamespace", 1)).status == 204
    with pytest.raises(NotAllowedError, match="maximum number of topics"):
        await topic_of(broker, TopicName.parse(TOPIC + "other"))
    peer = RecordingPeer()
    consumer_of(await topic_of(broker), peer, 1)
    assert (await broker.rest("PUT", f"{PATH}/t/unload")).status == 204
    assert peer.closed_consumers == [1]
    assert (await broker.rest("GET", PATH)).json == []
    assert (await broker.rest("GET", f"{PATH}/t/stats")).status == 404
    with pytest.raises(TopicNotFound):
        await broker.service.topics.any(NAME, may_create=False)


async def test_a_topic_is_made_and_deleted_with_its_policies(broker: MemoryBroker) -> None:
    assert (await broker.rest("PUT", f"{PATH}/t")).status == 204
    assert (await broker.rest("PUT", f"{PATH}/t")).status == 409
    assert (await broker.rest("POST", f"{PATH}/t/maxProducers", 7)).status == 204
    peer = RecordingPeer()
    consumer_of(await topic_of(broker), peer, 1)
    assert (await broker.rest("DELETE", f"{PATH}/t")).status == 412
    assert (await broker.rest("DELETE", f"{PATH}/t?force=true")).status == 204
    assert (peer.closed_consumers, broker.service.loaded.non_persistent) == ([1], {})
    assert (await broker.rest("DELETE", f"{PATH}/t")).status == 204  # as good as deleted
    assert (await broker.rest("PUT", f"{PATH}/t")).status == 204
    assert (await broker.rest("GET", f"{PATH}/t/maxProducers")).text in ("", "null")


async def test_policies_survive_an_unload(broker: MemoryBroker) -> None:
    await topic_of(broker)
    assert (await broker.rest("POST", f"{PATH}/t/maxProducers", 7)).status == 204
    assert (await broker.rest("PUT", f"{PATH}/t/unload")).status == 204
    assert (await topic_of(broker)).policies.max_producers == 7


async def test_partitions_are_topics_once_somebody_uses_them(broker: MemoryBroker) -> None:
    assert (await broker.rest("PUT", f"{PATH}/t/partitions", 2)).status == 204
    assert (await broker.rest("GET", PATH)).json == []
    first = await topic_of(broker, NAME.partition(0))
    peer = RecordingPeer()
    consumer_of(first, peer, 1)
    assert (await broker.rest("GET", f"{PATH}/t/subscriptions")).status == 404, "partition 1 is not loaded"
    stats = (await broker.rest("GET", f"{PATH}/t/partitioned-stats")).json
    assert (list(stats["partitions"]), stats["msgDropRate"]) == ([str(NAME.partition(0))], 0)
    with pytest.raises(NotAllowedError):
        await broker.service.topics.any(NAME, may_create=True)
    assert (await broker.rest("DELETE", f"{PATH}/t/partitions")).status == 412
    assert (await broker.rest("DELETE", f"{PATH}/t/partitions?force=true")).status == 204
    assert (peer.closed_consumers, broker.service.loaded.non_persistent) == ([1], {})


async def test_a_namespace_is_deleted_with_them(broker: MemoryBroker) -> None:
    assert (await broker.rest("PUT", "/namespaces/public/gone", {})).status == 204
    name = TopicName.parse("non-persistent://public/gone/t")
    await topic_of(broker, name)
    assert (await broker.rest("DELETE", "/namespaces/public/gone")).status == 409
    await broker.service.topics.delete(name)
    assert (await broker.rest("DELETE", "/namespaces/public/gone")).status == 204
    with pytest.raises(TopicNotFound):
        await topic_of(broker, name)


async def test_two_that_come_at_once_get_the_same_topic(broker: MemoryBroker) -> None:
    one, other = await asyncio.gather(topic_of(broker), topic_of(broker))
    assert one is other


async def test_either_kind_of_topics_can_be_switched_off() -> None:
    persistent = TopicName.parse("persistent://public/default/t")
    async with memory_broker(enable_non_persistent_topics=False) as broker:
        await broker.service.topics.any(persistent, may_create=True)
        with pytest.raises(NotAllowedError, match="enableNonPersistentTopics"):
            await topic_of(broker)
        assert (await broker.rest("PUT", f"{PATH}/t")).status == 409
    async with memory_broker(enable_persistent_topics=False) as broker:
        await topic_of(broker)
        with pytest.raises(NotAllowedError, match="enablePersistentTopics"):
            await broker.service.topics.any(persistent, may_create=True)


async def test_what_breaks_dispatch_closes_the_topic_only(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await topic_of(broker)
    peer = RecordingPeer()
    consumer_of(topic, peer, 1)

    def broken(*_: object) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(topic.subscriptions["s"].dispatcher, "assign", broken)
    assert publish(broker, topic, 1).receipts == [ONE_ID]
    await broker.until(lambda: not broker.service.loaded.non_persistent)
    assert peer.closed_consumers == [1]
    assert await topic_of(broker) is not topic


class OnlyEven(EntryFilter):
    """Accepts every other message; what it would look at later is gone as well."""

    def judge(self, entry: FilteredEntry) -> Verdict:
        number = int(entry.payload[-1:])
        return (Verdict.ACCEPT, Verdict.REJECT, Verdict.ACCEPT, Verdict.RESCHEDULE)[number % 4]


async def test_entry_filters_are_asked() -> None:
    peer = RecordingPeer()
    async with memory_broker(entry_filter_names=(f"{__name__}:OnlyEven",)) as broker:
        topic = await topic_of(broker)
        consumer = consumer_of(topic, peer, 100)
        publish(broker, topic, 8)
    counters = consumer.subscription.counters
    assert (len(peer.delivered), counters.filter_accepted, counters.filter_rejected) == (4, 4, 2)
    assert (counters.filter_rescheduled, counters.dropped_messages) == (2, 0)
