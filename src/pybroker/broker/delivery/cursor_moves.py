"""Cursor moves that an administrator, a policy or a SEEK command requests: skip and reset.

All functions raise StoreError, and SubscriptionNotFound if the subscription is deleted or its topic is closed during
the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pybroker.errors import StoreError, SubscriptionNotFound
from pybroker.model.position import Position
from pybroker.model.skipped_ranges import SkippedRanges, as_of, remembered
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription

BY_CALL = "a client or administrator requested it"
"""Reason that `explain` shows for entries that were skipped on request, not by a policy."""
READER_RETURN_S = 60.0
"""Time that a non-durable subscription waits for its reader to reconnect after a cursor move."""


async def skip(subscription: Subscription, entry_count: int, why: str = BY_CALL) -> int:
    """Acknowledge the next `entry_count` unacknowledged entries. Return the number of skipped entries. `explain` shows
    `why` for a skipped message.
    """
    before = subscription.cursor.mark_delete_position
    with _while_there(subscription):
        skipped = await subscription.cursor.skip(entry_count)
    _note(subscription, before, skipped, why, is_expiry=False)
    subscription.moved_up()
    return skipped


async def skip_all(subscription: Subscription) -> None:
    before, entries = subscription.cursor.mark_delete_position, subscription.cursor.backlog_entries
    with _while_there(subscription):
        await subscription.cursor.skip_all()
    _note(subscription, before, entries, BY_CALL, is_expiry=False)
    subscription.moved_up()


async def expire(subscription: Subscription, publish_time_ms: int, why: str = BY_CALL) -> int:
    before = subscription.cursor.mark_delete_position
    with _while_there(subscription):
        expired = await subscription.cursor.expire(publish_time_ms)
    _note(subscription, before, expired, why, is_expiry=True)
    return _expired(subscription, expired)


async def expire_to(subscription: Subscription, position: Position, why: str = BY_CALL) -> int:
    before = subscription.cursor.mark_delete_position
    with _while_there(subscription):
        expired = await subscription.cursor.expire_to(position)
    _note(subscription, before, expired, why, is_expiry=True)
    return _expired(subscription, expired)


def _note(subscription: Subscription, before: Position, entries: int, why: str, *, is_expiry: bool) -> None:
    mark = subscription.cursor.mark_delete_position
    if mark <= before:
        return
    between = subscription.cursor.ledger.ledgers.entries_between(before, mark)
    now_ms = subscription.runtime.clock.wall_ms()
    move = SkippedRanges(before, mark, entries, now_ms, why, is_expiry, is_certain=entries >= between)
    subscription.cursor.skipped_ranges = remembered(subscription.cursor.skipped_ranges, move)


@contextmanager
def _while_there(subscription: Subscription) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        if subscription.is_closed:
            raise SubscriptionNotFound(
                f"Subscription {subscription.name} was deleted or closed during the request"
            ) from error
        raise


def _expired(subscription: Subscription, entry_count: int) -> int:
    counters = subscription.counters
    counters.last_expired_ms = subscription.runtime.clock.wall_ms()
    counters.expired_last_run_entries = entry_count
    if entry_count:
        counters.expired_entries += entry_count
        subscription.moved_up()
    return entry_count


async def reset(subscription: Subscription, position: Position, unacked_words: Sequence[int] = ()) -> None:
    """Disconnect all consumers, then move the cursor to `position`, or to the first existing entry after it.

    The caller holds the subscription's lock. `unacked_words`: bitmap of the messages in the batch at `position` that
    stay unacknowledged; empty for all of them.
    """
    with _fenced(subscription):
        await _move(subscription, position, unacked_words)


async def reset_to_time(subscription: Subscription, publish_time_ms: int) -> None:
    """Disconnect all consumers, then move the cursor to the first entry that was published at or after
    `publish_time_ms` (since 1970). The caller holds the subscription's lock.
    """
    with _fenced(subscription):
        await _move(subscription, await subscription.cursor.ledger.find_by_publish_time(publish_time_ms), ())


async def _move(subscription: Subscription, position: Position, unacked_words: Sequence[int]) -> None:
    if not subscription.runtime.config.acknowledgment_at_batch_index_level_enabled:
        unacked_words = ()
    subscription.close_consumers()
    if subscription.dispatcher is not None:
        subscription.dispatcher.reset()
    before = subscription.cursor.mark_delete_position
    try:
        await subscription.cursor.reset(position, unacked_words)
        mark = subscription.cursor.mark_delete_position
        subscription.cursor.skipped_ranges = as_of(subscription.cursor.skipped_ranges, mark)
        _note(subscription, before, 0, "the cursor was reset", is_expiry=False)
    finally:
        if not subscription.is_durable:
            # If the reader does not reconnect, its non-durable subscription is removed.
            subscription.runtime.call_later(READER_RETURN_S, subscription.drop_if_unused)
    logs.info("cursor.reset", topic=subscription.topic.name, subscription=subscription.name, position=position)


@contextmanager
def _fenced(subscription: Subscription) -> Iterator[None]:
    assert not subscription.is_resetting, "two cursor moves at the same time"
    subscription.is_resetting = True
    try:
        yield
    finally:
        subscription.is_resetting = False
