"""Findings about a whole subscription: number of waiting entries, blocked reasons, transactions, delays, and chunks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec import to_builtins
from msgspec.structs import replace
from pyroaring import BitMap

from pybroker.broker.explain import actions
from pybroker.broker.explain.consumers import consumer_of, described_all, reference
from pybroker.broker.explain.steps import LISTED, Steps, counted, duration, for_long, wall_ms
from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.views import IndividualView, KeyOrderView
from pybroker.model.findings import Action, Code, Finding
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.limits.dispatch_rate_limit import DispatchRateLimit
    from pybroker.broker.topic.topic import Topic
    from pybroker.dispatch.chunks.chunked_messages import ChunkedMessage
    from pybroker.managed_ledger.managed_cursor import ManagedCursor
    from pybroker.managed_ledger.state_size_limit import StateExcess


class Waiting(NamedTuple):
    """Entries that wait for delivery. `entries` is approximate, but at least 1 if entries wait."""

    entries: int
    has_unread: bool
    """The cursor has entries to read."""
    is_listed: bool
    """Entries that were read, returned to the dispatcher, or became due wait to be sent."""
    deferred: int
    """Number of entries that an entry filter deferred."""

    def __bool__(self) -> bool:
        return self.entries > 0

    @property
    def is_for_consumers(self) -> bool:
        return self.has_unread or self.is_listed


class BehindTransaction(NamedTuple):
    """Number of entries from the first message of the oldest open transaction on: `of_transactions` belong to open
    transactions, `of_others` do not.
    """

    of_others: int
    """Entries that only the open transaction blocks."""
    of_transactions: int


def waiting_of(subscription: Subscription) -> Waiting:
    dispatcher = subscription.dispatcher
    deferred = 0 if subscription.filters is None else subscription.filters.deferred_entries
    is_listed = bool(subscription.consumers) and (
        subscription.replay_entry_count > 0 or (dispatcher is not None and dispatcher.has_parked)
    )
    delivered = 0
    if (individual := subscription.individual) is not None:
        delivered = len(individual.pending)
    delayed = subscription.delayed
    overdue = delayed.overdue_entries
    entries = _undelivered(subscription) - delivered
    if delayed.serves_several:
        entries -= delayed.entry_count - overdue
    has_unread = subscription.reads.has_more
    if has_unread and subscription.reads.compacted is None and not is_listed and entries - deferred <= 0:
        has_unread = False  # All following entries are markers or messages of aborted transactions.
    is_listed = is_listed or overdue > 0
    if not (has_unread or is_listed or deferred):
        return Waiting(0, False, False, 0)
    return Waiting(max(1, entries), has_unread, is_listed, deferred)


def behind_transaction(topic: Topic) -> BehindTransaction | None:
    """Return how many entries consumers cannot receive yet because of the topic's open transactions. None if no
    transaction is open."""
    buffer, read_limit = topic.transactions.buffer, topic.ledger.read_limit
    if buffer is None or not buffer.open or read_limit.limit is None:
        return None
    ledgers = topic.ledger.ledgers
    behind = ledgers.entries_after(ledgers.previous_position(read_limit.limit))
    own = sum(each.entry_count for each in buffer.open.values())
    hidden = sum(
        len(bitmap) if ledger_id > read_limit.limit.ledger_id else _from(bitmap, read_limit.limit.entry_id)
        for ledger_id, bitmap in read_limit.hidden.items()
        if ledger_id >= read_limit.limit.ledger_id
    )
    return BehindTransaction(max(0, behind - own - hidden), own)


def _undelivered(subscription: Subscription) -> int:
    cursor = subscription.cursor
    ledgers, read_limit = cursor.ledger.ledgers, cursor.ledger.read_limit
    dispatcher = subscription.dispatcher
    if subscription.consumers and dispatcher is not None and dispatcher.active_consumer is not None:
        start = max(cursor.read_position, cursor.first_unacked_position)
        entries = ledgers.entries_after(ledgers.previous_position(start)) - _deleted_from(cursor, start)
    else:
        start = cursor.first_unacked_position
        entries = cursor.backlog_entries
        if not subscription.consumers:  # Entries with a pending ack are delivered again only after an abort.
            entries -= sum(len(each) for hold in cursor.state.held.open.values() for each in hold.entries.values())
    if read_limit.limit is not None:
        entries -= ledgers.entries_after(ledgers.previous_position(max(start, read_limit.limit)))
    return entries - _hidden_from(cursor, start)


def _deleted_from(cursor: ManagedCursor, start: Position) -> int:
    if not cursor.state.holes:
        return 0
    return sum(
        len(part.deleted) if part.ledger_id > start.ledger_id else _from(part.deleted, start.entry_id)
        for part in cursor.state.acknowledged_behind()
        if part.ledger_id >= start.ledger_id
    )


def _hidden_from(cursor: ManagedCursor, start: Position) -> int:
    read_limit, hidden = cursor.ledger.read_limit, 0
    for ledger_id, bitmap in read_limit.hidden.items():
        if ledger_id < start.ledger_id or not cursor.ledger.ledgers.has_ledger(ledger_id):
            continue
        unseen = bitmap - cursor.state.deleted_in(ledger_id)
        if ledger_id == start.ledger_id:
            unseen.remove_range(0, max(0, start.entry_id))
        limit = read_limit.limit
        if limit is not None and ledger_id >= limit.ledger_id:
            first = limit.entry_id if ledger_id == limit.ledger_id else 0
            unseen.remove_range(first, 1 << 32)
        hidden += len(unseen)
    return hidden


def _from(bitmap: BitMap, entry_id: int) -> int:
    return len(bitmap) if entry_id <= 0 else len(bitmap) - int(bitmap.rank(entry_id - 1))


SLOW_READ_MS = 1000
"""A read that takes longer is reported as a finding."""
STOP_ALL = {
    Code.READ_FAILED,
    Code.UNACKED_LIMIT_BROKER,
    Code.UNACKED_LIMIT_SUBSCRIPTION,
    Code.CONSUMER_STARTING,
    Code.DISPATCH_RATE,
    Code.MEMORY_BUDGET,
    Code.CURSOR_STATE_TOO_LARGE,
}
"""Findings that stop the whole subscription, so its consumers are not examined."""


def what_stops_all(subscription: Subscription, waiting: Waiting) -> Steps:
    found: list[Finding] = []
    stall = subscription.stall
    blocked_reason = None if stall is None else stall.blocked_reason
    clock = subscription.runtime.clock
    since_ms = None if stall is None else wall_ms(stall.since_ms, clock)
    dispatcher = subscription.dispatcher
    limit = subscription.broker_context.broker_unacked_limit
    if subscription.failed_reads.reason:
        found.append(
            _read_failed(subscription, waiting, since_ms if blocked_reason is BlockedReason.READ_FAILED else None)
        )
    if subscription.cursor.size_limit.excess is not None:
        found.append(_state_too_large(subscription, subscription.cursor.size_limit.excess, waiting))
    if limit is not None and limit.is_stopped(subscription):
        found.append(
            _unacked_limit_of_broker(
                subscription, waiting, since_ms if blocked_reason is BlockedReason.UNACKED_BROKER else None
            )
        )
    if dispatcher is not None and dispatcher.blocked and (individual := dispatcher.individual) is not None:
        found.append((yield from _unacked_limit(subscription, individual, waiting)))
    if dispatcher is not None and dispatcher.blocked_reason() is BlockedReason.STARTING:
        found.append(_starting(subscription, waiting, since_ms))
    if waiting.deferred:
        found.append(_filtered(subscription, waiting, since_ms if blocked_reason is BlockedReason.FILTER else None))
    if blocked_reason is BlockedReason.RATE:
        found += _rate(subscription, waiting, since_ms)
    elif blocked_reason is BlockedReason.MEMORY:
        found.append(_memory(subscription, waiting, since_ms))
    elif (
        blocked_reason is BlockedReason.READING and since_ms is not None and clock.wall_ms() - since_ms >= SLOW_READ_MS
    ):
        found.append(
            Finding(
                Code.READING,
                f"{_entries(waiting)}, and the broker has been reading the next entries from the store{for_long(since_ms, clock)}.",
                since_ms=since_ms,
                evidence={"readPosition": str(subscription.cursor.read_position), "waitingEntries": waiting.entries},
            )
        )
    if (key_order := subscription.key_order) is not None and waiting.has_unread and key_order.is_full():
        found.append(_look_ahead_full(subscription, key_order, waiting))
    return found


def _entries(waiting: Waiting) -> str:
    return counted(waiting.entries, "entry waits", "entries wait")


def no_consumers(subscription: Subscription, waiting: Waiting) -> Finding:
    since_ms = subscription.last_active_ms
    return Finding(
        Code.NO_CONSUMERS,
        f"{_entries(waiting)} and no consumer has been connected{for_long(since_ms, subscription.runtime.clock)}.",
        since_ms=since_ms,
        evidence={"waitingEntries": waiting.entries, "backlogEntries": subscription.backlog_entries},
        actions=(
            actions.show_subscriptions(subscription.topic.name),
            actions.skip_all(subscription),
            actions.delete_subscription(subscription),
        ),
    )


def _read_failed(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> Finding:
    cursor = subscription.cursor
    position = cursor.ledger.ledgers.normalize(cursor.read_position)
    return Finding(
        Code.READ_FAILED,
        f"{_entries(waiting)}, and reading fails{for_long(since_ms, subscription.runtime.clock)}:"
        f" {subscription.failed_reads.reason}. The broker retries.",
        since_ms=since_ms,
        evidence={
            "error": subscription.failed_reads.reason,
            "readPosition": str(position),
            "firstUnacked": str(cursor.first_unacked_position),
            "waitingEntries": waiting.entries,
        },
        actions=(actions.acknowledge(subscription, position), actions.skip_damaged_everywhere()),
    )


def _unacked_limit_of_broker(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> Finding:
    limit = subscription.broker_context.broker_unacked_limit
    assert limit is not None
    own = subscription.unacked_messages
    return Finding(
        Code.UNACKED_LIMIT_BROKER,
        f"Delivery has stopped: the broker has {limit.total:,} unacknowledged messages in all subscriptions, with a limit of"
        f" {limit.max_messages:,} (maxUnackedMessagesPerBroker). Subscriptions with more than {limit.max_share:,} are"
        f" blocked, and this subscription has {own:,} unacknowledged messages. {_entries(waiting)}.",
        since_ms=since_ms,
        evidence={
            "limit": limit.max_messages,
            "share": limit.max_share,
            "unackedMessagesOfBroker": limit.total,
            "unackedMessages": own,
            "most": [
                {"topic": str(each.topic.name), "subscription": each.name, "unackedMessages": held}
                for each, held in cast("list[tuple[Subscription, int]]", limit.most(LISTED))
            ],
            "key": "maxUnackedMessagesPerBroker",
        },
        actions=_of_most_holding(subscription),
    )


def _state_too_large(subscription: Subscription, excess: StateExcess, waiting: Waiting) -> Finding:
    cursor = subscription.cursor
    since_ms = wall_ms(excess.since_ms, subscription.runtime.clock)
    first = cursor.state.first_undeleted(cursor.first_unacked_position)
    stored = "not stored" if not cursor.size_limit.is_stored else "stored again, but still almost too large"
    return Finding(
        Code.CURSOR_STATE_TOO_LARGE,
        f"Delivery of messages after {excess.end} is paused{for_long(since_ms, subscription.runtime.clock)}: the"
        f" acknowledgements of the subscription take {excess.size_bytes:,} bytes in"
        f" {counted(excess.range_count, 'range')}, and an entry on a bookie can have at most {excess.limit_bytes:,} bytes. The"
        f" acknowledgements are {stored}. Acknowledge the oldest messages, beginning with {first}. {_entries(waiting)}.",
        since_ms=since_ms,
        evidence={
            "stateBytes": excess.size_bytes,
            "limit": excess.limit_bytes,
            "ranges": cursor.state.deleted_range_count,
            "isStored": cursor.size_limit.is_stored,
            "messageId": str(first),
            "lastAcknowledged": str(excess.end),
            "waitingEntries": waiting.entries,
        },
        actions=_of_most_holding(subscription),
    )


def _unacked_limit(
    subscription: Subscription, individual: IndividualView, waiting: Waiting
) -> Generator[None, None, Finding]:
    limit = individual.max_unacked_messages
    since_ms = subscription.counters.last_consumed_ms or None
    most = nlargest(LISTED, subscription.consumers, key=lambda each: each.state.unacked_messages)
    more_consumers = len(subscription.consumers) - len(most)
    held, first_held = individual.unacked_messages, most[0].state.unacked_messages
    suggested = _of_most_holding(subscription)
    descriptions = yield from described_all(most)
    return Finding(
        Code.UNACKED_LIMIT_SUBSCRIPTION,
        f"Delivery has stopped{for_long(since_ms, subscription.runtime.clock)}: {counted(held, 'delivered message')} of the"
        f" subscription {'is' if held == 1 else 'are'} unacknowledged, and the limit is {limit:,}"
        f" (maxUnackedMessagesPerSubscription). It resumes at {limit // 2:,} unacknowledged messages. Consumer"
        f" {most[0].name} has the most: {first_held:,}. {_entries(waiting)}.",
        since_ms=since_ms,
        evidence={
            "limit": limit,
            "unackedMessages": held,
            "consumers": descriptions,
            "moreConsumers": more_consumers,
        },
        actions=(
            *suggested,
            actions.raise_limit(
                subscription.topic.name,
                "maxUnackedMessagesOnSubscription",
                2 * limit,
                f"Raise the limit of unacknowledged messages of each subscription of the topic from {limit:,} to {2 * limit:,}",
            ),
        ),
    )


def _of_most_holding(subscription: Subscription) -> Sequence[Action]:
    most = max(subscription.consumers, key=lambda each: each.state.unacked_messages, default=None)
    if most is None or not most.state.unacked_messages:
        return ()
    return (actions.show_unacked(most), actions.disconnect(most))


def _starting(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> Finding:
    delay_ms = subscription.runtime.config.active_consumer_failover_delay_time_millis
    active = None if subscription.dispatcher is None else subscription.dispatcher.active_consumer
    name = "A consumer" if active is None else f"Consumer {active.name}"
    return Finding(
        Code.CONSUMER_STARTING,
        f"{name} has just become the active consumer and receives messages after a delay of {duration(delay_ms)};"
        f" {counted(waiting.entries, 'entry waits', 'entries wait')}.",
        since_ms=since_ms,
        evidence={
            "consumer": None if active is None else reference(consumer_of(active)),
            "activeConsumerFailoverDelayTimeMillis": delay_ms,
            "waitingEntries": waiting.entries,
        },
    )


def _filtered(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> Finding:
    filters = subscription.filters
    first = None if filters is None else filters.deferred_first
    return Finding(
        Code.ENTRY_FILTER,
        f"An entry filter has deferred {counted(waiting.deferred, 'entry', 'entries')}; the first is {first}. The broker calls the"
        " filter again within seconds.",
        since_ms=since_ms,
        evidence={
            "filters": [type(each).__name__ for each in (() if filters is None else filters.filters)],
            "putOffEntries": waiting.deferred,
            "messageId": None if first is None else str(first),
            "waitingEntries": waiting.entries,
        },
    )


_RATE_OWNERS = {
    "Topic": "the topic",
    "Subscription": "the subscription",
    "Broker": "the broker",
    "ResourceGroup": "the namespace's resource group",
}


def _rate(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> list[Finding]:
    used_up = [] if subscription.throttle is None else subscription.throttle.used_up()
    if not used_up:
        return []  # The limit was used up at the last check. Dispatch resumes by itself.
    clock = subscription.runtime.clock
    rates: list[dict[str, Any]] = []
    for limit, unit, wait_ms in used_up:
        in_messages = unit == "messages"
        rate = limit.rate.dispatchThrottlingRateInMsg if in_messages else limit.rate.dispatchThrottlingRateInByte
        period_s = max(1, limit.rate.ratePeriodInSecond)
        rates.append({"of": limit.scope, "unit": unit, "rate": rate, "periodSeconds": period_s, "goesOnInMs": wait_ms})
    first = max(rates, key=lambda each: float(each["goesOnInMs"]))
    per = "second" if first["periodSeconds"] == 1 else f"{first['periodSeconds']:,} seconds"
    return [
        Finding(
            Code.DISPATCH_RATE,
            f"{_entries(waiting)}: the dispatch rate of {_RATE_OWNERS[first['of']]}, {first['rate']:,} {first['unit']} per {per},"
            f" has been used up{for_long(since_ms, clock)}; it resumes in {duration(first['goesOnInMs'])}.",
            since_ms=since_ms,
            evidence={"rates": rates, "waitingEntries": waiting.entries},
            actions=_raised_rates(subscription, [(limit, unit) for limit, unit, _ in used_up]),
        )
    ]


def _raised_rates(subscription: Subscription, used_up: Sequence[tuple[DispatchRateLimit, str]]) -> list[Action]:
    suggested: dict[str, Action] = {}
    for limit, unit in used_up:
        rate = limit.rate
        doubled = replace(
            rate,
            dispatchThrottlingRateInMsg=_doubled(rate.dispatchThrottlingRateInMsg),
            dispatchThrottlingRateInByte=_doubled(rate.dispatchThrottlingRateInByte),
        )
        body, to = to_builtins(doubled), f"Double the dispatch rate of {_RATE_OWNERS[limit.scope]}"
        if limit.scope == "Topic":
            suggested[limit.scope] = actions.raise_limit(subscription.topic.name, "dispatchRate", body, to)
        elif limit.scope == "Subscription":
            suggested[limit.scope] = actions.raise_subscription_dispatch_rate(subscription, body, to)
        elif limit.scope == "Broker":
            key = "dispatchThrottlingRateInMsg" if unit == "messages" else "dispatchThrottlingRateInByte"
            value = _doubled(getattr(rate, key))
            suggested[key] = actions.raise_configuration(key, value, f"Raise the broker's {key} to {value:,}")
        elif name := subscription.topic.policies.resource_group:
            suggested[limit.scope] = actions.show_resource_group(name)
    return list(suggested.values())


def _doubled(rate: int) -> int:
    return 2 * rate if rate > 0 else rate


def _memory(subscription: Subscription, waiting: Waiting, since_ms: int | None) -> Finding:
    budget = subscription.runtime.memory.budget
    mebibyte = 1 << 20
    parts = sorted(budget.parts.values(), key=lambda each: -each.used_bytes)
    return Finding(
        Code.MEMORY_BUDGET,
        f"{_entries(waiting)}{for_long(since_ms, subscription.runtime.clock)} for memory: the broker uses"
        f" {budget.used_bytes / mebibyte:.0f} of {budget.limit_bytes / mebibyte:.0f} MiB (brokerMemoryLimitMB), most of it for"
        f" {parts[0].name}.",
        since_ms=since_ms,
        evidence={
            "limitBytes": budget.limit_bytes,
            "usedBytes": budget.used_bytes,
            "parts": {each.name: each.used_bytes for each in parts if each.used_bytes},
            "waitingEntries": waiting.entries,
            "key": "brokerMemoryLimitMB",
        },
    )


def _look_ahead_full(subscription: Subscription, key_order: KeyOrderView, waiting: Waiting) -> Finding:
    look_ahead = key_order.look_ahead(LISTED)
    most = look_ahead.most[0] if look_ahead.most else None
    limit = key_order.look_ahead_entry_limit
    by_whom = ""
    if most is not None:
        whom = "has no consumer" if most.consumer is None else f"is blocked by consumer {most.consumer.name}"
        entries = counted(most.entries, "entry", "entries")
        by_whom = f" Hash {most.sticky_hash} has the most entries in the buffer, {entries}, and {whom}."
    return Finding(
        Code.LOOK_AHEAD_FULL,
        f"The broker reads no new entries: {counted(look_ahead.entries, 'entry waits', 'entries wait')} in the look-ahead buffer"
        f" for blocked keys or consumers, and the limit is {0 if limit is None else limit:,}.{by_whom}",
        since_ms=None if most is None or not most.since_ms else int(most.since_ms),
        evidence={
            "entries": look_ahead.entries,
            "limit": limit,
            "keys": [
                "keySharedLookAheadMsgInReplayThresholdPerConsumer",
                "keySharedLookAheadMsgInReplayThresholdPerSubscription",
            ],
            "hashes": [
                {
                    "hash": each.sticky_hash,
                    "consumer": None if each.consumer is None else reference(consumer_of(each.consumer)),
                    "waitingEntries": each.entries,
                    "drains": each.is_draining and each.consumer is not None,
                }
                for each in look_ahead.most
            ],
            "waitingEntries": waiting.entries,
        },
        actions=(actions.show_waiting(subscription),),
    )


def transaction_open(topic: Topic) -> list[Finding]:
    """Return a finding about the topic's oldest open transaction, which blocks all messages after its first message.
    Empty without an open transaction.

    If the coordinator may already have committed the transaction, the finding does not suggest an abort.
    """
    behind, buffer = behind_transaction(topic), topic.transactions.buffer
    if behind is None or buffer is None:
        return []
    txn, transaction = next(iter(buffer.open.items()))
    clock = topic.runtime.clock
    held = (
        f"{counted(behind.of_others, 'entry of other producers waits', 'entries of other producers wait')} after it"
        if behind.of_others
        else "no other messages wait after it"
    )
    more = "" if len(buffer.open) == 1 else f", the oldest of {len(buffer.open):,},"
    evidence = {
        "transaction": str(txn),
        "producer": transaction.owner,
        "firstMessage": str(transaction.first),
        "entriesOfOthers": behind.of_others,
        "entriesOfTransactions": behind.of_transactions,
        "openTransactions": len(buffer.open),
    }
    pending = topic.broker_context.pending_end_of(txn)
    if pending is not None:
        return [
            Finding(
                Code.TRANSACTION_END_PENDING,
                f"Transaction {txn}{more} of producer {transaction.owner} {pending.reason}. Until then, the broker delivers"
                f" only messages before {transaction.first} (the first message of the transaction), and {held}.",
                since_ms=topic.loaded_ms,
                evidence=evidence
                | {"isCommitted": pending.is_committed, "waitingReaders": topic.transactions.waiting_readers},
                actions=(actions.show_transaction(txn), actions.show_coordinator(txn)),
            )
        ]
    remedies = actions.of_open_transaction(topic, txn)
    return [
        Finding(
            Code.TRANSACTION_OPEN,
            f"Transaction {txn}{more} of producer {transaction.owner} has been open"
            f"{for_long(transaction.opened_ms, clock)}. Until it ends, the broker delivers only messages before"
            f" {transaction.first} (the first message of the transaction), and {held}."
            + ("" if remedies else actions.ONLY_JAVA_ENDS_IT),
            waits=behind.of_others > 0,
            since_ms=transaction.opened_ms,
            evidence=evidence,
            actions=remedies,
        )
    ]


def delayed(subscription: Subscription) -> list[Finding]:
    index = subscription.delayed
    due_ms = index.next_due_ms
    if not index.entry_count or due_ms is None:
        return []
    wait_ms = due_ms - subscription.runtime.clock.wall_ms()
    when = f"in {duration(wait_ms)}" if wait_ms > 0 else "now"
    return [
        Finding(
            Code.DELAYED,
            f"{counted(index.entry_count, 'entry is delayed', 'entries are delayed')}; the next is due {when}.",
            waits=False,
            evidence={"entries": index.entry_count, "nextDueAt": due_ms},
            actions=(actions.show_delayed(subscription),),
        )
    ]


def chunks_missing(subscription: Subscription) -> Generator[None, None, list[Finding]]:
    """Return findings about incomplete chunked messages, whose remaining chunks are not in the topic."""
    individual = subscription.individual
    if individual is None:
        return []
    missing: list[tuple[bytes, ChunkedMessage, list[Position]]] = []
    for uuid, message in individual.chunked.incomplete():
        held = sorted(each for each in message.positions if individual.pending.holder(each) is message.consumer)
        if held and len(held) == len(message.positions) and not individual.replay_entry_count:
            missing.append((uuid, message, held))
        yield
    if not missing:
        return []
    uuid, message, held = missing[0]
    consumer = consumer_of(message.consumer)
    since_ms = individual.pending.delivered_ms(held[-1])
    name = uuid.decode(errors="replace")
    more = (
        ""
        if len(missing) == 1
        else f" {counted(len(missing) - 1, 'more message is', 'more messages are')} incomplete in the same way."
    )
    return [
        Finding(
            Code.CHUNKS_MISSING,
            f"Consumer {consumer.name} has had {len(held):,} of the {message.chunk_count:,} chunks of message {name}"
            f"{for_long(since_ms, subscription.runtime.clock)}; the producer has not published the other chunks.{more}",
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
