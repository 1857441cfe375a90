"""Acknowledgements in two steps: an ACK command becomes a value (`Acknowledged`), which is applied to the cursor.

A transaction applies the value when it commits. The client receives the ACK_RESPONSE when the change of the cursor is
durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pybroker.errors import BrokerError, NotAllowedError, StoreError
from pybroker.model.ack_set import WORD_BITS, full, left_of, to_words
from pybroker.model.events import Ack, PartialAck
from pybroker.model.position import Position, from_wire
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.peer import Peer
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.delayed_delivery import DelayedDelivery
    from pybroker.broker.delivery.reads.compacted_reads import CompactedReads
    from pybroker.config import BrokerConfig
    from pybroker.dispatch.dispatcher import Dispatcher
    from pybroker.managed_ledger.managed_cursor import ManagedCursor, PersistDone

_VALIDATION_ERRORS = {
    0: "UncompressedSizeCorruption",
    1: "DecompressionError",
    2: "ChecksumMismatch",
    3: "BatchDeSerializeError",
    4: "DecryptionError",
}


class PartOfBatch(NamedTuple):
    """Acknowledgement of some messages of a batch. A 1 bit in `ack_set` is a message that stays unacknowledged."""

    position: Position
    ack_set: list[int]
    message_count: int


class Acknowledged(NamedTuple):
    """Effect of an acknowledgement, applied in this order: all entries up to a position, whole entries by ledger, parts
    of batches.
    """

    up_to: Position | None = None
    groups: Sequence[tuple[int, Sequence[int]]] = ()
    parts: Sequence[PartOfBatch] = ()


# --- deciding ------------------------------------------------------------------------------------------------------------


def refusal(ack: Ack, dispatcher: Dispatcher) -> BrokerError | None:
    """Return the error if the dispatcher's subscription type does not support `ack`, else None."""
    if ack.is_cumulative and dispatcher.active_consumer is None:
        return NotAllowedError(
            f"a {dispatcher.kind} subscription supports only individual acknowledgements: acknowledge each message"
        )
    return None


def decided(ack: Ack, cursor: ManagedCursor, config: BrokerConfig) -> Acknowledged:
    if not ack.is_cumulative:
        return Acknowledged(None, ack.groups, _parts(ack.partials, cursor, config) if ack.partials else ())
    if ack.partials:
        last = ack.partials[-1]
        position = from_wire(last.ledger_id, last.entry_id)
        before = cursor.ledger.ledgers.previous_position(position)
        return Acknowledged(before, (), _parts([last], cursor, config))
    if ack.groups:
        ledger_id, entry_ids = ack.groups[-1]
        return Acknowledged(from_wire(ledger_id, entry_ids[-1]))
    return Acknowledged()


def _parts(partials: Sequence[PartialAck], cursor: ManagedCursor, config: BrokerConfig) -> Sequence[PartOfBatch]:
    if not config.acknowledgment_at_batch_index_level_enabled:
        return ()  # The client sends an ACK of the whole entry when it has processed the rest of the batch.
    parts: list[PartOfBatch] = []
    last, left = partials[0], -1
    for each in partials:
        if left >= 0 and _is_of_same_batch(last, each):
            count = parts[-1].message_count
            more = left_of(count, each.ack_set)
            # An ACK that contains a message twice is not merged, because transactions reject it.
            if left | more == full(count):
                left &= more
                parts[-1] = parts[-1]._replace(ack_set=to_words(left))
                continue
        parts.append(part := _part(each, cursor, config.max_messages_in_batch))
        last, left = each, left_of(part.message_count, part.ack_set)
    return parts


def _is_of_same_batch(one: PartialAck, other: PartialAck) -> bool:
    return (
        one.entry_id == other.entry_id
        and one.ledger_id == other.ledger_id
        and one.batch_size == other.batch_size
        and len(one.ack_set) == len(other.ack_set)
    )


