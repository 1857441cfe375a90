"""Unacknowledged messages of a subscription, in pages, with consumer, delivery time and redelivery count.

Messages are sorted by position, and only the entries of the page are read. For Exclusive and Failover, the list
contains the entries between mark-delete position and read position, with approximate delivery times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.inspection.page_entries import ReadEntry, read_entries
from pybroker.broker.inspection.pages import START, Place, Steps, pieces_of
from pybroker.model import ack_set
from pybroker.model.position import EARLIEST, Position
from pybroker.runtime.time_slices import SLICE_MS, in_slices
from pybroker.wire.entry_view import EntryView, MessageOfEntry, entry_view, is_slow_to_open

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.dispatch.dispatcher import Dispatcher
    from pybroker.dispatch.pending_acks import PendingAcks
    from pybroker.managed_ledger.managed_cursor import ManagedCursor
    from pybroker.model.txn_id import TxnId


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filter of the list: consumer name, sticky key hash, latest delivery time."""

    consumer: str | None = None
    sticky_hash: int | None = None
    delivered_by_ms: int | None = None

    @property
    def is_all(self) -> bool:
        return self.consumer is None and self.sticky_hash is None and self.delivered_by_ms is None


class UnackedEntry(NamedTuple):
    """An entry with unacknowledged messages, and its last delivery.

    For Exclusive and Failover, the hash is 0 and the delivery time is approximate. An unknown time is None.
    """

    position: Position
    consumer: Consumer | None
    unacked_messages: int
    sticky_hash: int
    delivered_ms: int | None


@dataclass(slots=True)
class Candidates:
    """The first matching entries after a position, and the number of matching unacknowledged messages on all pages (for
    Exclusive and Failover: the number of entries).
    """

    entries: list[UnackedEntry] = field(default_factory=list)
    total: int = 0


def candidates(subscription: Subscription, wanted: Wanted, after: Place, max_entries: int) -> Steps[Candidates]:
    """Return the first `max_entries` unacknowledged entries after `after` that match `wanted`, and the number of
    matching messages on all pages (for Exclusive and Failover: the number of entries).
    """
    dispatcher = subscription.dispatcher
    if dispatcher is not None and dispatcher.individual is not None:
        return (yield from _of_several(dispatcher.individual.pending, wanted, after, max_entries))
    if (
        dispatcher is None
        or (active := dispatcher.active_consumer) is None
        or wanted.consumer not in (None, active.name)
    ):
        return Candidates()
    in_order = dispatcher.in_order
    assert in_order is not None
    end = subscription.cursor.read_position
    if wanted.delivered_by_ms is not None:
        end = min(end, in_order.first_delivered_after(wanted.delivered_by_ms) or end)
    return (yield from _of_one(subscription.cursor, dispatcher, active, end, after, max_entries))


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
    cursor: ManagedCursor,
    dispatcher: Dispatcher,
    holder: ConsumerState,
    end: Position,
    after: Place,
    max_entries: int,
) -> Steps[Candidates]:
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
    # During a pause the active consumer may change, or everything may be redelivered.
    while position < min(end, cursor.read_position) and len(found.entries) < max_entries:
        if dispatcher.active_consumer is not holder or not cursor.ledger.ledgers.has_entry(position):
            break
        if _is_behind(position, after):
            delivered_ms = None if dispatcher.in_order is None else dispatcher.in_order.delivered_ms(position)
            hold = (holder, state.remaining_messages(*position), 0, delivered_ms)
            found.entries.append(_unacked(position, hold))
        yield
        position = state.first_undeleted(Position(position.ledger_id, position.entry_id + 1))
    return found


def _is_behind(position: Position, after: Place) -> bool:
    return position > after.position or (position == after.position and after != START and after.batch_index >= 0)


def unacked_indexes(subscription: Subscription, position: Position, batch_size: int, after: Place) -> Iterator[int]:
    words = subscription.cursor.state.ack_set_of(*position)
    bits = ack_set.full(batch_size) if words is None else ack_set.left_of(batch_size, words)
    return ack_set.indexes(bits, after.batch_index + 1 if position == after.position else 0)


MAX_ENTRIES_READ = 2000
"""Maximum number of entries that one search for a key reads if hashes are unknown. The page ends at this limit."""
QUICK_BYTES = 64 * 1024
"""Larger entries are decoded in a thread."""
PAGE_CHARACTERS = 1024 * 1024
"""Maximum number of characters in the keys and properties of a page. The page ends at this limit."""


