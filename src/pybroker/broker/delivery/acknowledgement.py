"""What becomes of an ACK: the cursor's state, the dispatcher's, the counters, and the receipt if one was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.errors import BrokerError, NotAllowedError, StoreError
from pybroker.model.ack_set import WORD_BITS
from pybroker.model.events import Ack, PartialAck
from pybroker.model.position import from_wire

if TYPE_CHECKING:
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription import Subscription


_VALIDATION_ERRORS = {
    0: "UncompressedSizeCorruption",
    1: "DecompressionError",
    2: "ChecksumMismatch",
    3: "BatchDeSerializeError",
    4: "DecryptionError",
}


def acknowledge(subscription: Subscription, consumer: Consumer, ack: Ack) -> None:
    """Apply an ACK of `consumer`; with a request id, answer once it is durable."""
    request_id = ack.request_id
    refusal = _refusal(subscription, ack)
    if refusal is not None:
        if request_id >= 0:
            consumer.peer.send_ack_response(consumer.consumer_id, request_id, refusal)
        return
    if ack.validation_error >= 0:
        _unreadable(consumer, ack)
    cursor = subscription.cursor
    dispatcher = subscription.dispatcher
    assert dispatcher is not None
    before, unacked_before = cursor.mark_delete_position, dispatcher.unacked_messages
    can_move, entries = (_acknowledge_up_to if ack.is_cumulative else _acknowledge_each)(subscription, ack)
    _count(consumer, unacked_before - dispatcher.unacked_messages, entries)
    now_ms = subscription.surroundings.clock.wall_ms()
    consumer.counters.last_acked_ms = subscription.counters.last_acked_ms = now_ms
    if cursor.mark_delete_position != before:
        subscription.counters.last_mark_delete_advanced_ms = now_ms
        if dispatcher.follows_mark_delete:
            can_move = dispatcher.mark_delete_moved(cursor.first_unacked_position) or can_move
    if request_id < 0:
        cursor.changed(None)
    else:
        cursor.changed(lambda error: _answer(consumer, request_id, error))
    if can_move:
        subscription.wake()
    if dispatcher.has_unblocked:
        subscription.wake_soon()
    subscription.unacked_changed()
    subscription.tell_if_at_end()


def acknowledge_for_all(subscription: Subscription, ledger_id: int, entry_ids: Sequence[int]) -> None:
    """Acknowledge entries that no consumer of the subscription gets to see."""
    assert subscription.dispatcher is not None
    subscription.cursor.state.acknowledge(ledger_id, entry_ids)
    subscription.dispatcher.acked(ledger_id, entry_ids)
    if subscription.dispatcher.follows_mark_delete and subscription.dispatcher.mark_delete_moved(
        subscription.cursor.first_unacked_position
    ):
        subscription.wake()
    subscription.cursor.changed(None)
    subscription.tell_if_at_end()


def _unreadable(consumer: Consumer, ack: Ack) -> None:
    """The client drops messages that it cannot read, which makes them acknowledged: somebody should know."""
    if not consumer.has_unreadable_messages:
        consumer.has_unreadable_messages = True
        logs.warning(
            "messages.unreadable",
            topic=consumer.subscription.topic.name,
            subscription=consumer.subscription.name,
            consumer=consumer.name,
            error=_VALIDATION_ERRORS.get(ack.validation_error, ack.validation_error),
            first=[from_wire(ledger_id, entry_ids[0]) for ledger_id, entry_ids in ack.groups[:1]],
        )


def _refusal(subscription: Subscription, ack: Ack) -> BrokerError | None:
    dispatcher = subscription.dispatcher
    assert dispatcher is not None
    if ack.has_transaction:
        return NotAllowedError("transactions are not supported yet")
    if ack.is_cumulative and dispatcher.active_consumer is None:
        return NotAllowedError(f"a {dispatcher.kind} subscription takes individual acknowledgements only")
    return None


def _count(consumer: Consumer, messages: int, entries: int) -> None:
    """Types that do not track their messages tell entries only; those held as many messages as entries do on average."""
    delivered = consumer.counters
    if not messages and delivered.entries_out:
        messages = round(entries * delivered.messages_out / delivered.entries_out)
    consumer.counters.acked_messages += messages
    consumer.subscription.counters.acked_messages += messages


def _acknowledge_each(subscription: Subscription, ack: Ack) -> tuple[bool, int]:
    """Whether somebody can move again, and how many entries that acknowledged whole."""
    dispatcher = subscription.dispatcher
    assert dispatcher is not None
    state = subscription.cursor.state
    can_move = False
    entries = 0
    for ledger_id, entry_ids in ack.groups:
        entries += state.acknowledge(ledger_id, entry_ids)
        if subscription.compacted_reads is not None:
            subscription.compacted_reads.acknowledged(ledger_id, entry_ids)
        subscription.delayed.forget(ledger_id, entry_ids)
        can_move = dispatcher.acked(ledger_id, entry_ids) or can_move
    for partial in ack.partials:
        can_move = _acknowledge_part(subscription, partial) or can_move
    return can_move, entries


def _acknowledge_part(subscription: Subscription, partial: PartialAck) -> bool:
    if not subscription.surroundings.config.acknowledgment_at_batch_index_level_enabled:
        return False  # The client acknowledges the whole entry once all of it is done.
    dispatcher, cursor = subscription.dispatcher, subscription.cursor
    assert dispatcher is not None
    position = from_wire(partial.ledger_id, partial.entry_id)
    # What the entry itself says counts; only for one that left memory the client is believed.
    words_bits = min(len(partial.ack_set) * WORD_BITS, subscription.surroundings.config.max_messages_in_batch)
    said_count = min(partial.batch_size, words_bits) or words_bits
    message_count = cursor.ledger.message_count_at_hand(position) or said_count
    left = cursor.state.acknowledge_batch(position, partial.ack_set, message_count)
    if left:
        return dispatcher.acked_partly(position.ledger_id, position.entry_id, left)
    return dispatcher.acked(position.ledger_id, [position.entry_id])


def _acknowledge_up_to(subscription: Subscription, ack: Ack) -> tuple[bool, int]:
    """The same for a cumulative one."""
    dispatcher, cursor = subscription.dispatcher, subscription.cursor
    assert dispatcher is not None
    state = cursor.state
    if ack.partials:
        partial = ack.partials[-1]
        position = from_wire(partial.ledger_id, partial.entry_id)
        entries = state.mark_delete_to(cursor.ledger.ledgers.previous_position(position))
        dispatcher.acked_up_to(state.mark_delete_position)
        return _acknowledge_part(subscription, partial), entries
    if not ack.groups:
        return False, 0
    ledger_id, entry_ids = ack.groups[-1]
    position = from_wire(ledger_id, entry_ids[-1])
    entries = state.mark_delete_to(position)
    if subscription.compacted_reads is not None:
        subscription.compacted_reads.acknowledged_up_to(position)
    return dispatcher.acked_up_to(state.mark_delete_position), entries


def _answer(consumer: Consumer, request_id: int, error: StoreError | None) -> None:
    failure = None if error is None else error.answer("the acknowledgement is not stored: ")
    consumer.peer.send_ack_response(consumer.consumer_id, request_id, failure)
