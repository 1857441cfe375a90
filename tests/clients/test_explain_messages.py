"""What became of a message: each answer of `explain`, made by a client's doing and not by the broker's insides."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.async_client import binary_port
from tests.support.explaining import TOPIC, Explained, codes, explained, received
from tests.support.memory_broker import memory_broker

from pybroker.broker.entry_filters import EntryFilter, FilteredEntry, Verdict
from pybroker.client import MessageId, MessageProducer, OutgoingMessage
from pybroker.client.producing.entry_producer import open_producer
from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.errors import DamagedEntries
from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_builder import framed

AT = "/persistent/public/default/t"


@pytest.fixture
async def world() -> AsyncIterator[Explained]:
    async with explained(acknowledgmentAtBatchIndexLevelEnabled=True) as running:
        yield running


async def send(producer: MessageProducer, count: int, **options: Any) -> list[MessageId]:
    return [await producer.send(b"m%d" % index, **options) for index in range(count)]


async def test_what_is_at_a_consumer_names_it_and_its_redelivery(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", name="c1", from_earliest=True)
    (sent,) = await send(producer, 1)
    await received(consumer, 1)
    await world.broker.clock.advance(seconds=12)
    (found,) = await world.of_message(sent)
    assert (found["code"], found["waits"]) == ("held-by-consumer", False)
    assert found["evidence"]["consumer"] == "c1"
    assert found["evidence"]["consumerId"] == world.subscription().consumers[0].consumer_id
    assert found["evidence"]["address"] == world.subscription().consumers[0].peer.address
    assert found["evidence"]["deliveryCount"] == 1
    assert "c1" in found["sentence"]
    assert [each["method"] for each in found["actions"]] == ["GET", "POST", "POST"]
    assert (await world.rest("GET", found["actions"][0]["path"])).status == 200
    assert re.search(r" for \d\d s\b", found["sentence"]), "the twelve seconds, and what passed meanwhile"
    again = found["actions"][1]
    await world.done(again["method"], again["path"])
    await received(consumer, 1)
    (found,) = await world.of_message(sent)
    assert found["evidence"]["deliveryCount"] == 2
    assert "for the 2nd time" in found["sentence"]
    await world.broker.clock.advance(hours=2)
    silent, found = await world.of_message(sent)
    assert (silent["code"], found["code"]) == ("consumer-silent", "held-by-consumer")


async def test_what_an_ordered_consumer_was_sent_is_with_it(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", name="only", from_earliest=True)
    sent = await send(producer, 2)
    await received(consumer, 2)
    (found,) = await world.of_message(sent[1])
    assert (found["code"], found["evidence"]["consumer"]) == ("held-by-consumer", "only")


async def test_what_is_acknowledged_says_how(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
    sent = await send(producer, 4)
    messages = await received(consumer, 4)
    await consumer.ack(messages[0], messages[2], wants_receipt=True)
    (first,) = await world.of_message(sent[0])
    (third,) = await world.of_message(sent[2])
    assert first["code"] == third["code"] == "already-acknowledged"
    assert first["evidence"]["by"] == "mark-delete position"
    assert third["evidence"]["by"] == "single acknowledgement"
    assert third["evidence"]["markDeletePosition"] == f"{sent[0].ledger_id}:{sent[0].entry_id}"
    (action,) = third["actions"]
    await world.done(action["method"], action["path"], action["body"])
    assert codes(await world.of_message(sent[2])) != ["already-acknowledged"]


async def test_of_a_batch_each_message_is_told_by_itself(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batch_delay_s=0.2)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True, keeps_batch_bits=True)
    await asyncio.gather(*(producer.send(b"%d" % index) for index in range(6)))
    messages = await received(consumer, 6)
    batch = [each for each in messages if each.id.batch_size == 5]
    assert len(batch) == 5
    await consumer.ack(batch[0], batch[3], wants_receipt=True)
    (acked,) = await world.of_message(batch[3].id)
    (held,) = await world.of_message(batch[4].id)
    assert acked["code"] == "already-acknowledged"
    assert acked["evidence"]["unacknowledgedBatchIndexes"] == [1, 2, 4]
    assert held["code"] == "held-by-consumer"
    assert held["evidence"]["unacknowledgedBatchIndexes"] == [1, 2, 4]
    assert held["evidence"]["unacknowledgedMessages"] == 3
    entry = f"{batch[0].id.ledger_id}:{batch[0].id.entry_id}"
    (beyond,) = await world.of_message(f"{entry}:5")
    assert beyond["code"] == "message-never-existed"
    assert beyond["evidence"]["batchSize"] == 5
    (beyond,) = await world.of_message(f"{entry}:9223372036854775807")
    assert beyond["code"] == "message-never-existed"
    (same,) = await world.of_message(f"{entry}:-1:3")  # as clients print it
    assert same["code"] == "already-acknowledged"


async def test_an_id_that_never_was_says_where_the_topic_ends(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    await world.client.consumer(TOPIC, "s", from_earliest=True)
    last = (await send(producer, 3))[-1]
    for text in (
        f"{last.ledger_id}:{last.entry_id + 1}",
        f"{last.ledger_id + 1000}:0",
        f"{last.ledger_id}:-1",
        "-1:-1",
        "9223372036854775807:9223372036854775807",
    ):
        (found,) = await world.of_message(text)
        assert (found["code"], found["waits"]) == ("message-never-existed", False), text
        assert found["evidence"]["lastMessageId"] == f"{last.ledger_id}:{last.entry_id}"
    (before,) = await world.of_message(f"{last.ledger_id - 1}:0")  # perhaps of an earlier topic of that name
    assert before["code"] == "message-trimmed"
    assert before["evidence"]["forgottenUpToLedger"] == last.ledger_id - 1


@pytest.mark.parametrize(
    "text",
    ["", "5", "a:b", "1:2:3:4:5", "1:" + "9" * 70, "1:99999999999999999999", "1:2:", "1%20:2", "%D9%A1:2", "--1:2"],
)
async def test_what_is_no_id_is_refused(world: Explained, text: str) -> None:
    await world.client.consumer(TOPIC, "s", from_earliest=True)
    answer = await world.rest("GET", f"{AT}/subscription/s/explain?messageId={text}")
    assert answer.status == 400, answer
    assert "messageId" in answer.text


async def test_what_is_behind_the_read_position_counts_those_before_it_and_says_what_stops_the_subscription(
    world: Explained,
) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True, queue_messages=2)
    sent = await send(producer, 8)
    await world.until(lambda: world.subscription().cursor.read_position.entry_id == sent[2].entry_id)
    stopped, fine = await world.of_message(sent[6])
    assert stopped["code"] == "no-permits"
    assert (fine["code"], fine["waits"]) == ("not-reached-yet", False)
    assert fine["evidence"]["entriesBefore"] == 4
    next_one = (await world.of_message(sent[2]))[-1]
    assert next_one["evidence"]["entriesBefore"] == 0
    await consumer.close()
    assert codes(await world.of_message(sent[0])) == ["no-consumers", "not-reached-yet"]


async def test_what_is_delayed_says_until_when(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
    due_ms = world.broker.clock.now_ms() + 3_600_000
    (sent,) = await send(producer, 1, deliver_at_ms=due_ms)
    await world.until(lambda: world.subscription().delayed.entry_count == 1)
    (found,) = await world.of_message(sent)
    assert (found["code"], found["waits"], found["evidence"]["deliverAt"]) == ("delayed", False, due_ms)
    await world.broker.clock.advance(hours=1, seconds=2)
    await received(consumer, 1)
    assert codes(await world.of_message(sent)) == ["held-by-consumer"]


async def test_a_delay_that_was_changed_is_told_and_can_be_ended(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
    due_ms = world.broker.clock.now_ms() + 3_600_000
    (sent,) = await send(producer, 1, deliver_at_ms=due_ms)
    await world.until(lambda: world.subscription().delayed.entry_count == 1)
    (found,) = await world.of_message(sent)
    (now,) = found["actions"]
    await world.done("PUT", now["path"], {"deliverAt": due_ms + 60_000})
    (found,) = await world.of_message(sent)
    assert found["evidence"]["deliverAt"] == due_ms + 60_000
    await world.done(now["method"], now["path"])
    await received(consumer, 1)
    assert codes(await world.of_message(sent)) == ["held-by-consumer"]


async def test_what_expired_and_what_was_skipped_is_told_apart_from_what_was_acknowledged(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
    sent = await send(producer, 3)
    messages = await received(consumer, 3)
    await consumer.ack(messages[0], wants_receipt=True)
    await consumer.close()
    await world.broker.clock.advance(minutes=10)
    later = await send(producer, 2)
    await world.done("POST", f"{AT}/subscription/s/expireMessages/300")
    await world.done("POST", f"{AT}/subscription/s/skip/1")
    assert codes(await world.of_message(sent[0])) == ["already-acknowledged"]
    (expired,) = await world.of_message(sent[1])
    assert (expired["code"], expired["evidence"]["entries"]) == ("expired", 2)
    assert "unless" not in expired["sentence"]
    (skipped,) = await world.of_message(later[0])
    assert (skipped["code"], skipped["evidence"]["entries"]) == ("skipped", 1)
    assert codes(await world.of_message(later[1])) == ["no-consumers", "not-reached-yet"]
    await world.done(
        "POST", f"{AT}/subscription/s/resetcursor", {"ledgerId": sent[1].ledger_id, "entryId": sent[1].entry_id}
    )
    assert codes(await world.of_message(sent[1])) == ["no-consumers", "not-reached-yet"]


async def test_time_to_live_is_named_as_the_reason() -> None:
    async with explained(ttlDurationDefaultInSeconds=60) as world:
        producer = await world.client.producer(TOPIC, batching=False)
        await (await world.client.consumer(TOPIC, "s", from_earliest=True)).close()
        (sent,) = await send(producer, 1)
        await world.broker.clock.advance(minutes=30)
        await world.until(lambda: not world.subscription().backlog_entries)
        (found,) = await world.of_message(sent)
        assert found["code"] == "expired"
        assert "policy messageTTL" in found["sentence"]


async def test_what_was_trimmed_says_so_with_its_ledger(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", from_earliest=True)
    sent = await send(producer, 3)
    messages = await received(consumer, 3)
    await consumer.ack_cumulative(messages[-1], wants_receipt=True)
    await world.done("PUT", f"{AT}/unload")
    await send(producer, 1)  # in the next ledger
    await world.topic().ledger.trim()
    (found,) = await world.of_message(sent[1])
    assert found["code"] == "message-trimmed"
    assert found["evidence"]["trimmedLedger"] == {"ledgerId": sent[0].ledger_id, "entries": 3}
    (never,) = await world.of_message(f"{sent[0].ledger_id}:3")
    assert never["code"] == "message-never-existed"


async def test_open_and_aborted_transactions_are_named(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, name="p", batching=False)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", name="c", from_earliest=True)
    transaction = await world.client.transaction()
    inside = await producer.send(b"in", transaction=transaction)
    behind = await producer.send(b"behind")
    await world.broker.clock.advance(seconds=5)
    (uncommitted,) = await world.of_message(inside)
    (waiting,) = await world.of_message(behind)
    assert (uncommitted["code"], uncommitted["waits"]) == ("message-uncommitted", True)
    assert (waiting["code"], waiting["waits"]) == ("behind-transaction", True)
    for found in (uncommitted, waiting):
        assert found["evidence"]["transaction"] == str(transaction.id)
        assert found["evidence"]["producer"] == "p"
        assert found["evidence"]["firstMessageId"] == f"{inside.ledger_id}:{inside.entry_id}"
        assert found["evidence"]["timeoutAt"] > found["evidence"]["openedAt"]
        look, abort = found["actions"]
        assert (await world.rest(look["method"], look["path"])).status == 200
    await world.done(abort["method"], abort["path"])
    await received(consumer, 1)
    (aborted,) = await world.of_message(inside)
    assert (aborted["code"], aborted["evidence"]) == ("message-aborted", {"transaction": str(transaction.id)})
    (marker,) = await world.of_message(f"{behind.ledger_id}:{behind.entry_id + 1}")
    assert (marker["code"], marker["evidence"]) == ("marker", {"transaction": str(transaction.id)})


async def test_an_acknowledgement_of_an_open_transaction_holds_the_message(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", name="c", from_earliest=True)
    (sent,) = await send(producer, 1)
    (message,) = await received(consumer, 1)
    transaction = await world.client.transaction()
    await consumer.ack(message, transaction=transaction)
    await world.broker.clock.advance(seconds=5)
    (found,) = await world.of_message(sent)
    assert (found["code"], found["waits"]) == ("held-by-transaction", False)
    assert found["evidence"]["transaction"] == str(transaction.id)
    assert found["evidence"]["consumer"] == "c"
    await transaction.commit()
    assert codes(await world.of_message(sent)) == ["already-acknowledged"]


async def test_a_key_that_moved_holds_its_later_messages_up(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    first = await world.client.consumer(TOPIC, "s", kind="key_shared", name="first", from_earliest=True)
    keys = [f"k{index}" for index in range(12)]
    for key in keys:
        await producer.send(b"held", key=key)
    held = await received(first, 12)
    await world.client.consumer(TOPIC, "s", kind="key_shared", name="second")
    later = {key: await producer.send(b"later", key=key) for key in keys}
    await world.until(lambda: not world.subscription().cursor.has_more())
    found = {key: await world.of_message(message_id) for key, message_id in later.items()}
    moved = {key: each for key, each in found.items() if "waits-for-key" in codes(each)}
    assert moved
    assert len(moved) < 12
    for key, each in found.items():
        if key not in moved:
            assert codes(each) == ["held-by-consumer"]
    key, findings = next(iter(moved.items()))
    waits = next(each for each in findings if each["code"] == "waits-for-key")
    assert "key-drains" in codes(findings)
    assert waits["waits"]
    assert waits["evidence"]["consumer"] == "first"
    assert waits["evidence"]["waitingOfHash"] >= 1
    await first.ack(*held, wants_receipt=True)
    await world.until(lambda: not world.subscription().replay_entry_count)
    assert codes(await world.of_message(later[key])) == ["held-by-consumer"]


async def test_a_message_whose_keys_consumer_is_full_waits_for_it(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    await world.client.consumer(TOPIC, "s", kind="key_shared", name="full", from_earliest=True, queue_messages=1)
    await world.client.consumer(TOPIC, "s", kind="key_shared", name="free")
    sent = {}
    for index in range(40):
        sent[f"k{index}"] = await producer.send(b"m", key=f"k{index}")
    await world.until(
        lambda: world.subscription().replay_entry_count > 0 and not world.subscription().cursor.has_more()
    )
    found = [await world.of_message(each) for each in sent.values()]
    waiting = [next((f for f in each if f["code"] == "waits-for-consumer"), None) for each in found]
    named = [each for each in waiting if each is not None]
    assert named
    assert {each["evidence"]["consumer"] for each in named} == {"full"}
    assert all(each["waits"] and "no consumer has permits" in each["sentence"] for each in named)


async def test_what_was_given_back_waits_when_nobody_can_take_it(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    first = await world.client.consumer(TOPIC, "s", kind="shared", name="leaves", from_earliest=True)
    sent = await send(producer, 5)
    await received(first, 5)
    await world.client.consumer(TOPIC, "s", kind="shared", name="full", queue_messages=1)
    await producer.send(b"fills")
    await world.until(lambda: world.subscription().unacked_messages == 6)
    await first.close()
    await world.until(lambda: world.subscription().stall is not None)
    found = [await world.of_message(each) for each in sent]
    waiting = [each for each in found if "waits-for-redelivery" in codes(each)]
    assert waiting
    for each in waiting:
        assert codes(each) == ["no-permits", "waits-for-redelivery"]
        assert each[1]["evidence"]["deliveries"] == 1


async def test_readers_of_a_compacted_topic_do_not_get_what_a_later_message_replaced(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    old = await producer.send(b"old", key="k")
    new = await producer.send(b"new", key="k")
    await world.done("PUT", f"{AT}/compaction")
    await world.until(lambda: world.topic().ledger.compacted is not None)
    consumer = await world.client.consumer(TOPIC, "s", from_earliest=True, read_compacted=True)
    await received(consumer, 1)
    (found,) = await world.of_message(old)
    assert (found["code"], found["waits"]) == ("compacted-away", False)
    assert found["evidence"] == {"horizon": f"{new.ledger_id}:{new.entry_id}", "compactedEntries": 1}
    assert codes(await world.of_message(new)) == ["held-by-consumer"]


async def test_parts_of_a_large_message_are_with_their_consumer(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, chunking=True)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", name="c", from_earliest=True)
    whole = await producer.send(bytes(12 * 1024 * 1024))
    await received(consumer, 1)
    assert whole.first_chunk is not None
    assert codes(await world.of_message(f"{whole.first_chunk[0]}:{whole.first_chunk[1]}")) == ["held-by-consumer"]


async def test_a_subscription_of_a_non_persistent_topic_has_no_messages_to_ask_for(world: Explained) -> None:
    name = "non-persistent://public/default/t"
    await world.client.consumer(name, "s")
    answer = await world.rest("GET", "/non-persistent/public/default/t/subscription/s/explain?messageId=1:1")
    assert answer.status == 405, answer


async def test_questions_in_the_middle_of_everything_are_answered(world: Explained) -> None:
    """Consumers come and go, the topic is unloaded and deleted: each question has an answer, and none a fault."""
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", kind="key_shared", from_earliest=True)
    sent = [await producer.send(b"m", key=f"k{index % 7}") for index in range(40)]
    await received(consumer, 20)
    stop = asyncio.Event()
    seen: list[int] = []

    async def ask() -> None:
        for message_id in itertools.cycle(sent):
            if stop.is_set():
                return
            text = f"{message_id.ledger_id}:{message_id.entry_id}"
            seen.append((await world.rest("GET", f"{AT}/subscription/s/explain?messageId={text}")).status)
            seen.append((await world.rest("GET", f"{AT}/explain")).status)
            seen.append((await world.rest("GET", f"{AT}/explain?producer={producer.name}")).status)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(ask())
        for _ in range(3):
            other = await world.client.consumer(TOPIC, "s", kind="key_shared")
            await world.rest("PUT", f"{AT}/unload")
            await other.close()
        await consumer.close()
        await producer.close()
        await world.rest("DELETE", f"{AT}?force=true")
        stop.set()
    assert set(seen) <= {200, 404, 503, 429}, set(seen)
    assert 200 in seen


async def test_after_a_crash_what_was_acknowledged_is_and_what_was_held_waits_again(world: Explained) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
    sent = await send(producer, 2)
    messages = await received(consumer, 2)
    await consumer.ack(messages[0], wants_receipt=True)
    await world.client.close()
    await world.broker.restart()
    assert codes(await world.of_message(sent[0])) == ["already-acknowledged"]
    assert codes(await world.of_message(sent[1])) == ["no-consumers", "not-reached-yet"]


async def test_a_message_on_its_way_to_the_disk_is_no_error(world: Explained, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
    (sent,) = await send(producer, 1)
    store = world.topic().broker_context.ledgers.store
    complete = store._complete  # type: ignore[attr-defined]
    monkeypatch.setattr(store, "_complete", lambda: None)
    receipt = await producer.submit(OutgoingMessage(b"slow"))
    await world.until(lambda: world.topic().ledger.pending_entries == 1)
    (found,) = await world.of_message(f"{sent.ledger_id}:{sent.entry_id + 1}")
    assert (found["code"], found["waits"]) == ("message-being-stored", True)
    (found,) = await world.of_message(f"{sent.ledger_id}:{sent.entry_id + 2}")
    assert found["code"] == "message-never-existed"
    monkeypatch.undo()
    complete()
    await receipt
    assert codes(await world.of_message(f"{sent.ledger_id}:{sent.entry_id + 1}")) == ["held-by-consumer"]


async def test_a_part_of_a_message_whose_others_were_never_sent_keeps_its_consumer_waiting(world: Explained) -> None:
    raw = await open_producer(world.client, TopicName.parse(TOPIC))
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", name="c", from_earliest=True)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, uuid="u-1")
    metadata.num_chunks_from_msg, metadata.chunk_id, metadata.total_chunk_msg_size = 3, 1, 30
    await (await raw.send(framed(metadata, b"second"), 0, is_chunk=True))
    await world.until(lambda: world.subscription().unacked_messages == 1)
    position = world.topic().ledger.last_confirmed
    found = {each["code"]: each for each in await world.of_message(position)}
    assert found.keys() == {"chunks-missing", "held-by-consumer"}
    missing = found["chunks-missing"]
    assert not missing["waits"]
    assert missing["evidence"]["uuid"] == "u-1"
    assert (missing["evidence"]["chunkId"], missing["evidence"]["chunks"], missing["evidence"]["heldChunks"]) == (
        1,
        3,
        1,
    )
    assert missing["evidence"]["consumer"] == "c"
    await consumer.close()


class ByKey(EntryFilter):
    """Rejects the key `no`, and puts `later` off."""

    def judge(self, entry: FilteredEntry) -> Verdict:
        key = entry.metadata.partition_key
        return {"no": Verdict.REJECT, "later": Verdict.RESCHEDULE}.get(key, Verdict.ACCEPT)


async def test_what_entry_filters_reject_or_put_off_is_told() -> None:
    async with explained(entryFilterNames=f"{__name__}:ByKey") as world:
        producer = await world.client.producer(TOPIC, batching=False)
        consumer = await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)
        sent = {key: await producer.send(b"m", key=key) for key in ("yes", "no", "later", "last")}
        await received(consumer, 2)
        (rejected,) = await world.of_message(sent["no"])
        assert (rejected["code"], rejected["waits"]) == ("filtered", False)
        assert rejected["evidence"]["entryFilters"] == ["ByKey"]
        found = await world.of_message(sent["later"])
        assert "message-put-off" in codes(found)
        assert next(each for each in found if each["code"] == "message-put-off")["waits"]
        assert codes(await world.of_message(sent["yes"])) == ["held-by-consumer"]


async def test_what_cannot_be_read_is_told_with_its_position(world: Explained, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = await world.client.producer(TOPIC, batching=False)
    await (await world.client.consumer(TOPIC, "s", kind="shared", from_earliest=True)).close()
    sent = await send(producer, 3)
    bad = sent[1]
    await producer.close()
    await world.broker.restart()
    store = world.broker.broker.service.broker_context.ledgers.store
    read = store.read

    async def damaged(ledger_id: int, first: int, entries: int, size_bytes: int) -> object:
        if ledger_id == bad.ledger_id and first <= bad.entry_id < first + entries:
            if first == bad.entry_id:
                raise DamagedEntries(ledger_id, first, first, "its checksum does not match")
            entries = bad.entry_id - first
        return await read(ledger_id, first, entries, size_bytes)

    monkeypatch.setattr(store, "read", damaged)
    monkeypatch.setattr(store, "read_buffered", lambda *_: None)
    consumer = await world.client.consumer(TOPIC, "s", kind="shared", name="c")
    await received(consumer, 1)
    stall = world.subscription
    await world.until(lambda: (now := stall().stall) is not None and now.blocked_reason is BlockedReason.READ_FAILED)
    found = await world.of_message(bad)
    assert codes(found)[0] in ("read-failed", "entry-damaged")
    entry = next(each for each in found if each["code"] == "entry-damaged")
    assert entry["waits"]
    assert entry["evidence"]["messageId"] == f"{bad.ledger_id}:{bad.entry_id}"
    assert "its checksum does not match" in entry["sentence"]
    assert "entry-damaged" not in codes(await world.of_message(sent[2]))


async def test_what_finds_no_room_in_the_look_ahead_is_set_aside() -> None:
    async with explained(keySharedLookAheadMaxBytesPerSubscription=2000) as world:
        producer = await world.client.producer(TOPIC, batching=False)
        await world.client.consumer(TOPIC, "s", kind="key_shared", name="full", from_earliest=True, queue_messages=1)
        await world.client.consumer(TOPIC, "s", kind="key_shared", name="free")
        sent = [await producer.send(b"m", key=f"k{index}") for index in range(60)]
        await world.until(lambda: not world.subscription().cursor.has_more())
        found = [await world.of_message(each) for each in sent]
        aside = [each for each in found if "set-aside" in codes(each)]
        assert aside
        assert {code for each in found for code in codes(each)} >= {
            "set-aside",
            "waits-for-consumer",
            "held-by-consumer",
        }
        assert all("setAsideFrom" in f["evidence"] for each in aside for f in each if f["code"] == "set-aside")


async def test_a_reader_of_some_hashes_says_of_others_that_they_are_not_for_it() -> None:
    async with memory_broker() as broker, binary_port(broker) as port:
        topic = await broker.topic(TOPIC)
        positions = await broker.publish(topic, 8, [f"k{index}" for index in range(8)])
        reader = await port.connect()
        half = pb.KeySharedMeta(keySharedMode=pb.STICKY)
        half.hashRanges.add(start=0, end=32767)
        await reader.answer(reader.subscribe(TOPIC, sub_type="Exclusive", keySharedMeta=half))
        reader.send(pb.BaseCommand.FLOW, consumer_id=1, messagePermits=100)
        await broker.until(lambda: not topic.subscriptions["s"].cursor.has_more())
        answers = [await broker.rest("GET", f"{AT}/subscription/s/explain?messageId={each}") for each in positions]
        found = [answer.json["findings"][0] for answer in answers]
        outside = [each for each in found if each["code"] == "outside-hash-ranges"]
        assert outside
        assert {each["code"] for each in found} == {"outside-hash-ranges", "held-by-consumer"}
        assert all(each["evidence"]["hash"] > 32767 for each in outside)
        assert all(each["evidence"]["ranges"] == [[0, 32767]] for each in outside)