class UnackedMessage(NamedTuple):
    """One message of the list. `message` and `view` are None if the entry cannot be read; `problem` is the error."""

    entry: UnackedEntry
    delivery_count: int | None
    held_by: TxnId | None
    message: MessageOfEntry | None
    view: EntryView | None
    problem: str


@dataclass(slots=True)
class UnackedPage:
    """Messages, start of the next page (None after the last page), and number of all matching messages.

    The number ignores the key filter, which would require reading all entries.
    """

    rows: list[UnackedMessage] = field(default_factory=list)
    after: Place | None = None
    total: int = 0


async def unacked_page(
    subscription: Subscription, wanted: Wanted, key: bytes | None, after: Place, limit: int
) -> UnackedPage:
    """Return the next `limit` unacknowledged messages after `after`; if `key` is set, only messages with this key.
    Raises StoreError.
    """
    clock = subscription.runtime.clock
    page = UnackedPage()
    left_entries, left_characters = MAX_ENTRIES_READ, PAGE_CHARACTERS
    turn_ends_ms = clock.monotonic_ms() + SLICE_MS
    while True:
        most = min(limit, left_entries)
        found = await in_slices(candidates(subscription, wanted, after, most + 1), clock)
        page.total = found.total
        chosen, has_more = found.entries[:most], len(found.entries) > most
        by_position = {each.position: each for each in chosen}
        async for read in read_entries(subscription.cursor.ledger, list(by_position)):
            room = limit - len(page.rows)
            rows, stopped_at = await _rows(subscription, by_position[read.position], read, key, after, room)
            page.rows += rows
            left_characters -= sum(_characters(row.message) for row in rows)
            left_entries -= 1
            if stopped_at >= 0:
                page.after = Place(read.position, stopped_at)
                return await _with_holders(subscription, page)
            is_full = len(page.rows) >= limit or left_characters <= 0 or left_entries <= 0
            if is_full and (has_more or read.position != chosen[-1].position):
                page.after = Place(read.position)
                return await _with_holders(subscription, page)
            if clock.monotonic_ms() >= turn_ends_ms:
                await asyncio.sleep(0)
                turn_ends_ms = clock.monotonic_ms() + SLICE_MS
        if not has_more:
            return await _with_holders(subscription, page)
        after = Place(chosen[-1].position)


async def _rows(
    subscription: Subscription, entry: UnackedEntry, read: ReadEntry, key: bytes | None, after: Place, room: int
) -> tuple[list[UnackedMessage], int]:
    """Return rows for at most `room` messages of the entry, and the index of the last one, or -1 if the entry has no
    more.
    """
    delivery_count = _delivery_count(subscription, entry.position)
    if read.payload is None:
        unread = UnackedMessage(entry, delivery_count, None, None, None, read.problem)
        return ([unread] if key is None else []), -1
    config = subscription.runtime.config
    # The batch size in the entry may be wrong: limit it to the size that the broker accepts.
    batch_size = min(max(1, read.message_count), max(1, config.max_messages_in_batch))
    indexes = list(islice(unacked_indexes(subscription, entry.position, batch_size, after), room + 1))
    opened = partial(entry_view, read.payload, indexes[:room], config.max_message_size)
    if is_slow_to_open(read.payload, QUICK_BYTES):
        view = await asyncio.to_thread(opened)
    else:
        view = opened()
    rows = [
        UnackedMessage(entry, delivery_count, None, message, view, view.problem)
        for message in view.messages
        if key is None or message.key == key
    ]
    if not view.messages and key is None and not indexes[room:]:
        rows = [UnackedMessage(entry, delivery_count, None, None, view, view.problem)] if view.problem else []
    return rows, (indexes[room - 1] if len(indexes) > room else -1)


def _delivery_count(subscription: Subscription, position: Position) -> int | None:
    individual = subscription.individual
    if individual is None:
        return None
    counts = individual.redelivery_counts.column(position.ledger_id, [position.entry_id])
    return 1 if counts is None else 1 + counts[0]


async def _with_holders(subscription: Subscription, page: UnackedPage) -> UnackedPage:
    held = subscription.cursor.state.held
    if held and page.rows:
        messages = [(row.entry.position, -1 if row.message is None else row.message.batch_index) for row in page.rows]
        holders = await in_slices(held.holders_of(messages), subscription.runtime.clock)
        page.rows = [row._replace(held_by=txn) for row, txn in zip(page.rows, holders, strict=True)]
    return page


def _characters(message: MessageOfEntry | None) -> int:
    if message is None:
        return 0
    return len(message.key or b"") + sum(len(name) + len(value) for name, value in message.properties.items())
