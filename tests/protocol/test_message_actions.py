"""Single messages acknowledged and sent again over REST, consumers and producers disconnected, and the audit log of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from tests.protocol.test_unacked_routes import batch_of, publish_raw
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.rest import call
from tests.support.transactions import ABORT, COMMIT, send, txn

from pybroker.broker.delivery.acknowledgement import Acknowledged, PartOfBatch
from pybroker.broker.topic.topic import Topic
from pybroker.errors import PersistenceError, StoreError
from pybroker.model.position import Position

TOPIC = "/persistent/public/default/t"
AT = f"{TOPIC}/subscription/s"
ALL_KINDS = ["Exclusive", "Failover", "Shared", "Key_Shared"]


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(
        acknowledgment_at_batch_index_level_enabled=True, active_consumer_failover_delay_time_millis=0
    ) as found:
        yield found


async def act(broker: MemoryBroker, position: Position, what: str, query: str = "") -> tuple[int, str]:
    answer = await broker.rest("POST", f"{AT}/message/{position.ledger_id}/{position.entry_id}/{what}{query}")
    return answer.status, answer.json["reason"] if answer.text else ""


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_a_message_is_acknowledged_for_good_whoever_holds_it(
    broker: MemoryBroker, topic: Topic, kind: str
) -> None:
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer, kind)
    positions = await broker.publish(topic, 4, ["a", "b"])
    await broker.until(lambda: len(peer.delivered) >= 4)
    subscription = topic.subscriptions["s"]
    assert await act(broker, positions[1], "acknowledge") == (204, "")
    assert subscription.cursor.state.is_deleted(*positions[1])
    assert consumer.state.unacked_messages == (3 if kind in ("Shared", "Key_Shared") else 0)
    # Whoever acknowledges it as well changes nothing, and once more is the same.
    acknowledge(consumer, [positions[1]])
    assert await act(broker, positions[1], "acknowledge") == (204, "")
    assert subscription.backlog_entries == 3
    await broker.rest("PUT", f"{TOPIC}/unload")
    again = RecordingPeer()
    topic_again = await broker.topic("persistent://public/default/t")
    await broker.consumer(topic_again, "s", again, kind)
    await broker.until(lambda: len(again.delivered) >= 3)
    assert again.delivered == [positions[0], positions[2], positions[3]]


async def test_one_message_of_a_batch_is_acknowledged_and_the_last_one_ends_the_batch(
    broker: MemoryBroker, topic: Topic
) -> None:
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    (position,) = await publish_raw(broker, topic, [(batch_of(["a", "b", "c"]), 3)])
    (single,) = await broker.publish(topic, 1)
    await broker.quiet(topic)
    assert consumer.state.unacked_messages == 4
    assert await act(broker, position, "acknowledge", "?batchIndex=1") == (204, "")
    assert consumer.state.unacked_messages == 3
    assert topic.subscriptions["s"].cursor.state.ack_set_of(*position) == [0b101]
    for query, status, reason in (
        ("?batchIndex=3", 404, "has 3 messages"),
        ("?batchIndex=-1", 404, "has 3 messages"),
        ("?batchIndex=x", 404, "64-bit integer"),
    ):
        answer = await act(broker, position, "acknowledge", query)
        assert answer[0] == status
        assert reason in answer[1]
    assert (await act(broker, single, "acknowledge", "?batchIndex=0"))[0] == 412
    assert await act(broker, position, "acknowledge", "?batchIndex=0") == (204, "")
    assert await act(broker, position, "acknowledge", "?batchIndex=0") == (204, "")
    assert await act(broker, position, "acknowledge", "?batchIndex=2") == (204, "")
    assert consumer.state.unacked_messages == 1
    assert topic.subscriptions["s"].cursor.mark_delete_position == position


async def test_what_does_not_exist_is_404_and_batches_need_the_configuration(topic: Topic) -> None:
    async with memory_broker(acknowledgment_at_batch_index_level_enabled=False) as plain:
        found = await plain.topic("persistent://public/default/t")
        await plain.consumer(found, "s", RecordingPeer())
        (position,) = await plain.publish(found, 1)
        for absent in (Position(position.ledger_id, 1), Position(999, 0), Position(position.ledger_id, 1 << 40)):
            status, reason = await act(plain, absent, "acknowledge")
            assert (status, "does not exist" in reason) == (404, True)
            assert (await act(plain, absent, "redeliver"))[0] == 404
        assert (await act(plain, Position(-1, 0), "acknowledge"))[0] == 404
        status, reason = await act(plain, position, "acknowledge", "?batchIndex=0")
        assert (status, "acknowledgmentAtBatchIndexLevelEnabled" in reason) == (412, True)
        assert (await plain.rest("POST", f"{TOPIC}/subscription/no/message/0/0/redeliver")).status == 404


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
async def test_a_message_is_sent_again_at_once_with_its_count_and_no_two_hold_it(
    broker: MemoryBroker, topic: Topic, kind: str
) -> None:
    peer, other = RecordingPeer(), RecordingPeer()
    holder = await broker.consumer(topic, "s", peer, kind)
    positions = await broker.publish(topic, 2, ["a"])
    await broker.quiet(topic)
    broker.consumer_on(topic.subscriptions["s"], other, kind, "other")
    holder.state.permits = 0  # So that nobody but the other one can take it, if its key may move.
    assert await act(broker, positions[1], "redeliver") == (204, "")
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    assert subscription.dispatcher is not None
    subscription.dispatcher.check_invariants()
    if kind == "Shared":
        assert other.delivered == [positions[1]]
        assert subscription.dispatcher.redelivery_counts.column(*positions[1][:1], [positions[1].entry_id]) == [1]
    holder.flow(10)
    await broker.quiet(topic)
    assert sorted([*peer.delivered, *other.delivered]) == sorted([*positions, positions[1]])
    assert subscription.unacked_messages == 2
    assert subscription.counters.redelivered_messages == 1
    # What nobody holds has nobody to be taken from.
    holder.state.permits = 0
    for consumer in list(subscription.consumers):
        consumer.detach()
    assert (await act(broker, positions[0], "redeliver"))[0] == 409


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
async def test_with_one_active_consumer_single_messages_do_not_come_again_out_of_turn(
    broker: MemoryBroker, topic: Topic, kind: str
) -> None:
    peer = RecordingPeer()
    await broker.consumer(topic, "s", peer, kind)
    positions = await broker.publish(topic, 2)
    await broker.until(lambda: len(peer.delivered) >= 2)
    status, reason = await act(broker, positions[0], "redeliver")
    assert (status, kind in reason) == (412, True)


async def test_what_an_open_transaction_holds_stays_with_it_until_its_end(broker: MemoryBroker, topic: Topic) -> None:
    peer = RecordingPeer()
    await broker.consumer(topic, "s", peer)
    (batch,) = await publish_raw(broker, topic, [(batch_of(["a", "b"]), 2)])
    positions = [batch, *await broker.publish(topic, 2)]
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    hold = subscription.transactions.hold
    assert hold(txn(1), Acknowledged(None, ((positions[1].ledger_id, [positions[1].entry_id]),))) is None
    assert hold(txn(2), Acknowledged(None, (), (PartOfBatch(batch, [0b10], 2),))) is None
    for what in ("acknowledge", "redeliver"):
        status, reason = await act(broker, positions[1], what)
        assert (status, str(txn(1)) in reason) == (409, True)
    assert (await act(broker, batch, "acknowledge"))[0] == 409
    assert (await act(broker, batch, "acknowledge", "?batchIndex=0"))[0] == 409
    assert (await act(broker, batch, "acknowledge", "?batchIndex=1"))[0] == 204
    await subscription.end_transaction(txn(1), ABORT, 0)
    await subscription.end_transaction(txn(2), COMMIT, 0)
    assert subscription.cursor.mark_delete_position == batch
    assert (await act(broker, positions[1], "acknowledge"))[0] == 204


async def test_messages_of_an_open_transaction_are_not_acknowledged_for_anybody(
    broker: MemoryBroker, topic: Topic
) -> None:
    await broker.consumer(topic, "s", RecordingPeer())
    (position,) = await send(broker, topic, txn(3), 1)
    status, reason = await act(broker, position, "acknowledge")
    assert (status, "open transaction" in reason) == (409, True)


async def test_a_drained_key_goes_on_when_its_last_message_is_acknowledged_over_rest(
    broker: MemoryBroker, topic: Topic
) -> None:
    await broker.consumer(topic, "s", RecordingPeer(), "Key_Shared")
    keys = [f"k{index}" for index in range(20)]
    positions = await broker.publish(topic, 20, keys)
    await broker.quiet(topic)
    late = RecordingPeer()
    broker.consumer_on(topic.subscriptions["s"], late, "Key_Shared", "late")
    await broker.publish(topic, 20, keys)
    await broker.quiet(topic)
    draining = (await broker.rest("GET", f"{AT}/drainingHashes")).json["hashes"]
    assert draining
    assert not late.delivered
    for row in draining:
        (text,) = row["messageIds"]
        ledger_id, entry_id = map(int, text.split(":"))
        assert Position(ledger_id, entry_id) in positions
        assert (await act(broker, Position(ledger_id, entry_id), "acknowledge"))[0] == 204
    await broker.until(lambda: len(late.delivered) == len(draining))


async def test_a_hash_that_came_back_to_who_drains_it_waits_for_nothing_but_room(
    broker: MemoryBroker, topic: Topic
) -> None:
    first = await broker.consumer(topic, "s", RecordingPeer(), "Key_Shared")
    keys = [f"k{index}" for index in range(20)]
    await broker.publish(topic, 20, keys)
    await broker.quiet(topic)
    late = broker.consumer_on(topic.subscriptions["s"], RecordingPeer(), "Key_Shared", "late")
    moved = {row["hash"] for row in (await broker.rest("GET", f"{AT}/drainingHashes")).json["hashes"]}
    await broker.publish(topic, 20, keys)
    await broker.quiet(topic)
    first.state.permits = 0
    late.detach()
    await broker.publish(topic, 20, keys)
    await broker.quiet(topic)
    waiting = (await broker.rest("GET", f"{AT}/waiting")).json["hashes"]
    assert {row["hash"] for row in waiting} >= moved
    assert {(row["reason"], row["consumer"]["name"], row["because"]["name"]) for row in waiting} == {
        ("waiting", "c", "c")
    }
    assert (await broker.rest("GET", f"{AT}/hash?key=k1")).json["state"] == "waiting"
    assert (await broker.rest("GET", f"{AT}/explain?key=k1")).json["subject"]["state"] == "waiting"


async def test_a_full_consumer_goes_on_when_what_it_holds_is_acknowledged_or_taken_from_it(
    broker: MemoryBroker, topic: Topic
) -> None:
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    consumer.state.limit_unacked(2)
    positions = await broker.publish(topic, 5)
    await broker.quiet(topic)
    assert len(peer.delivered) == 2
    assert (await act(broker, positions[0], "acknowledge"))[0] == 204
    await broker.until(lambda: len(peer.delivered) == 3)
    assert (await act(broker, positions[1], "redeliver"))[0] == 204
    await broker.until(lambda: len(peer.delivered) == 4)
    assert peer.delivered[-1] == positions[1]


async def test_a_store_that_fails_is_answered_as_such_and_the_call_may_be_made_again(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.consumer(topic, "s", RecordingPeer())
    positions = await broker.publish(topic, 2)
    await broker.quiet(topic)
    cursors = broker.service.broker_context.ledgers.cursor_store
    append = cursors.append_delta

    def fail(cursor_id: str, delta: bytes, done: object) -> None:
        monkeypatch.setattr(cursors, "append_delta", append)
        if callable(done):
            asyncio.get_running_loop().call_soon(done, StoreError("the disk is gone"))

    monkeypatch.setattr(cursors, "append_delta", fail)
    status, reason = await act(broker, positions[0], "acknowledge")
    assert (status, "the disk is gone" in reason) == (PersistenceError.http_status, True)
    assert (await act(broker, positions[0], "acknowledge"))[0] == 204


async def test_many_at_once_on_the_same_messages_leave_every_count_right(broker: MemoryBroker, topic: Topic) -> None:
    peer = RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer, "Key_Shared")
    positions = await broker.publish(topic, 30, [f"k{index}" for index in range(7)])
    await broker.quiet(topic)

    async def clients() -> None:
        for position in positions[::3]:
            acknowledge(consumer, [position])
            await asyncio.sleep(0)
        broker.consumer_on(topic.subscriptions["s"], RecordingPeer(), "Key_Shared", "late")

    statuses = await asyncio.gather(
        *(act(broker, position, what) for position in positions[:15] for what in ("redeliver", "acknowledge")),
        clients(),
    )
    assert {each[0] for each in statuses if each is not None} <= {204, 409}
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    assert subscription.dispatcher is not None
    subscription.dispatcher.check_invariants()
    subscription.cursor.state.check_invariants()
    assert subscription.backlog_entries == subscription.unacked_messages == 10


async def test_acting_in_the_middle_of_unload_and_deletion_is_done_or_said_to_be_impossible(
    broker: MemoryBroker, topic: Topic
) -> None:
    await broker.consumer(topic, "s", RecordingPeer())
    positions = await broker.publish(topic, 12)
    await broker.quiet(topic)
    outcomes = await asyncio.gather(
        *(act(broker, position, "acknowledge") for position in positions[:6]),
        broker.rest("PUT", f"{TOPIC}/unload"),
        *(act(broker, position, "acknowledge") for position in positions[6:]),
    )
    assert [each[0] for each in outcomes] == [204] * 13
    again = (await broker.topic("persistent://public/default/t")).subscriptions["s"]
    assert again.backlog_entries == 0
    outcomes = await asyncio.gather(
        broker.rest("DELETE", f"{AT}?force=true"), *(act(broker, position, "acknowledge") for position in positions)
    )
    assert {each[0] for each in outcomes} <= {204, 404}


async def test_consumers_are_disconnected_by_name_or_by_id_and_what_they_hold_goes_to_others(
    broker: MemoryBroker, topic: Topic
) -> None:
    peer, other = RecordingPeer(), RecordingPeer()
    await broker.consumer(topic, "s", peer)
    positions = await broker.publish(topic, 3)
    await broker.quiet(topic)
    broker.consumer_on(topic.subscriptions["s"], other, "Shared", "other")
    assert (await broker.rest("POST", f"{AT}/consumer/nobody/disconnect")).status == 404
    assert (await broker.rest("POST", f"{AT}/consumer/c/disconnect?consumerId=9")).status == 404
    assert peer.closed_consumers == []
    assert (await broker.rest("POST", f"{AT}/consumer/c/disconnect?consumerId=1")).status == 204
    assert peer.closed_consumers == [1]
    await broker.until(lambda: other.delivered == positions)
    assert (await broker.rest("POST", f"{AT}/consumer/other/disconnect")).status == 204
    assert topic.subscriptions["s"].consumers == []


async def test_a_producer_is_disconnected_by_its_name(broker: MemoryBroker, topic: Topic) -> None:
    peer = RecordingPeer()
    broker.producer(topic, peer, "a/b")
    assert (await broker.rest("POST", f"{TOPIC}/producer/nobody/disconnect")).status == 404
    assert (await broker.rest("POST", f"{TOPIC}/producer/a%2Fb/disconnect")).status == 204
    assert peer.closed_producers == [1]
    assert not topic.producers


# --- the audit log -----------------------------------------------------------------------------------------------------------


class Lines(logging.Handler):
    """The fields of each line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(getattr(record, "fields"))  # noqa: B009


