"""What keeps messages from everybody, or is good to know, whatever the consumers do: transactions, times, parts of messages."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from pybroker.broker.explain import actions
from pybroker.broker.explain.consumers import consumer_of, reference
from pybroker.broker.explain.steps import LISTED, counted, duration, for_long
from pybroker.broker.explain.waiting import behind_transaction
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.model.findings import Code, Finding

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic
    from pybroker.dispatch.chunked_messages import ChunkedMessage
    from pybroker.model.position import Position


def transaction_open(topic: Topic) -> list[Finding]:
    """The oldest open transaction of the topic, which keeps everything behind its first message from being delivered."""
    behind, buffer = behind_transaction(topic), topic.transactions.buffer
    if behind is None or buffer is None:
        return []
    txn, transaction = next(iter(buffer.open.items()))
    clock = topic.surroundings.clock
    held = (
        f"{counted(behind.of_others, 'entry of others waits', 'entries of others wait')} behind it"
        if behind.of_others
        else "nobody else's messages wait behind it"
    )
    more = "" if len(buffer.open) == 1 else f", the oldest of {len(buffer.open):,},"
    return [
        Finding(
            Code.TRANSACTION_OPEN,
            f"Transaction {txn}{more} of producer {transaction.owner} has been open"
            f"{for_long(transaction.opened_ms, clock)}: nothing is delivered from its first message, {transaction.first}, on, and"
            f" {held}.",
            waits=behind.of_others > 0,
            since_ms=transaction.opened_ms,
            evidence={
                "transaction": str(txn),
                "producer": transaction.owner,
                "firstMessage": str(transaction.first),
                "entriesOfOthers": behind.of_others,
                "entriesOfTransactions": behind.of_transactions,
                "openTransactions": len(buffer.open),
            },
            actions=(actions.show_transaction(txn), actions.abort_transaction(txn)),
        )
    ]


def delayed(subscription: Subscription) -> list[Finding]:
    index = subscription.delayed
    due_ms = index.next_due_ms
    if not index.entry_count or due_ms is None:
        return []
    wait_ms = due_ms - subscription.surroundings.clock.wall_ms()
    when = f"in {duration(wait_ms)}" if wait_ms > 0 else "now"
    return [
        Finding(
            Code.DELAYED,
            f"{counted(index.entry_count, 'entry waits for its time', 'entries wait for their time')}; the next is due {when}.",
            waits=False,
            evidence={"entries": index.entry_count, "nextDueAt": due_ms},
            actions=(actions.show_delayed(subscription),),
        )
    ]


def chunks_missing(subscription: Subscription) -> Generator[None, None, list[Finding]]:
    """Large messages of which a consumer has a part, and nothing more is to come for it now."""
    dispatcher = subscription.dispatcher
    if not isinstance(dispatcher, MultiConsumerDispatcher):
        return []
    missing: list[tuple[bytes, ChunkedMessage, list[Position]]] = []
    for uuid, message in dispatcher.chunked.incomplete():
        held = sorted(each for each in message.positions if dispatcher.pending.holder(each) is message.consumer)
        if held and len(held) == len(message.positions) and not dispatcher.replay_entry_count:
            missing.append((uuid, message, held))
        yield
    if not missing:
        return []
    uuid, message, held = missing[0]
    consumer = consumer_of(message.consumer)
    since_ms = dispatcher.pending.delivered_ms(held[-1])
    name = uuid.decode(errors="replace")
    more = "" if len(missing) == 1 else f" It has {len(missing) - 1:,} more such messages, or others have."
    return [
        Finding(
            Code.CHUNKS_MISSING,
            f"Consumer {consumer.name} has {len(held):,} of the {message.chunk_count:,} chunks of message {name}"
            f"{for_long(since_ms, subscription.surroundings.clock)}; the others have not been published.{more}",
            waits=False,
            since_ms=since_ms,
            evidence={
                "messages": [
                    {
                        "uuid": each_uuid.decode(errors="replace"),
                        "consumer": reference(consumer_of(each.consumer)),
                        "chunks": each.chunk_count,
                        "messageIds": [str(position) for position in positions[:LISTED]],
                        "has": len(positions),
                    }
                    for each_uuid, each, positions in missing[:LISTED]
                ],
                "moreMessages": max(0, len(missing) - LISTED),
            },
            actions=(actions.show_unacked(consumer),),
        )
    ]
