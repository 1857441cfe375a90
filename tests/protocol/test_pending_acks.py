"""Acknowledgements in transactions on live subscriptions: who is refused, what is delivered meanwhile, what an end does."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator

import pytest
from tests.support.memory_broker import MemoryBroker, acknowledge, memory_broker
from tests.support.recording_peer import RecordingPeer
from tests.support.transactions import ABORT, COMMIT, send, txn

from pybroker.broker.delivery import cursor_moves
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.subscription_transactions import SLICE_ENTRIES
from pybroker.errors import BrokerError, NotAllowedError, TransactionConflict, TransactionNotFound
from pybroker.model.events import Ack, PartialAck
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnAction, TxnId

TOPIC = "persistent://public/default/t"
KINDS = ["Exclusive", "Failover", "Shared", "Key_Shared"]
SHARED = ["Shared", "Key_Shared"]


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(active_consumer_failover_delay_time_millis=0) as found:
        yield found


async def ack_in(
    broker: MemoryBroker,
    consumer: Consumer,
    of: TxnId | None,
    positions: list[Position],
    *,
    is_cumulative: bool = False,
    left: list[int] | None = None,
) -> None:
    """Acknowledge in that transaction; of one batch all but `left` messages. Raises what the client is answered."""
    peer = consumer.peer
    assert isinstance(peer, RecordingPeer)
    ack = Ack(consumer.consumer_id)
    ack.txn, ack.is_cumulative, ack.request_id = of, is_cumulative, len(peer.ack_responses)
    for position in positions:
        if left is None:
            ack.groups.append((position.ledger_id, [position.entry_id]))
        else:
            words = [sum(1 << index for index in left)]
            ack.partials.append(PartialAck(position.ledger_id, position.entry_id, words, 10))
    consumer.subscription.acknowledge(consumer, ack)
    await broker.until(lambda: len(peer.ack_responses) > ack.request_id)
    error = peer.ack_responses[-1][1]
    if error is not None:
        raise error


@pytest.mark.parametrize("kind", KINDS)
async def test_a_commit_acknowledges_what_was_held_and_no_more(broker: MemoryBroker, kind: str) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 5)
    consumer = await broker.consumer(topic, "s", peer, kind)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    await ack_in(broker, consumer, txn(1), [sent[1], sent[2]])
    assert subscription.cursor.backlog_entries == 5
    await subscription.end_transaction(txn(1), COMMIT, 0)
    assert subscription.cursor.backlog_entries == 3
    assert subscription.cursor.state.is_deleted(*sent[1])
    assert not subscription.cursor.state.held
    await subscription.end_transaction(txn(1), COMMIT, 0)
    assert subscription.cursor.backlog_entries == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_an_abort_has_what_was_held_sent_again(broker: MemoryBroker, kind: str) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 4)
    consumer = await broker.consumer(topic, "s", peer, kind)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    acknowledge(consumer, [sent[0]])
    await ack_in(broker, consumer, txn(1), [sent[1]])
    await subscription.end_transaction(txn(1), ABORT, 0)
    await broker.quiet(topic)
    again = peer.delivered[4:]
    assert again == ([sent[1]] if kind in SHARED else sent[1:])
    if kind in SHARED:
        dispatcher = subscription.dispatcher
        assert dispatcher is not None
        assert dispatcher.redelivery_counts.column(sent[1].ledger_id, [sent[1].entry_id]) == [1]
    await ack_in(broker, consumer, txn(2), [sent[1]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", TxnAction)
async def test_what_is_held_goes_to_no_other_consumer_until_its_transaction_is_aborted(
    broker: MemoryBroker, kind: str, action: TxnAction
) -> None:
    topic, first, second = await broker.topic(TOPIC), RecordingPeer(), RecordingPeer()
    sent = await send(broker, topic, None, 4)
    consumer = await broker.consumer(topic, "s", first, kind)
    await broker.quiet(topic)
    await ack_in(broker, consumer, txn(1), [sent[1], sent[3]])
    consumer.detach()
    subscription = topic.subscriptions["s"]
    broker.consumer_on(subscription, second, kind)
    await broker.quiet(topic)
    assert second.delivered == [sent[0], sent[2]]
    await subscription.end_transaction(txn(1), action, 0)
    await broker.quiet(topic)
    if action is COMMIT:
        assert second.delivered == [sent[0], sent[2]]
        assert subscription.cursor.backlog_entries == 2
    else:
        assert set(second.delivered[2:]) >= {sent[1], sent[3]}


@pytest.mark.parametrize("kind", SHARED)
async def test_what_a_consumer_wants_again_and_holds_in_a_transaction_comes_when_that_is_aborted(
    broker: MemoryBroker, kind: str
) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 2)
    consumer = await broker.consumer(topic, "s", peer, kind)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    await ack_in(broker, consumer, txn(1), [sent[0]])
    subscription.redeliver(consumer, None, -1)
    await broker.quiet(topic)
    assert peer.delivered == [*sent, sent[1]]
    await subscription.end_transaction(txn(1), ABORT, 0)
    await broker.quiet(topic)
    assert peer.delivered == [*sent, sent[1], sent[0]]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_another_transaction_holds_or_anybody_has_acknowledged_is_a_conflict(
    broker: MemoryBroker, kind: str
) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 6)
    consumer = await broker.consumer(topic, "s", peer, kind)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    acknowledge(consumer, [sent[0], sent[3]])
    await ack_in(broker, consumer, txn(1), [sent[1]])
    for taken in (sent[0], sent[3], sent[1]):
        with pytest.raises(TransactionConflict):
            await ack_in(broker, consumer, txn(2), [sent[4], taken])
    for twice in ([sent[1]], [sent[2], sent[2]]):  # by one transaction: what came twice must not have its effect twice
        with pytest.raises(TransactionConflict):
            await ack_in(broker, consumer, txn(1), twice)
    await ack_in(broker, consumer, txn(2), [sent[4]])  # of what was refused nothing is held
    await subscription.end_transaction(txn(1), COMMIT, 0)
    with pytest.raises(TransactionConflict):
        await ack_in(broker, consumer, txn(2), [sent[1]])


async def test_one_transaction_acknowledges_no_message_of_a_batch_twice(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await broker.publish(topic, 2, messages_each=10)
    consumer = await broker.consumer(topic, "s", peer, "Shared")
    await broker.quiet(topic)
    everything = set(range(10))
    await ack_in(broker, consumer, txn(1), [sent[0]], left=sorted(everything - {0}))
    await ack_in(broker, consumer, txn(1), [sent[0]], left=sorted(everything - {1}))
    with pytest.raises(TransactionConflict):
        await ack_in(broker, consumer, txn(1), [sent[0]], left=sorted(everything - {1, 2}))
    with pytest.raises(TransactionConflict):
        await ack_in(broker, consumer, txn(1), [sent[1], sent[1]], left=sorted(everything - {1}))
    with pytest.raises(TransactionConflict):
        await ack_in(broker, consumer, txn(1), [sent[0]])
    await ack_in(broker, consumer, txn(1), [sent[0]], left=sorted(everything - {2}))


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
async def test_a_cumulative_acknowledgement_waits_for_the_end_like_single_ones(broker: MemoryBroker, kind: str) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 6)
    consumer = await broker.consumer(topic, "s", peer, kind)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    await ack_in(broker, consumer, txn(1), [sent[2]], is_cumulative=True)
    await ack_in(broker, consumer, txn(1), [sent[3]], is_cumulative=True)
    assert subscription.cursor.backlog_entries == 6
    for of, position, cumulative in ((2, sent[5], True), (2, sent[1], False)):
        with pytest.raises(TransactionConflict):
            await ack_in(broker, consumer, txn(of), [position], is_cumulative=cumulative)
    await subscription.end_transaction(txn(1), ABORT, 0)
    await broker.quiet(topic)
    assert peer.delivered == sent * 2
    await ack_in(broker, consumer, txn(3), [sent[4]])
    with pytest.raises(TransactionConflict):
        await ack_in(broker, consumer, txn(4), [sent[5]], is_cumulative=True)
    await subscription.end_transaction(txn(3), COMMIT, 0)
    await ack_in(broker, consumer, txn(4), [sent[5]], is_cumulative=True)
    await subscription.end_transaction(txn(4), COMMIT, 0)
    assert subscription.cursor.backlog_entries == 0
    with pytest.raises(TransactionConflict):
        await ack_in(broker, consumer, txn(5), [sent[5]], is_cumulative=True)


@pytest.mark.parametrize("kind", SHARED)
async def test_messages_of_one_batch_may_be_held_by_several_transactions(broker: MemoryBroker, kind: str) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    (batch,) = await broker.publish(topic, 1, messages_each=10)
    consumer = await broker.consumer(topic, "s", peer, kind)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    all_ten = set(range(10))
    await ack_in(broker, consumer, txn(1), [batch], left=sorted(all_ten - {0, 1}))
    await ack_in(broker, consumer, txn(2), [batch], left=sorted(all_ten - {2}))
    await ack_in(broker, consumer, None, [batch], left=sorted(all_ten - {3}))
    for taken in (1, 2, 3):
        with pytest.raises(TransactionConflict):
            await ack_in(broker, consumer, txn(3), [batch], left=sorted(all_ten - {taken}))
    with pytest.raises(TransactionConflict):
        await ack_in(broker, consumer, txn(3), [batch])
    await subscription.end_transaction(txn(1), COMMIT, 0)
    await subscription.end_transaction(txn(2), ABORT, 0)
    assert subscription.cursor.state.remaining_messages(*batch) == 7
    await broker.quiet(topic)
    assert peer.delivered == [batch, batch]
    await ack_in(broker, consumer, txn(4), [batch], left=[0, 1, 3])
    await subscription.end_transaction(txn(4), COMMIT, 0)
    assert subscription.cursor.backlog_entries == 0


@pytest.mark.parametrize("action", TxnAction)
async def test_what_is_held_survives_that_the_topic_is_loaded_again(broker: MemoryBroker, action: TxnAction) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 4)
    consumer = await broker.consumer(topic, "s", peer)
    await broker.quiet(topic)
    await ack_in(broker, consumer, txn(1), [sent[1], sent[2]])
    await broker.service.topics.unload(topic)
    topic = await broker.topic(TOPIC)
    again = RecordingPeer()
    consumer = await broker.consumer(topic, "s", again)
    await broker.quiet(topic)
    assert again.delivered == [sent[0], sent[3]]
    with pytest.raises(TransactionConflict):
        await ack_in(broker, consumer, txn(2), [sent[1]])
    await topic.subscriptions["s"].end_transaction(txn(1), action, 0)
    await broker.quiet(topic)
    assert again.delivered[2:] == ([] if action is COMMIT else [sent[1], sent[2]])


async def test_what_acknowledges_too_late_is_refused_or_aborted_by_the_low_water_mark(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 4)
    consumer = await broker.consumer(topic, "s", peer)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    await subscription.end_transaction(txn(5), COMMIT, 0)
    with pytest.raises(TransactionNotFound):
        await ack_in(broker, consumer, txn(5), [sent[0]])
    await ack_in(broker, consumer, txn(3), [sent[0]])
    await subscription.end_transaction(txn(7), COMMIT, 6)
    assert not subscription.cursor.state.held
    with pytest.raises(TransactionNotFound):
        await ack_in(broker, consumer, txn(6), [sent[0]])
    await ack_in(broker, consumer, txn(8), [sent[0]])


async def test_a_late_acknowledgement_of_a_transaction_that_ended_without_any_is_refused_after_a_restart(
    broker: MemoryBroker,
) -> None:
    topic = await broker.topic(TOPIC)
    sent = await send(broker, topic, None)
    await broker.consumer(topic, "s", RecordingPeer())
    await topic.subscriptions["s"].end_transaction(txn(5), ABORT, 0)
    await broker.service.topics.unload(topic)
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    consumer = await broker.consumer(topic, "s", peer)
    await broker.quiet(topic)
    with pytest.raises(TransactionNotFound):
        await ack_in(broker, consumer, txn(5), sent)
    await ack_in(broker, consumer, txn(6), sent)


async def test_a_seek_forgets_what_transactions_hold_and_their_end_changes_nothing(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 3)
    consumer = await broker.consumer(topic, "s", peer)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    await ack_in(broker, consumer, txn(1), [sent[0]])
    async with topic.subscription_lock("s", "moved"):
        await cursor_moves.reset(subscription, sent[0])
    await subscription.end_transaction(txn(1), COMMIT, 0)
    again = RecordingPeer()
    broker.consumer_on(subscription, again, "Shared")
    await broker.quiet(topic)
    assert again.delivered == sent


async def test_a_cleared_backlog_an_expiry_and_an_unsubscribe_leave_nothing_held(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 3)
    consumer = await broker.consumer(topic, "s", peer)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    await ack_in(broker, consumer, txn(1), [sent[0]])
    await ack_in(broker, consumer, txn(2), [sent[1]])
    await cursor_moves.skip_all(subscription)
    await subscription.end_transaction(txn(1), ABORT, 0)
    await broker.quiet(topic)
    assert peer.delivered == sent
    await topic.delete_subscription(subscription)
    await subscription.end_transaction(txn(2), COMMIT, 0)


async def test_a_plain_acknowledgement_wins_over_a_transaction_that_is_aborted_later(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 2)
    consumer = await broker.consumer(topic, "s", peer)
    await broker.quiet(topic)
    subscription = topic.subscriptions["s"]
    await ack_in(broker, consumer, txn(1), [sent[0]])
    acknowledge(consumer, [sent[0]])
    await subscription.end_transaction(txn(1), ABORT, 0)
    await broker.quiet(topic)
    assert peer.delivered == sent
    assert subscription.cursor.backlog_entries == 1


async def test_the_next_active_consumer_of_failover_gets_what_the_open_transaction_of_the_one_before_does_not_hold(
    broker: MemoryBroker,
) -> None:
    topic, first, second = await broker.topic(TOPIC), RecordingPeer(), RecordingPeer()
    sent = await send(broker, topic, None, 4)
    consumer = await broker.consumer(topic, "s", first, "Failover")
    subscription = topic.subscriptions["s"]
    other = broker.consumer_on(subscription, second, "Failover", "d")
    await broker.quiet(topic)
    if subscription.dispatcher is not None and subscription.dispatcher.active_consumer is other.state:
        consumer, other, first, second = other, consumer, second, first
    second.delivered.clear()
    await ack_in(broker, consumer, txn(1), [sent[1]], is_cumulative=True)
    consumer.detach()
    await broker.quiet(topic)
    assert second.delivered == sent[2:]
    with pytest.raises(TransactionConflict):
        await ack_in(broker, other, txn(2), [sent[3]], is_cumulative=True)
    await subscription.end_transaction(txn(1), ABORT, 0)
    await broker.quiet(topic)
    assert second.delivered == sent[2:] + sent
    await ack_in(broker, other, txn(2), [sent[3]], is_cumulative=True)


async def test_a_reader_acknowledges_nothing_in_transactions(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 2)
    subscription = topic.registry.non_durable("r", topic.ledger.ledgers.previous_position(sent[0]))
    consumer = broker.consumer_on(subscription, peer, "Exclusive")
    await broker.quiet(topic)
    with pytest.raises(NotAllowedError):
        await ack_in(broker, consumer, txn(1), [sent[0]])


async def test_one_transaction_too_many_on_a_subscription_is_refused() -> None:
    async with memory_broker(max_open_transactions_per_topic=2) as broker:
        topic, peer = await broker.topic(TOPIC), RecordingPeer()
        sent = await send(broker, topic, None, 4)
        consumer = await broker.consumer(topic, "s", peer)
        await broker.quiet(topic)
        await ack_in(broker, consumer, txn(1), [sent[0]])
        await ack_in(broker, consumer, txn(2), [sent[1]])
        with pytest.raises(BrokerError, match="maxOpenTransactionsPerTopic"):
            await ack_in(broker, consumer, txn(3), [sent[2]])
        await ack_in(broker, consumer, txn(2), [sent[2]])


def _headers_of(url: str) -> dict[str, str]:
    with urllib.request.urlopen(url) as answer:
        return {name.lower(): value for name, value in answer.headers.items()}


async def test_open_transactions_stand_in_the_stats_with_id_age_and_owner(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, 2)
    (held_back,) = await send(broker, topic, txn(7))
    (aborted,) = await send(broker, topic, txn(8))
    await topic.end_transaction(txn(8), ABORT, 0)
    consumer = await broker.consumer(topic, "s", peer)
    await broker.quiet(topic)
    await ack_in(broker, consumer, txn(9, most=3), [sent[0]])
    broker.clock.now_ms += 5000
    path = "/persistent/public/default/t"
    stats = (await broker.rest("GET", f"{path}/stats")).json
    assert (stats["ongoingTxnCount"], stats["abortedTxnCount"], stats["committedTxnCount"]) == (1, 1, 0)
    (shown,) = stats["openTransactions"]
    assert (shown["txnId"], shown["startPosition"], shown["openForMs"]) == ("(0,7)", str(held_back), 5000)
    assert shown["owner"] == "p"
    subscription = stats["subscriptions"]["s"]
    assert subscription["pendingAckTransactionCount"] == 1
    (pending,) = subscription["pendingAckTransactions"]
    assert pending == {"txnId": "(3,9)", "entries": 1, "owner": "c", "openForMs": 5000}
    flags = {}
    for position in (sent[0], held_back, aborted):
        url = broker.url(f"{path}/ledger/{position.ledger_id}/entry/{position.entry_id}")
        headers = await asyncio.to_thread(_headers_of, url)
        flags[position] = (headers.get("x-pulsar-txn-aborted"), headers["x-pulsar-txn-uncommitted"])
    assert flags == {sent[0]: (None, "false"), held_back: ("false", "true"), aborted: ("true", "true")}
    assert (await broker.rest("GET", f"{path}/lastMessageId")).json["entryId"] == sent[1].entry_id


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("action", TxnAction)
async def test_a_transaction_acknowledges_more_than_a_consumer_may_have_unacknowledged(
    kind: str, action: TxnAction
) -> None:
    """And more than an end tells its dispatcher in one turn."""
    count = 2 * SLICE_ENTRIES + 10
    async with memory_broker(
        max_unacked_messages_per_consumer=100, max_unacked_messages_per_subscription=300
    ) as broker:
        topic, peer = await broker.topic(TOPIC), RecordingPeer()
        await send(broker, topic, None, count)
        consumer = await broker.consumer(topic, "s", peer, kind)
        consumer.flow(3 * count)
        subscription = topic.subscriptions["s"]
        dispatcher = subscription.dispatcher
        assert dispatcher is not None
        acknowledged = 0
        while acknowledged < count:
            await broker.until(lambda: len(peer.delivered) > acknowledged)  # noqa: B023
            positions, acknowledged = peer.delivered[acknowledged:], len(peer.delivered)
            ack = Ack(consumer.consumer_id)
            ack.txn = txn(1)
            ack.groups.append((positions[0].ledger_id, [each.entry_id for each in positions]))
            subscription.acknowledge(consumer, ack)
        dispatcher.check_invariants()
        assert (subscription.unacked_messages, consumer.state.unacked_messages) == (0, 0)
        assert subscription.cursor.backlog_entries == count
        await subscription.end_transaction(txn(1), action, 0)
        if action is COMMIT:
            await broker.quiet(topic)
            assert subscription.cursor.backlog_entries == 0
            assert len(peer.delivered) == count
            consumer.detach()
            assert subscription.replay_entry_count == 0
            return
        for last in (*range(count, 2 * count, 100), 2 * count):
            await broker.until(lambda: len(peer.delivered) >= last)  # noqa: B023
            acknowledge(consumer, peer.delivered[count:])
        dispatcher.check_invariants()
        assert sorted(peer.delivered[count:]) == sorted(peer.delivered[:count])


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("stays", [True, False])
async def test_an_abort_counts_one_redelivery_whoever_has_left_meanwhile(
    broker: MemoryBroker, kind: str, stays: bool
) -> None:
    topic, first, second = await broker.topic(TOPIC), RecordingPeer(), RecordingPeer()
    [held] = await send(broker, topic, None, 1)
    consumer = await broker.consumer(topic, "s", first, kind)
    await broker.quiet(topic)
    await ack_in(broker, consumer, txn(1), [held])
    subscription = topic.subscriptions["s"]
    other = broker.consumer_on(subscription, second, kind, "other")
    if not stays:
        consumer.detach()
    await broker.quiet(topic)
    await subscription.end_transaction(txn(1), ABORT, 0)
    await broker.quiet(topic)
    dispatcher = subscription.dispatcher
    assert dispatcher is not None
    dispatcher.check_invariants()
    assert [*first.delivered[1:], *second.delivered] == [held]
    assert dispatcher.redelivery_counts.column(held.ledger_id, [held.entry_id]) == [1]
    await ack_in(broker, other, txn(2), [held])
    await subscription.end_transaction(txn(2), COMMIT, 0)
    assert subscription.cursor.backlog_entries == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_what_one_transaction_leaves_of_a_batch_comes_when_the_other_one_that_held_it_is_aborted(
    broker: MemoryBroker, kind: str
) -> None:
    topic, first, second = await broker.topic(TOPIC), RecordingPeer(), RecordingPeer()
    [batch] = await broker.publish(topic, 1, messages_each=10)
    consumer = await broker.consumer(topic, "s", first, kind)
    await broker.quiet(topic)
    await ack_in(broker, consumer, txn(1), [batch], left=[5, 6, 7, 8, 9])
    await ack_in(broker, consumer, txn(2), [batch], left=[0, 1, 2, 3, 4])
    consumer.detach()
    subscription = topic.subscriptions["s"]
    broker.consumer_on(subscription, second, kind)
    await broker.quiet(topic)
    assert second.delivered == []
    await subscription.end_transaction(txn(1), COMMIT, 0)
    await broker.quiet(topic)
    assert second.delivered == []
    await subscription.end_transaction(txn(2), ABORT, 0)
    await broker.quiet(topic)
    assert second.delivered == [batch]


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
async def test_an_abort_of_thousands_sends_an_ordered_consumer_everything_again_once(
    broker: MemoryBroker, kind: str
) -> None:
    count = 2 * SLICE_ENTRIES + 10
    topic, peer = await broker.topic(TOPIC), RecordingPeer()
    sent = await send(broker, topic, None, count)
    consumer = await broker.consumer(topic, "s", peer, kind)
    consumer.flow(3 * count)
    await broker.until(lambda: len(peer.delivered) == count)
    ack = Ack(consumer.consumer_id)
    ack.txn = txn(1)
    ack.groups.append((sent[0].ledger_id, [each.entry_id for each in sent]))
    consumer.subscription.acknowledge(consumer, ack)
    await topic.subscriptions["s"].end_transaction(txn(1), ABORT, 0)
    await broker.until(lambda: len(peer.delivered) >= 2 * count)
    await broker.quiet(topic)
    assert peer.delivered[count:] == sent
