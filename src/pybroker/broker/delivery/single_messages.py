"""Administrator operations on one message of a subscription: acknowledge, redeliver now, and change the delivery time.

An operation does not override an acknowledgement in an open transaction. A message is taken from its consumer before it
is redelivered, so two consumers never hold it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.delivery.acknowledgement import Acknowledged, PartOfBatch
from pybroker.broker.delivery.consumer import Consumer
from pybroker.dispatch.delayed.delayed_entries import MAX_DUE_MS
from pybroker.errors import AdminError, TransactionConflict
from pybroker.model import ack_set
from pybroker.runtime.tasks import completion
from pybroker.wire.entry_metadata import is_batch

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.model.position import Position


async def acknowledge(subscription: Subscription, position: Position, batch_index: int | None) -> None:
    """Acknowledge an entry, or one message of its batch. Durable on return. The caller has reserved memory for one
    entry.

    Raises AdminError 404 if the message does not exist, 409 if it is not readable yet, 412 if the entry is not a batch
    or the configuration forbids the acknowledgement of single messages of a batch; TransactionConflict if an open
    transaction has acknowledged it; StoreError.
    """
    cursor = subscription.cursor
    message_count = await _messages_of_batch(subscription, position, batch_index) if batch_index is not None else 1
    # No other task runs from here on.
    require_existing(subscription, position)
    if cursor.state.is_deleted(*position):
        await cursor.persist()  # An earlier acknowledgement may not be durable yet.
        return
    if not cursor.ledger.read_limit.readable(position, 1):
        raise AdminError(
            409,
            f"Message {position} cannot be delivered yet, because this message or an earlier message belongs "
            "to an open transaction",
        )
    require_unheld(subscription, position, -1 if batch_index is None else 1 << batch_index)
    if batch_index is None:
        what = Acknowledged(None, ((position.ledger_id, (position.entry_id,)),))
    else:
        left = ack_set.to_words(ack_set.full(message_count) & ~(1 << batch_index))
        what = Acknowledged(None, (), (PartOfBatch(position, left, message_count),))
    stored, done = completion()
    subscription.settle(what, done)
    await stored


async def _messages_of_batch(subscription: Subscription, position: Position, batch_index: int) -> int:
    config = subscription.runtime.config
    if not config.acknowledgment_at_batch_index_level_enabled:
        raise AdminError(
            412,
            ("A single message of a batch can be acknowledged only with acknowledgmentAtBatchIndexLevelEnabled=true"),
        )
    require_existing(subscription, position)
    run = await subscription.cursor.ledger.read_if_there(position, 1, 1)
    if run is None:
        raise AdminError(404, f"Message {position} was deleted by retention during the request")
    if not is_batch(run.payloads[0]):
        raise AdminError(412, f"Message {position} is not a batch: omit batchIndex")
    message_count = min(run.message_counts[0], config.max_messages_in_batch)
    if not 0 <= batch_index < message_count:
        raise AdminError(
            404, f"The batch {position} has {message_count} messages, so batchIndex {batch_index} does not exist"
        )
    return message_count


def redeliver(subscription: Subscription, position: Position) -> None:
    """Take the message, with all its chunks, from its consumer, so that the dispatcher redelivers it.

    Raises AdminError 404 if the message does not exist, 409 if it is acknowledged or no consumer holds it, 412 for
    Exclusive and Failover subscriptions; TransactionConflict if an open transaction has acknowledged it.
    """
    individual = subscription.individual
    require_unacknowledged(subscription, position)
    if individual is None and subscription.dispatcher is not None:
        raise AdminError(
            412,
            f"Message {position} cannot be redelivered alone on subscription {subscription.name} of type {subscription.type_name}, "
            "because the order would change. Disconnect the consumer to redeliver all unacknowledged messages",
        )
    holder = None if individual is None else individual.pending.holder(position)
    if individual is None or holder is None:
        raise AdminError(
            409,
            f"Message {position} cannot be redelivered, because no consumer has it at present: the broker "
            "delivers it in the usual order",
        )
    require_unheld(subscription, position, -1)
    subscription.redeliver(consumer_of(holder), individual.chunks_beside(holder, position), -1)


async def deliver_at(subscription: Subscription, position: Position, due_ms: int) -> None:
    """Set the delivery time of an undelivered message, in milliseconds since 1970. Durable on return.

    Raises AdminError 404 if the message does not exist, 409 if it is acknowledged or a consumer holds it, 412 for an
    invalid time, for a subscription type without delayed delivery, and if no consumer has connected since the topic was
    loaded; TransactionConflict if an open transaction has acknowledged it; TooManyRequests; StoreError.
    """
    _require_undelivered(subscription, position)
    if not 0 <= due_ms <= MAX_DUE_MS:
        raise AdminError(
            412, f"deliverAt is {due_ms}: it must be a time in milliseconds since 1970, at most {MAX_DUE_MS}"
        )
    await subscription.delayed.change(position, due_ms)


async def deliver_now(subscription: Subscription, position: Position) -> None:
    """Deliver a delayed message immediately. Durable on return. Raises the errors of `deliver_at`, and AdminError 409
    if the message is not delayed.
    """
    _require_undelivered(subscription, position)
    if not subscription.delayed.is_waiting(position) and position < subscription.cursor.read_position:
        raise AdminError(409, f"Message {position} is not delayed: the broker delivers it in the usual order")
    await subscription.delayed.change(position, 0)


def _require_undelivered(subscription: Subscription, position: Position) -> None:
    individual = subscription.individual
    require_unacknowledged(subscription, position)
    if subscription.dispatcher is None:
        raise AdminError(
            412,
            f"The delivery time of message {position} cannot be changed, because no consumer of subscription "
            f"{subscription.name} has connected since its topic was loaded. Connect a consumer first",
        )
    if individual is None:
        raise AdminError(
            412,
            (
                f"Subscription {subscription.name} is of type {subscription.type_name}: only Shared and Key_Shared subscriptions "
                "delay messages"
            ),
        )
    if not subscription.delayed.is_enabled:
        raise AdminError(412, f"Delayed delivery is disabled for {subscription.topic.name}")
    holder = individual.pending.holder(position)
    if holder is not None:
        raise AdminError(
            409, (f"Message {position} was already delivered to consumer {holder.name}, which has not acknowledged it")
        )
    require_unheld(subscription, position, -1)


def consumer_of(state: ConsumerState) -> Consumer:
    consumer = state.peer
    assert isinstance(consumer, Consumer)
    return consumer


def require_existing(subscription: Subscription, position: Position) -> None:
    ledgers = subscription.cursor.ledger.ledgers
    if not ledgers.has_entry(position):
        if position < ledgers.first_position:
            raise AdminError(
                404,
                f"Message {position} was deleted by retention: the first message of the topic is {ledgers.first_position}",
            )
        raise AdminError(
            404, f"Message {position} does not exist: the last message of the topic is {ledgers.last_position}"
        )


def require_unacknowledged(subscription: Subscription, position: Position) -> None:
    """Check that the entry is unacknowledged. Raises AdminError 404 if it does not exist, 409 if it is acknowledged."""
    require_existing(subscription, position)
    if subscription.cursor.state.is_deleted(*position):
        raise AdminError(409, f"Message {position} is already acknowledged on subscription {subscription.name}")


def require_unheld(subscription: Subscription, position: Position, bits: int) -> None:
    """Check that no open transaction has acknowledged any of the selected messages of the entry at `position`. `bits`:
    bitmap of the batch indexes of the selected messages; -1 for all messages. Raises TransactionConflict.
    """
    held = subscription.cursor.state.held
    txn = held.holder_of(position, bits) if held else None
    if txn is not None:
        raise TransactionConflict(
            f"Message {position} is acknowledged by the open transaction {txn}: the acknowledgement takes effect if the "
            "transaction commits; if it aborts, the message is delivered again"
        )
