"""Unacknowledged messages of a subscription, page by page: who holds which, since when, how often it was delivered.

Rows rise by position, so a page goes on where the one before ended whatever was acknowledged, given back or delivered meanwhile:
nothing is shown twice, and what stays unacknowledged all the time is shown once. First the entries are chosen by what is in memory
(`candidates`), then those of the page are read, a few at a time, for what only they can say: keys, sizes, properties.

Types with one active consumer keep no hashes, and times about (`delivery_log.py`): of these the list is what stands between the
mark-delete position and the read position and is not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.inspection.pages import START, Place, Steps, pieces_of
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.dispatch.single_active import SingleActiveDispatcher
from pybroker.model import ack_set
from pybroker.model.position import EARLIEST, Position

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.dispatch.consumer_state import ConsumerState
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


def candidates(subscription: Subscription, wanted: Wanted, after: Place, max_entries: int) -> Steps[Candidates]:
    """What is unacknowledged behind `after`. Without a filter only the entries of the page are looked at."""
    dispatcher = subscription.dispatcher
    if isinstance(dispatcher, MultiConsumerDispatcher):
        return (yield from _of_several(dispatcher.pending, wanted, after, max_entries))
    active = dispatcher.active_consumer if isinstance(dispatcher, SingleActiveDispatcher) else None
    if active is None or wanted.consumer not in (None, active.name):
        return Candidates()
    assert isinstance(dispatcher, SingleActiveDispatcher)
    end = subscription.cursor.read_position
    if wanted.delivered_by_ms is not None:
        end = min(end, dispatcher.first_delivered_after(wanted.delivered_by_ms) or end)
    return (yield from _of_one(subscription.cursor, dispatcher, end, after, max_entries))


def _of_several(pending: PendingAcks, wanted: Wanted, after: Place, max_entries: int) -> Steps[Candidates]:
    if wanted.is_all:
        return (yield from _first_of_several(pending, after, max_entries))
    found = Candidates()
    name, asked_hash, delivered_by_ms = wanted.consumer, wanted.sticky_hash, wanted.delivered_by_ms
    for ledger_id, entry_ids, holds in pieces_of(pending):
        for entry_id in entry_ids:
            hold = holds.get(entry_id)
            if (
                hold is None
                or (asked_hash is not None and hold[2] != asked_hash)
                or (name is not None and hold[0].name != name)
                or (delivered_by_ms is not None and hold[3] > delivered_by_ms)
            ):
                continue
            found.total += hold[1]
            if len(found.entries) < max_entries:
                position = Position(ledger_id, entry_id)
                if _is_behind(position, after):
                    found.entries.append(_unacked(position, hold))
        yield
    return found


def _first_of_several(pending: PendingAcks, after: Place, max_entries: int) -> Steps[Candidates]:
    """Without a filter: nothing but the entries of the page is looked at."""
    found = Candidates(total=pending.total_messages)
    for ledger_id in pending.ledger_ids():
        if ledger_id < after.position.ledger_id or len(found.entries) >= max_entries:
            continue
        yield
        entry_ids = pending.entries_in(ledger_id)
        if ledger_id == after.position.ledger_id and after.position.entry_id > 0:
            entry_ids.remove_range(0, after.position.entry_id)
        for entry_id in entry_ids[: max_entries - len(found.entries) + 1]:
            position = Position(ledger_id, entry_id)
            hold = pending.hold(position)
            if hold is not None and _is_behind(position, after) and len(found.entries) < max_entries:
                found.entries.append(_unacked(position, hold))
    return found


def _unacked(position: Position, hold: tuple[ConsumerState, int, int, int | None]) -> UnackedEntry:
    state, unacked_messages, sticky_hash, delivered_ms = hold
    consumer = state.peer
    assert isinstance(consumer, Consumer)
    return UnackedEntry(position, consumer, unacked_messages, sticky_hash, delivered_ms)


def _of_one(
    cursor: ManagedCursor, dispatcher: SingleActiveDispatcher, end: Position, after: Place, max_entries: int
) -> Steps[Candidates]:
    """What is not acknowledged in front of `end`, all of which the active consumer got."""
    state = cursor.state
    found = Candidates()
    for each in cursor.ledger.ledgers.rows():
        if each.ledger_id > end.ledger_id:
            break
        count = min(each.entry_count, end.entry_id) if each.ledger_id == end.ledger_id else each.entry_count
        if count > 0:
            undeleted = state.undeleted_in(each.ledger_id, 0, count)
            found.total += count if undeleted is None else len(undeleted)
            yield
    position = state.first_undeleted(max(after.position, EARLIEST))
    while position < end and len(found.entries) < max_entries:
        active = dispatcher.active_consumer
        if active is None or not cursor.ledger.ledgers.has_entry(position):
            break
        if _is_behind(position, after):
            hold = (active, state.remaining_messages(*position), 0, dispatcher.delivered_ms(position))
            found.entries.append(_unacked(position, hold))
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
