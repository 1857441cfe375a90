"""The unacknowledged messages of a page: the chosen entries, read, and batches taken apart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from pybroker.broker.inspection.entry_reads import ReadEntry, read_entries
from pybroker.broker.inspection.pages import Place
from pybroker.broker.inspection.unacked import UnackedEntry, Wanted, candidates, unacked_indexes
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.slices import SLICE_MS, in_slices
from pybroker.wire.entry_view import EntryView, MessageOfEntry, entry_view, is_slow_to_open

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.model.position import Position
    from pybroker.model.transactions import TxnId

MAX_ENTRIES_READ = 2000
"""By one request that looks for a key where nobody knows the hashes: the page ends there, with what it has."""
QUICK_BYTES = 64 * 1024
"""A larger entry is opened in a thread."""
PAGE_CHARACTERS = 1024 * 1024
"""Of keys and properties on a page: then it ends, though there may be more rows."""


class UnackedMessage(NamedTuple):
    """One row. `message` and `view` are None when the entry cannot be read: `problem` says why."""

    entry: UnackedEntry
    delivery_count: int | None
    held_by: TxnId | None
    message: MessageOfEntry | None
    view: EntryView | None
    problem: str


@dataclass(slots=True)
class UnackedPage:
    """Rows, where the next page begins (None: nowhere), and how many messages there are that the filters take, but for the key,
    which only entries tell."""

    rows: list[UnackedMessage] = field(default_factory=list)
    after: Place | None = None
    total: int = 0


async def unacked_page(
    subscription: Subscription, wanted: Wanted, key: bytes | None, after: Place, limit: int
) -> UnackedPage:
    """The next `limit` messages behind `after`; of `key` alone, if there is one. Raises StoreError."""
    clock = subscription.surroundings.clock
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
                return page
            is_full = len(page.rows) >= limit or left_characters <= 0 or left_entries <= 0
            if is_full and (has_more or read.position != chosen[-1].position):
                page.after = Place(read.position)
                return page
            if clock.monotonic_ms() >= turn_ends_ms:
                await asyncio.sleep(0)
                turn_ends_ms = clock.monotonic_ms() + SLICE_MS
        if not has_more:
            return page
        after = Place(chosen[-1].position)


async def _rows(
    subscription: Subscription, entry: UnackedEntry, read: ReadEntry, key: bytes | None, after: Place, room: int
) -> tuple[list[UnackedMessage], int]:
    """What the entry gives, of at most `room` of its messages, and the last of these where it has more; else -1."""
    delivery_count = _delivery_count(subscription, entry.position)
    if read.payload is None:
        held_by = subscription.cursor.state.held.holder_of(entry.position)
        unread = UnackedMessage(entry, delivery_count, held_by, None, None, read.problem)
        return ([unread] if key is None else []), -1
    config = subscription.surroundings.config
    # What the batch says of itself goes no further than what the broker takes.
    batch_size = min(max(1, read.message_count), max(1, config.max_messages_in_batch))
    indexes = list(islice(unacked_indexes(subscription, entry.position, batch_size, after), room + 1))
    opened = partial(entry_view, read.payload, indexes[:room], config.max_message_size)
    if is_slow_to_open(read.payload, QUICK_BYTES):
        view = await asyncio.to_thread(opened)
    else:
        view = opened()
    rows = [
        UnackedMessage(entry, delivery_count, _holder(subscription, entry, message), message, view, view.problem)
        for message in view.messages
        if key is None or message.key == key
    ]
    if not view.messages and key is None and not indexes[room:]:
        rows = [UnackedMessage(entry, delivery_count, None, None, view, view.problem)] if view.problem else []
    return rows, (indexes[room - 1] if len(indexes) > room else -1)


def _delivery_count(subscription: Subscription, position: Position) -> int | None:
    """How often it was sent; None where nobody counts."""
    dispatcher = subscription.dispatcher
    if not isinstance(dispatcher, MultiConsumerDispatcher):
        return None
    counts = dispatcher.redelivery_counts.column(position.ledger_id, [position.entry_id])
    return 1 if counts is None else 1 + counts[0]


def _holder(subscription: Subscription, entry: UnackedEntry, message: MessageOfEntry) -> TxnId | None:
    held = subscription.cursor.state.held
    if not held:
        return None
    return held.holder_of(entry.position, -1 if message.batch_index < 0 else 1 << message.batch_index)


def _characters(message: MessageOfEntry | None) -> int:
    if message is None:
        return 0
    return len(message.key or b"") + sum(len(name) + len(value) for name, value in message.properties.items())