async def test_each_call_that_acts_is_one_line_of_the_audit_log_without_secrets(
    broker: MemoryBroker, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Lines()
    audit, root = logging.getLogger("pybroker.audit"), logging.getLogger("pybroker")
    monkeypatch.setattr(audit, "handlers", [written])
    monkeypatch.setattr(root, "level", logging.ERROR)
    await broker.consumer(topic, "s", RecordingPeer())
    (position,) = await broker.publish(topic, 1)
    await broker.quiet(topic)
    await act(broker, position, "acknowledge", "?batchIndex=&token=secret")
    await act(broker, position, "redeliver")
    url = broker.url(f"{AT}/skip_all")
    await asyncio.to_thread(call, url, "POST", body=b"secret", headers={"Authorization": "Bearer secret"})
    await broker.rest("GET", f"{AT}/unacked")
    await broker.rest("POST", "/no/such/path")
    lines = written.lines
    at = f"/admin/v2{AT}/message/{position.ledger_id}/{position.entry_id}"
    assert [(line["path"], line["status"], line["outcome"]) for line in lines] == [
        (f"{at}/acknowledge", 404, "refused"),
        (f"{at}/redeliver", 204, "done"),
        (f"/admin/v2{AT}/skip_all", 204, "done"),
    ]
    assert {(line["role"], line["address"], line["method"]) for line in lines} == {("-", "127.0.0.1", "POST")}
    assert "secret" not in str(lines)