def _part(partial: PartialAck, cursor: ManagedCursor, max_messages_in_batch: int) -> PartOfBatch:
    position = from_wire(partial.ledger_id, partial.entry_id)
    # The batch size in the entry is authoritative. The size that the client sent is used only for an entry that is not
    # in memory.
    words_bits = min(len(partial.ack_set) * WORD_BITS, max_messages_in_batch)
    said_count = min(partial.batch_size, words_bits) or words_bits
    return PartOfBatch(position, partial.ack_set, cursor.ledger.message_count_at_hand(position) or said_count)


# --- applying ------------------------------------------------------------------------------------------------------------


def apply(
    what: Acknowledged,
    cursor: ManagedCursor,
    dispatcher: Dispatcher | None,
    delayed: DelayedDelivery,
    compacted_reads: CompactedReads | None,
) -> tuple[int, bool]:
    """Apply an acknowledgement. Return the number of entries that became completely acknowledged, and whether entries
    that the dispatcher could not send before can be sent now.

    `dispatcher` is None if no consumer has connected since the topic was loaded.
    """
    state = cursor.state
    entries, can_move = 0, False
    if what.up_to is not None:
        entries += state.mark_delete_to(what.up_to)
        if compacted_reads is not None:
            compacted_reads.acknowledged_up_to(what.up_to)
        if dispatcher is not None:
            can_move = dispatcher.acked_up_to(state.mark_delete_position)
    for ledger_id, entry_ids in what.groups:
        entries += state.acknowledge(ledger_id, entry_ids)
        if compacted_reads is not None:
            compacted_reads.acknowledged(ledger_id, entry_ids)
        delayed.forget(ledger_id, entry_ids)
        if dispatcher is not None:
            can_move = dispatcher.acked(ledger_id, entry_ids) or can_move
    for position, ack_set, message_count in what.parts:
        left = state.acknowledge_batch(position, ack_set, message_count)
        if dispatcher is None:
            continue
        if left:
            can_move = dispatcher.acked_partly(position.ledger_id, position.entry_id, left) or can_move
        else:
            can_move = dispatcher.acked(position.ledger_id, [position.entry_id]) or can_move
    return entries, can_move


# --- the client's side ---------------------------------------------------------------------------------------------------


class AckReceipt:
    """Pending ACK_RESPONSE. The cursor calls `stored` when the acknowledgement is durable or has failed."""

    __slots__ = ("_consumer_id", "_peer", "_request_id")

    def __init__(self, peer: Peer, consumer_id: int, request_id: int) -> None:
        self._peer = peer
        self._consumer_id = consumer_id
        self._request_id = request_id

    def stored(self, error: StoreError | None) -> None:
        failure = None if error is None else error.answer("the acknowledgement is not stored: ")
        self._peer.send_ack_response(self._consumer_id, self._request_id, failure)


def receipt(consumer: Consumer, ack: Ack) -> PersistDone | None:
    """Return the callback that sends the ACK_RESPONSE, or None if the client did not request a response."""
    return AckReceipt(consumer.peer, consumer.consumer_id, ack.request_id).stored if ack.request_id >= 0 else None


def refuse(consumer: Consumer, ack: Ack, refusal: BrokerError) -> None:
    if ack.request_id >= 0:
        consumer.peer.send_ack_response(consumer.consumer_id, ack.request_id, refusal)


def count(consumer: Consumer, messages: int, entries: int, now_ms: int) -> None:
    """Update the acknowledgement counters of `consumer`. If the dispatcher does not track messages (`messages` is 0),
    their number is estimated from the average number per entry.
    """
    delivered = consumer.counters
    if not messages and delivered.entries_out:
        messages = round(entries * delivered.messages_out / delivered.entries_out)
    of_all = consumer.subscription.counters
    delivered.acked_messages += messages
    of_all.acked_messages += messages
    delivered.last_acked_ms = of_all.last_acked_ms = now_ms


def note_unreadable(consumer: Consumer, ack: Ack) -> None:
    """Log that the client could not decode a message. The client acknowledges the message without processing it."""
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
