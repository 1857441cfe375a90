"""Unacknowledged messages, hashes of keys and draining hashes over REST, on a broker in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.support.findings import at_once
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.transactions import txn

from pybroker.broker.delivery.acknowledgement import Acknowledged
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.inspection.pages import START
from pybroker.broker.inspection.unacked import Wanted, candidates
from pybroker.broker.topic.topic import Topic
from pybroker.managed_ledger.pending_transaction_acks import PendingTransactionAcks
from pybroker.model.events import Ack, PartialAck, SendRun
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import compress

AT = "/persistent/public/default/t/subscription/s"
SHARED = ["Shared", "Key_Shared"]


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(acknowledgment_at_batch_index_level_enabled=True) as found:
        yield found


async def asked(broker: MemoryBroker, what: str, **query: Any) -> Any:
    answer = await broker.rest("GET", f"{AT}/{what}?{urlencode(query)}")
    assert answer.status == 200, answer.text
    return answer.json


async def all_pages(broker: MemoryBroker, what: str, rows: str, **query: Any) -> list[Any]:
    """The rows of all pages, one after the other."""
    found: list[Any] = []
    after: str | None = ""
    while after is not None:
        page = await asked(broker, what, after=after, **query)
        assert len(page[rows]) <= int(str(query.get("limit", 100)))
        found += page[rows]
        after = page["next"]
    return found


async def publish_raw(broker: MemoryBroker, topic: Topic, entries: Sequence[tuple[bytes, int]]) -> list[Position]:
    """Stored entries as they are given, with so many messages each."""
    peer = RecordingPeer()
    producer = broker.producer(topic, peer, "raw")
    run = SendRun(1)
    for index, (entry, messages) in enumerate(entries):
        run.sequence_ids.append(index)
        run.highest_sequence_ids.append(0)
        run.message_counts.append(messages)
        run.payloads.append(entry)
    run.size_bytes = sum(len(entry) for entry, _ in entries)
    topic.publish(producer, run)
    await producer.drained()
    producer.detach()
    return peer.receipts


def batch_of(keys: Sequence[str], compression: pb.CompressionType = pb.NONE, *, is_encrypted: bool = False) -> bytes:
    """A batch whose messages have these keys; its own metadata has the first."""
    payload = b""
    for index, key in enumerate(keys):
        single = pb.SingleMessageMetadata(payload_size=3, partition_key=key)
        single.properties.add(key="n", value=str(index))
        header = single.SerializeToString()
        payload += len(header).to_bytes(4, "big") + header + b"abc"
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=5, partition_key=keys[0], num_messages_in_batch=len(keys)
    )
    if compression != pb.NONE:
        metadata.compression = compression
        metadata.uncompressed_size = len(payload)
        payload = compress(compression, payload)
    if is_encrypted:
        metadata.encryption_keys.add(key="k", value=b"v")
        payload = bytes(each ^ 0x55 for each in payload)
    header = metadata.SerializeToString()
    return len(header).to_bytes(4, "big") + header + payload


def ack_messages(consumer: Consumer, position: Position, left: Sequence[int], count: int) -> None:
    """Acknowledge all messages of a batch but these."""
    ack = Ack(consumer.consumer_id)
    ack.partials.append(PartialAck(*position, [sum(1 << index for index in left)], count))
    consumer.subscription.acknowledge(consumer, ack)


# --- unacknowledged messages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHARED)
async def test_unacknowledged_messages_say_who_holds_them_since_when_and_what_they_are(
    broker: MemoryBroker, topic: Topic, kind: str
) -> None:
    consumer = await broker.consumer(topic, "s", RecordingPeer(), kind)
    first = await broker.publish(topic, 2, ["a", "b"])
    await broker.quiet(topic)
    broker.clock.now_ms += 1500
    await broker.publish(topic, 1, ["c"])
    await broker.quiet(topic)
    broker.clock.now_ms += 500
    acknowledge(consumer, first[:1])
    page = await asked(broker, "unacked")
    assert (page["total"], page["next"]) == (2, None)
    shown = page["messages"][0]
    assert shown.pop("size") > 80
    assert (shown.pop("hash") is None) == (kind == "Shared")
    assert shown == {
        "messageId": str(first[1]),
        "key": "b",
        "consumer": "c",
        "consumerId": 1,
        "deliveredAt": broker.clock.now_ms - 2000,
        "ageMs": 2000,
        "deliveryCount": 1,
        "publishTime": broker.clock.now_ms - 2000,
    }
    assert [each["ageMs"] for each in page["messages"]] == [2000, 500]
    assert [each["key"] for each in (await asked(broker, "unacked", minAgeMs=1000))["messages"]] == ["b"]
    assert [each["key"] for each in (await asked(broker, "unacked", key="c"))["messages"]] == ["c"]
    assert (await asked(broker, "unacked", keyBase64="Yw=="))["messages"][0]["key"] == "c"
    assert (await asked(broker, "unacked", consumer="nobody")) == {"messages": [], "next": None, "total": 0}
    consumer.subscription.redeliver(consumer, [first[1]], -1)
    await broker.quiet(topic)
    again = (await asked(broker, "unacked", consumer="c", limit=1))["messages"][0]
    assert (again["deliveryCount"], again["ageMs"]) == (2, 0)


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
async def test_with_one_active_consumer_the_list_is_what_was_read_for_it_and_is_not_acknowledged(
    broker: MemoryBroker, topic: Topic, kind: str
) -> None:
    consumer = await broker.consumer(topic, "s", RecordingPeer(), kind)
    positions = await broker.publish(topic, 3, ["a"])
    subscription = topic.subscriptions["s"]
    await broker.until(lambda: subscription.cursor.read_position > positions[-1])
    broker.clock.now_ms += 2000
    positions += await broker.publish(topic, 2, ["a"])
    await broker.until(lambda: subscription.cursor.read_position > positions[-1])
    now_ms = broker.clock.now_ms
    acknowledge(consumer, [positions[0], positions[2]])
    rows = await all_pages(broker, "unacked", "messages", limit=2)
    assert [each["messageId"] for each in rows] == [str(positions[index]) for index in (1, 3, 4)]
    assert {(each["consumer"], each["deliveryCount"]) for each in rows} == {("c", None)}
    assert [each["deliveredAt"] for each in rows] == [now_ms - 2000, now_ms, now_ms]
    assert [each["ageMs"] for each in rows] == [2000, 0, 0]
    assert (await asked(broker, "unacked", limit=1))["total"] == 3
    old = await asked(broker, "unacked", minAgeMs=1000)
    assert (old["total"], [each["messageId"] for each in old["messages"]]) == (1, [str(positions[1])])
    found = (await broker.rest("GET", f"{AT}/explain?consumer=c")).json
    assert found["findings"][0]["since"] == now_ms - 2000
    assert "delivered 2.0 s ago" in found["findings"][0]["sentence"]
    assert found["findings"][0]["evidence"]["entries"] == 4
    answer = await broker.rest("GET", f"{AT}/unacked?hash=7")
    assert answer.status == 412
    assert kind in answer.json["reason"]
    consumer.subscription.redeliver(consumer, None, -1)
    await broker.until(lambda: subscription.cursor.read_position > positions[-1])
    assert (await asked(broker, "unacked", minAgeMs=1000))["messages"] == []
    consumer.detach()
    assert (await asked(broker, "unacked"))["messages"] == []


async def test_what_is_sent_again_while_it_is_listed_is_held_by_nobody_yet(broker: MemoryBroker, topic: Topic) -> None:
    consumer = await broker.consumer(topic, "s", RecordingPeer(), "Exclusive")
    positions = await broker.publish(topic, 5)
    subscription = consumer.subscription
    await broker.until(lambda: subscription.cursor.read_position > positions[-1])  # type: ignore[attr-defined]
    listing = candidates(subscription, Wanted(), START, 10)  # type: ignore[arg-type]
    for _ in range(3):
        next(listing)
    subscription.redeliver(consumer, None, -1)  # Nothing is sent before the loop turns.
    assert [each.position for each in at_once(listing).entries] == positions[:2]


async def test_pages_are_whole_and_say_nothing_twice_while_messages_come_and_are_acknowledged(
    broker: MemoryBroker, topic: Topic
) -> None:
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    positions = await broker.publish(topic, 40)
    await broker.quiet(topic)
    seen: list[str] = []
    after: str | None = ""
    step = 0
    while after is not None:
        page = await asked(broker, "unacked", limit=7, after=after)
        seen += [each["messageId"] for each in page["messages"]]
        after = page["next"]
        # Acknowledged in front of and behind the page, given back, and published meanwhile.
        acknowledge(consumer, [positions[step], positions[39 - step]])
        consumer.subscription.redeliver(consumer, [positions[20]], -1)
        await broker.publish(topic, 1)
        await broker.quiet(topic)
        step += 1
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen, key=lambda text: [int(part) for part in text.split(":")])
    always = [str(position) for position in positions[step : 40 - step]]
    assert [each for each in seen if each in always] == always


@pytest.mark.parametrize("compression", [pb.NONE, pb.LZ4, pb.ZSTD])
async def test_of_a_batch_each_message_that_is_left_is_a_row_with_its_own_key(
    broker: MemoryBroker, topic: Topic, compression: pb.CompressionType
) -> None:
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    (position,) = await publish_raw(broker, topic, [(batch_of(["a", "b", "c", "d", "b"], compression), 5)])
    await broker.quiet(topic)
    ack_messages(consumer, position, [1, 2, 4], 5)
    rows = await all_pages(broker, "unacked", "messages", limit=2, withProperties="true")
    assert [each["messageId"] for each in rows] == [f"{position}:{index}" for index in (1, 2, 4)]
    assert [each["key"] for each in rows] == ["b", "c", "b"]
    assert [each["properties"] for each in rows] == [{"n": "1"}, {"n": "2"}, {"n": "4"}]
    assert {(each["size"], each["batchSize"], each["publishTime"]) for each in rows} == {(3, 5, 5)}
    assert (await asked(broker, "unacked", limit=1))["total"] == 3
    of_key = await all_pages(broker, "unacked", "messages", limit=1, key="b")
    assert [each["messageId"] for each in of_key] == [f"{position}:1", f"{position}:4"]


async def test_of_an_encrypted_batch_the_key_that_its_metadata_has_is_shown_and_that_it_is_encrypted(
    broker: MemoryBroker, topic: Topic
) -> None:
    await broker.consumer(topic, "s", RecordingPeer())
    entries = [(batch_of(["a", "a"], is_encrypted=True), 2), (batch_of(["a", "a"], pb.ZSTD)[:-9], 2)]
    positions = await publish_raw(broker, topic, entries)
    await broker.quiet(topic)
    rows = (await asked(broker, "unacked"))["messages"]
    assert [each["messageId"] for each in rows] == [f"{each}:{index}" for each in positions for index in (0, 1)]
    assert {(each["key"], each["size"]) for each in rows} == {("a", None)}
    assert [each.get("encrypted", False) for each in rows] == [True, True, False, False]
    assert [each["unreadable"].split(":")[0] for each in rows[1:3]] == [
        "the batch is encrypted",
        "the batch cannot be read",
    ]


async def test_what_a_transaction_has_acknowledged_is_held_by_it_and_still_unacknowledged(
    broker: MemoryBroker, topic: Topic
) -> None:
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    positions = await broker.publish(topic, 2)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    groups = ((positions[0].ledger_id, [positions[0].entry_id]),)
    assert subscription.transactions.hold(txn(7), Acknowledged(None, groups)) is None
    rows = (await asked(broker, "unacked"))["messages"]
    assert [each.get("heldByTransaction") for each in rows] == [str(txn(7)), None]
    assert consumer.state.unacked_messages == 2


async def test_unacked_page_finds_all_holding_transactions_at_once(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.consumer(topic, "s", RecordingPeer())
    keys = ["a", "b"]
    positions = await broker.publish(topic, 40, keys)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    for index, position in enumerate(positions[:-2]):
        groups = ((position.ledger_id, [position.entry_id]),)
        assert subscription.transactions.hold(txn(index + 1), Acknowledged(None, groups)) is None
    passes: list[int] = []
    holders_of = PendingTransactionAcks.holders_of

    def counted(self: PendingTransactionAcks, messages: Sequence[tuple[Position, int]]) -> Any:
        passes.append(len(messages))
        return holders_of(self, messages)

    monkeypatch.setattr(PendingTransactionAcks, "holders_of", counted)
    monkeypatch.setattr(PendingTransactionAcks, "holder_of", None)
    rows = (await asked(broker, "unacked"))["messages"]
    assert [each.get("heldByTransaction") for each in rows] == [*(str(txn(i + 1)) for i in range(38)), None, None]
    rows = (await asked(broker, "unacked", key="b", limit=3))["messages"]
    assert [each.get("heldByTransaction") for each in rows] == [str(txn(2)), str(txn(4)), str(txn(6))]
    assert passes == [40, 3]


async def test_a_key_is_found_by_reading_where_nobody_knows_hashes_and_a_request_reads_a_bounded_number(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.broker.inspection.unacked.MAX_ENTRIES_READ", 10)
    await broker.consumer(topic, "s", RecordingPeer())
    positions = await broker.publish(topic, 45, ["k", *["other"] * 29])
    await broker.quiet(topic)
    pages = []
    after: str | None = ""
    while after is not None:
        page = await asked(broker, "unacked", key="k", after=after)
        pages.append([each["messageId"] for each in page["messages"]])
        after = page["next"]
    assert [each for page in pages for each in page] == [str(positions[0]), str(positions[30])]
    assert len(pages) == 5


async def test_long_keys_and_many_properties_are_cut_and_say_so(broker: MemoryBroker, topic: Topic) -> None:
    await broker.consumer(topic, "s", RecordingPeer())
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=5, ordering_key=b"\xff" * 3000)
    for index in range(1000):
        metadata.properties.add(key=str(index), value="v" * 100)
    header = metadata.SerializeToString()
    await publish_raw(broker, topic, [(len(header).to_bytes(4, "big") + header, 1)])
    await broker.quiet(topic)
    (row,) = (await asked(broker, "unacked", withProperties="true"))["messages"]
    assert row["keyBase64"].startswith("////")
    assert row["keyCut"]
    assert row["propertiesCut"]
    assert 0 < len(row["properties"]) < 200


async def test_what_cannot_be_meant_is_refused_with_the_reason(broker: MemoryBroker, topic: Topic) -> None:
    await broker.consumer(topic, "s", RecordingPeer())
    for query, reason in (
        ("limit=0", "limit is 0"),
        ("after=AAAA", "use the value of `next`"),
        ("after=%ff", "use the value of `next`"),
        ("after=WyJkcmFpbmluZyIsMV0", "use the value of `next`"),
        ("key=a&keyBase64=YQ==", "only one of key and keyBase64"),
        ("keyBase64=%21", "not Base64"),
        ("hash=5", "only Key_Shared subscriptions have hashes"),
    ):
        answer = await broker.rest("GET", f"{AT}/unacked?{query}")
        assert (answer.status, reason in answer.json["reason"]) == (412, True), query
    assert (await broker.rest("GET", f"{AT}/unacked?key={'k' * 9000}")).status == 431


async def test_looking_is_answered_in_the_middle_of_unload_deletion_and_consumers_that_come_and_go(
    broker: MemoryBroker, topic: Topic
) -> None:
    await broker.consumer(topic, "s", RecordingPeer(), "Key_Shared")
    await broker.publish(topic, 300, [f"k{index}" for index in range(50)])
    statuses: set[int] = set()

    async def look() -> None:
        for what in ("unacked?limit=20", "hash?key=k1", "drainingHashes", "waiting", "unacked?key=k7"):
            statuses.add((await broker.rest("GET", f"{AT}/{what}")).status)

    async def churn() -> None:
        for index in range(3):
            topic_now = await broker.topic("persistent://public/default/t")
            consumer = broker.consumer_on(topic_now.subscriptions["s"], RecordingPeer(), "Key_Shared", f"c{index}")
            await asyncio.sleep(0)
            await broker.rest("PUT", "/persistent/public/default/t/unload")
            consumer.detach() if not consumer.is_closed else None
        await broker.rest("DELETE", f"{AT}?force=true")

    await asyncio.gather(churn(), *(look() for _ in range(8)))
    assert statuses <= {200, 404, 412, 503}
    assert 200 in statuses


async def test_non_persistent_and_partitioned_topics_have_no_such_list(broker: MemoryBroker) -> None:
    await broker.rest("PUT", "/persistent/public/default/parts/partitions", 2)
    answer = await broker.rest("GET", "/persistent/public/default/parts/subscription/s/unacked")
    assert answer.status in (405, 412)
    answer = await broker.rest("GET", "/non-persistent/public/default/np/subscription/s/unacked")
    assert answer.status in (404, 405)


# --- hashes ------------------------------------------------------------------------------------------------------------------


async def test_the_hash_of_a_key_says_whose_it_is_and_that_it_drains(broker: MemoryBroker, topic: Topic) -> None:
    first = await broker.consumer(topic, "s", RecordingPeer(), "Key_Shared")
    keys = [f"k{index}" for index in range(40)]
    positions = await broker.publish(topic, 80, keys)
    await broker.quiet(topic)
    owned = await asked(broker, "hash", key="k1")
    assert owned["state"] == "owned"
    assert owned["range"][0] <= owned["hash"] <= owned["range"][1]
    assert owned["consumer"] == {"name": "c", "id": 1, "address": first.peer.address}
    broker.clock.now_ms += 1000
    second = broker.consumer_on(topic.subscriptions["s"], RecordingPeer(), "Key_Shared", "late")
    await broker.publish(topic, 40, keys)
    await broker.quiet(topic)
    broker.clock.now_ms += 1000
    states = {key: await asked(broker, "hash", key=key) for key in keys}
    moved = [key for key in keys if states[key]["consumer"]["name"] == "late"]
    assert moved
    assert {states[key]["state"] for key in keys if key not in moved} == {"owned"}
    for key in moved:
        assert states[key]["state"] == "draining"
        draining = states[key]["draining"]
        assert (draining["oldConsumer"]["name"], draining["since"]) == ("c", broker.clock.now_ms - 1000)
        assert draining["unackedMessages"] >= 2
        assert states[key]["waiting"] >= 1

    rows = await all_pages(broker, "drainingHashes", "hashes", limit=3)
    assert sorted(key for row in rows for key in row["keys"]) == sorted(moved)
    hashes = [row["hash"] for row in rows]
    assert hashes == sorted(set(hashes))
    for row in rows:
        assert (row["oldConsumer"]["name"], row["newConsumer"]["name"]) == ("c", "late")
        held = (await asked(broker, "unacked", hash=row["hash"]))["messages"]
        assert row["messageIds"] == [each["messageId"] for each in held]
        assert row["unackedMessages"] == len(held)
        assert row["blockedAttempts"] > 0
    waiting = await asked(broker, "waiting")
    assert [each["hash"] for each in waiting["hashes"]] == hashes
    assert {(each["reason"], each["because"]["name"]) for each in waiting["hashes"]} == {("draining", "c")}
    assert waiting["entries"] == sum(each["entries"] for each in waiting["hashes"]) == len(moved)

    acknowledge(first, positions)
    assert (await asked(broker, "drainingHashes"))["hashes"] == []
    await broker.until(lambda: second.state.unacked_messages == len(moved))
    assert (await asked(broker, "hash", key=moved[0]))["state"] == "owned"


async def test_a_hash_without_an_owner_and_types_without_hashes_say_so(broker: MemoryBroker, topic: Topic) -> None:
    await topic.subscription("s", True, True, {})
    assert (await broker.rest("GET", f"{AT}/hash?key=a")).status == 412
    consumer = await broker.consumer(topic, "s", RecordingPeer(), "Key_Shared")
    consumer.detach()
    found = await asked(broker, "hash", keyBase64="/w==")
    assert (found["keyBase64"], found["state"], found["consumer"], found["range"]) == ("/w==", "unowned", None, None)
    shared = await broker.consumer(topic, "s", RecordingPeer(), "Shared")
    for what in ("hash?key=a", "drainingHashes", "waiting"):
        answer = await broker.rest("GET", f"{AT}/{what}")
        assert answer.status == 412
        assert "Shared" in answer.json["reason"]
    shared.detach()
    assert (await broker.rest("GET", f"{AT}/hash")).status == 412
