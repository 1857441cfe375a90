"""What of a subscription waits: entries that no consumer has, whose time has come, and that readers may see.

Counted from what is known without reading anything, so the number is about right; whether there is any is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap

from pybroker.dispatch.key_shared import KeySharedDispatcher
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic
    from pybroker.managed_ledger.managed_cursor import ManagedCursor


class Waiting(NamedTuple):
    """What waits now. `entries`: about how many, and at least 1 while there is anything."""

    entries: int
    has_unread: bool
    """The cursor has more."""
    is_listed: bool
    """Something was read, or given back, or is due, and waits to be sent."""
    put_off: int
    """By an entry filter, until it is asked again."""

    def __bool__(self) -> bool:
        return self.entries > 0

    @property
    def is_for_consumers(self) -> bool:
        """Whether something waits for more than a filter."""
        return self.has_unread or self.is_listed


class BehindTransaction(NamedTuple):
    """Entries from the first message of the oldest open transaction on."""

    of_others: int
    """Messages that could be delivered but for it."""
    of_transactions: int


def waiting_of(subscription: Subscription) -> Waiting:
    """What could be delivered to somebody, and is not yet."""
    dispatcher = subscription.dispatcher
    put_off = 0 if subscription.filters is None else subscription.filters.put_off_entries
    is_listed = bool(subscription.consumers) and (subscription.replay_entry_count > 0 or _is_aside(subscription))
    delivered = 0
    if isinstance(dispatcher, MultiConsumerDispatcher):
        delivered = len(dispatcher.pending)
    delayed = subscription.delayed
    overdue = delayed.overdue_entries
    entries = _undelivered(subscription) - delivered
    if delayed.serves_several:
        entries -= delayed.entry_count - overdue
    has_unread = subscription.reads.has_more
    if has_unread and subscription.reads.compacted is None and not is_listed and entries - put_off <= 0:
        has_unread = False  # All that comes is hidden: markers, and messages of aborted transactions.
    is_listed = is_listed or overdue > 0
    if not (has_unread or is_listed or put_off):
        return Waiting(0, False, False, 0)
    return Waiting(max(1, entries), has_unread, is_listed, put_off)


def behind_transaction(topic: Topic) -> BehindTransaction | None:
    """What the topic's open transactions hold back; None while there is none."""
    buffer, visibility = topic.transactions.buffer, topic.ledger.visibility
    if buffer is None or not buffer.open or visibility.limit is None:
        return None
    ledgers = topic.ledger.ledgers
    behind = ledgers.entries_after(ledgers.previous_position(visibility.limit))
    own = sum(each.entry_count for each in buffer.open.values())
    hidden = sum(
        len(bitmap) if ledger_id > visibility.limit.ledger_id else _from(bitmap, visibility.limit.entry_id)
        for ledger_id, bitmap in visibility.hidden.items()
        if ledger_id >= visibility.limit.ledger_id
    )
    return BehindTransaction(max(0, behind - own - hidden), own)


def _undelivered(subscription: Subscription) -> int:
    """Entries that are not acknowledged and may be seen; with one active consumer only those that it was not sent."""
    cursor = subscription.cursor
    ledgers, visibility = cursor.ledger.ledgers, cursor.ledger.visibility
    dispatcher = subscription.dispatcher
    if subscription.consumers and dispatcher is not None and dispatcher.active_consumer is not None:
        start = max(cursor.read_position, cursor.first_unacked_position)
        entries = ledgers.entries_after(ledgers.previous_position(start)) - _deleted_from(cursor, start)
    else:
        start = cursor.first_unacked_position
        entries = cursor.backlog_entries
        if not subscription.consumers:  # What transactions have acknowledged comes again only if they abort.
            entries -= sum(len(each) for hold in cursor.state.held.open.values() for each in hold.entries.values())
    if visibility.limit is not None:
        entries -= ledgers.entries_after(ledgers.previous_position(max(start, visibility.limit)))
    return entries - _hidden_from(cursor, start)


def _deleted_from(cursor: ManagedCursor, start: Position) -> int:
    """Entries behind there that are acknowledged one by one."""
    if not cursor.state.has_holes:
        return 0
    return sum(
        len(part.deleted) if part.ledger_id > start.ledger_id else _from(part.deleted, start.entry_id)
        for part in cursor.state.acknowledged_behind()
        if part.ledger_id >= start.ledger_id
    )


def _hidden_from(cursor: ManagedCursor, start: Position) -> int:
    """Entries between there and the first open transaction that nobody ever sees, and that are not acknowledged."""
    visibility, hidden = cursor.ledger.visibility, 0
    for ledger_id, bitmap in visibility.hidden.items():
        if ledger_id < start.ledger_id or not cursor.ledger.ledgers.has_ledger(ledger_id):
            continue
        unseen = bitmap - cursor.state.deleted_in(ledger_id)
        if ledger_id == start.ledger_id:
            unseen.remove_range(0, max(0, start.entry_id))
        limit = visibility.limit
        if limit is not None and ledger_id >= limit.ledger_id:
            first = limit.entry_id if ledger_id == limit.ledger_id else 0
            unseen.remove_range(first, 1 << 32)
        hidden += len(unseen)
    return hidden


def _from(bitmap: BitMap, entry_id: int) -> int:
    """How many of a bitmap stand there or behind it."""
    return len(bitmap) if entry_id <= 0 else len(bitmap) - int(bitmap.rank(entry_id - 1))


def _is_aside(subscription: Subscription) -> bool:
    dispatcher = subscription.dispatcher
    if isinstance(dispatcher, KeySharedDispatcher):
        return bool(dispatcher.set_aside)
    return isinstance(dispatcher, SharedDispatcher) and bool(dispatcher.aside)
