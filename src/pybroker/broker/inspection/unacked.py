"""Unacknowledged messages of a subscription, page by page: who holds which, since when, how often it was delivered.

Rows rise by position, so a page goes on where the one before ended whatever was acknowledged, given back or delivered meanwhile:
nothing is shown twice, and what stays unacknowledged all the time is shown once. First the entries are chosen by what is in memory
(`candidates`), then those of the page are read, a few at a time, for what only they can say: keys, sizes, properties.

Types with one active consumer keep no times and no hashes: of these the list is what stands between the mark-delete position and
the read position and is not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.inspection.pages import ENTRIES_PER_STEP, START, Place, Steps
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.model import ack_set
from pybroker.model.position import EARLIEST, Position

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.dispatch.pending_acks import PendingAcks
    from pybroker.managed_ledger.managed_cursor import ManagedCursor


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries: of consumers of that name, of that sticky hash, delivered at that time or before."""

    consumer: str | None = None
    sticky_hash: int | None = None
    delivered_by_ms: int | None = None

    @property
    def is_all(self) -> bool:
        return self.consumer is None and self.sticky_hash is None and self.delivered_by_ms is None


class UnackedEntry(NamedTuple):
    """An entry that was delivered and is not acknowledged whole. None and 0 where the type does not keep it."""

    position: Position
    consumer: Consumer | None
    unacked_messages: int
    sticky_hash: int
    delivered_ms: int | None


@dataclass(slots=True)
class Candidates:
    """The first entries behind a place, rising, and how many unacknowledged messages are wanted in all."""

    entries: list[UnackedEntry] = field(default_factory=list)
    total: int = 0


def keeps_deliveries(subscription: Subscription) -> bool:
    """Whether its type knows of each entry who holds it since when."""
    return isinstance(subscription.dispatcher, MultiConsumerDispatcher)


def candidates(subscription: Subscription, wanted: Wanted, after: Place, max_entries: int) -> Steps[Candidates]:
    """What is unacknowledged behind `after`. Without a filter only the entries of the page are looked at."""
    dispatcher = subscription.dispatcher
    if isinstance(dispatcher, MultiConsumerDispatcher):
        return (yield from _of_several(dispatcher.pending, wanted, after, max_entries))
    active = None if dispatcher is None else dispatcher.active_consumer
    holder = None if active is None else active.peer
    if not isinstance(holder, Consumer) or wanted.consumer not in (None, holder.name):
        return Candidates()
    return (yield from _of_one(subscription.cursor, holder, after, max_entries))


def _of_several(pending: PendingAcks, wanted: Wanted, after: Place, max_entries: int) -> Steps[Candidates]:
    found = Candidates(total=pending.total_messages if wanted.is_all else 0)
    looked_at = 0
    for ledger_id in pending.ledger_ids():
        if wanted.is_all and (ledger_id < after.position.ledger_id or len(found.entries) >= max_entries):
            continue
        yield
        entry_ids = pending.entries_in(ledger_id)
        if wanted.is_all and ledger_id == after.position.ledger_id and after.position.entry_id > 0:
            entry_ids.remove_range(0, after.position.entry_id)
        for entry_id in entry_ids:
            if wanted.is_all and len(found.entries) >= max_entries:
                break
            looked_at += 1
            if looked_at % ENTRIES_PER_STEP == 0:
                yield
            position = Position(ledger_id, entry_id)
            hold = pending.hold(position)
            if hold is None:
                continue  # acknowledged meanwhile
            state, unacked_messages, sticky_hash, delivered_ms = hold
            if wanted.consumer is not None and state.name != wanted.consumer:
                continue
            if wanted.sticky_hash is not None and sticky_hash != wanted.sticky_hash:
                continue
            if wanted.delivered_by_ms is not None and delivered_ms > wanted.delivered_by_ms:
                continue
            if not wanted.is_all:
                found.total += unacked_messages
            if len(found.entries) < max_entries and _is_behind(position, after):
                consumer = state.peer
                assert isinstance(consumer, Consumer)
                found.entries.append(UnackedEntry(position, consumer, unacked_messages, sticky_hash, delivered_ms))
    return found


def _of_one(cursor: ManagedCursor, holder: Consumer, after: Place, max_entries: int) -> Steps[Candidates]:
    state = cursor.state
    found = Candidates()
    for each in cursor.ledger.ledgers.rows():
        if each.ledger_id > cursor.read_position.ledger_id:
            break
        is_last = each.ledger_id == cursor.read_position.ledger_id
        count = min(each.entry_count, cursor.read_position.entry_id) if is_last else each.entry_count
        if count > 0:
            undeleted = state.undeleted_in(each.ledger_id, 0, count)
            found.total += count if undeleted is None else len(undeleted)
            yield
    position = state.first_undeleted(max(after.position, EARLIEST))
    while position < cursor.read_position and len(found.entries) < max_entries:
        if not cursor.ledger.ledgers.has_entry(position):
            break
        if _is_behind(position, after):
            left = state.remaining_messages(*position)
            found.entries.append(UnackedEntry(position, holder, left, 0, None))
        yield
        position = state.first_undeleted(Position(position.ledger_id, position.entry_id + 1))
    return found


def _is_behind(position: Position, after: Place) -> bool:
    """Of the entry of `after` itself messages may be left, when it ended within a batch."""
    return position > after.position or (position == after.position and after != START and after.batch_index >= 0)


def unacked_indexes(subscription: Subscription, position: Position, batch_size: int, after: Place) -> Iterator[int]:
    """The messages of a batch that are not acknowledged, rising, behind `after`."""
    words = subscription.cursor.state.ack_set_of(*position)
    bits = ack_set.full(batch_size) if words is None else ack_set.left_of(batch_size, words)
    digits = f"{bits:b}"[::-1]  # Shifting a large number by one, again and again, would cost its square.
    index = digits.find("1", after.batch_index + 1 if position == after.position else 0)
    while index >= 0:
        yield index
        index = digits.find("1", index + 1)
