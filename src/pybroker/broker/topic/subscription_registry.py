"""Subscriptions of a persistent topic: creation, deletion, and one lock per subscription name.

A subscription exists while its cursor is stored. A task that creates, deletes or moves a subscription, or attaches a
consumer, holds the lock of the name. Waiters get the lock in order of arrival and must then look up all objects again.
An operation that holds the lock completes even if its client disconnects, and the topic waits for it before it closes.

Limits: `maxWaitingSubscriptionRequests` waiters on all topics together, and `subscriptionTurnTimeoutSeconds` per wait.
Beyond a limit, the error is TooManyRequests, which C++ clients report immediately and Java and Go clients retry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pybroker.broker.delivery import consumer_admission
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.publishing.topic_deduplication import require_free_name
from pybroker.compaction.view import COMPACTION_SUBSCRIPTION
from pybroker.errors import NotAllowedError, StoreError, SubscriptionNotFound, TooManyRequests
from pybroker.model.position import EARLIEST, LATEST, Position
from pybroker.runtime import logs
from pybroker.waiting.keyed_lock import KeyedLock
from pybroker.waiting.request_holder import ASKING
from pybroker.waiting.wait_limit import WaitRefused, WaitTimedOut

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.broker.delivery.entry_kinds import EntryKinds
    from pybroker.managed_ledger.managed_cursor import ManagedCursor
    from pybroker.managed_ledger.managed_ledger import ManagedLedger

BEING_MADE = "being created or subscribed to"
BEING_DELETED = "being deleted"
BEING_MOVED = "being moved"
BEING_CHANGED = "being changed"


class SubscriptionRegistry:
    """Subscriptions by name. The caller must hold the subscription's lock for all methods except `lock`, `drop`,
    `ended` and `create_if_missing`.
    """

    def __init__(
        self,
        topic: TopicContext,
        ledger: ManagedLedger,
        subscriptions: dict[str, Subscription],
        kinds: EntryKinds,
    ) -> None:
        self._topic = topic
        self._ledger = ledger
        self.subscriptions = subscriptions
        self._kinds = kinds
        self._locks: KeyedLock[str] = KeyedLock(self._wait_context)
        self.being_made = 0
        """Number of subscriptions that are being created, which count against the subscription limit."""

    # --- locks -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lock(self, name: str, purpose: str) -> AsyncIterator[None]:
        """Hold the lock of the subscription name within this context. The subscription need not exist.

        `purpose` is for the error texts of other requests that wait for the lock. Raises TopicFenced, and
        TooManyRequests if too many requests wait or the wait takes too long.
        """
        self._topic.require_open()
        async with self._locks.held(name, purpose):
            self._topic.require_open()
            yield

    @asynccontextmanager
    async def _wait_context(self, name: str) -> AsyncIterator[None]:
        broker_context = self._topic.broker_context
        limit, config = broker_context.waiting.subscriptions, broker_context.runtime.config
        timeout_s = config.subscription_turn_timeout_seconds
        try:
            async with limit.waiting(ASKING.get(), config.max_waiting_subscription_requests, timeout_s):
                yield
        except WaitRefused as refusal:
            raise TooManyRequests(
                f"another request changes subscription {name}, and this request cannot wait for it: {refusal}"
            ) from None
        except WaitTimedOut:
            purpose, waiting = self._locks.purpose(name) or "in use", self._locks.waiting(name)
            reason = f"{purpose} by another request, and {waiting} more requests wait"
            logs.warning("subscription.lock_timeout", topic=self._topic.name, subscription=name, reason=reason)
            raise TooManyRequests(
                f"the request waited too long for subscription {name}, which is {reason} "
                "(subscriptionTurnTimeoutSeconds): try again"
            ) from None

    async def ended(self) -> None:
        """Wait until all locks are released. The topic must be fenced."""
        assert self._topic.is_fenced
        await self._locks.all_free()

    # --- operations that require the lock -------------------------------------------------------------------------------

    def present(self, name: str) -> Subscription:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription {name} not found for topic {self._topic.name}")
        return subscription

    async def durable(
        self, name: str, is_earliest: bool, may_create: bool, properties: Mapping[str, str]
    ) -> Subscription:
        """Return the durable subscription `name`. If it is missing, create it at the first entry (`is_earliest`) or at
        the end of the topic.

        Raises SubscriptionNotFound if it is missing and `may_create` is False, NotAllowedError if a reader uses this
        name.
        """
        present = self.subscriptions.get(name)
        if present is None:
            if not may_create:
                raise SubscriptionNotFound(
                    f"Subscription {name} does not exist on {self._topic.name}, and automatic subscription creation "
                    "is disabled: create it first"
                )
            return await self.create(name, EARLIEST if is_earliest else LATEST, properties)
        if not present.is_durable:
            raise NotAllowedError(f"NonDurable subscription with the same name already exists: {name}")
        return present

    async def create(self, name: str, first: Position, properties: Mapping[str, str]) -> Subscription:
        """Create a durable subscription that starts at `first`, or at the next existing entry. The name must be new."""
        require_free_name(name)
        assert name not in self.subscriptions, f"there is a subscription {name}"
        self._require_room()
        self.being_made += 1
        try:
            return await self._topic.broker_context.tasks.run_to_end(
                self._create(name, first, properties), f"create subscription {name}"
            )
        finally:
            self.being_made -= 1

    async def create_if_missing(self, name: str, first: Position, properties: Mapping[str, str]) -> Subscription | None:
        """Create a durable subscription that starts at `first`, or at the next existing entry. This method takes the
        subscription's lock. Return None if the name exists.
        """
        async with self.lock(name, BEING_MADE):
            return None if name in self.subscriptions else await self.create(name, first, properties)

    def restore(self, cursor: ManagedCursor) -> None:
        self.subscriptions[cursor.name] = self._made(cursor.name, cursor)

    async def _create(self, name: str, first: Position, properties: Mapping[str, str]) -> Subscription:
        topic = self._topic
        ledgers = self._ledger.ledgers
        is_behind_all = first > ledgers.last_position
        start = ledgers.last_position if is_behind_all else self._ledger.position_before(first)
        cursor = await topic.broker_context.ledgers.create_cursor(self._ledger, name, start, properties)
        # Also if the topic was fenced meanwhile: it waits for this lock, and then closes the subscription with the
        # others.
        subscription = self.subscriptions[name] = self._made(name, cursor)
        subscription.is_closed = topic.is_fenced
        logs.info("subscription.created", topic=topic.name, subscription=name, position=cursor.mark_delete_position)
        return subscription

    def _require_room(self) -> None:
        consumer_admission.require_room_for_subscription(self._topic, len(self.subscriptions) + self.being_made)

    def _made(self, name: str, cursor: ManagedCursor) -> Subscription:
        return Subscription(self._topic, name, cursor, self._kinds, self.drop)

    def non_durable(self, name: str, mark_delete: Position) -> Subscription:
        """Create a reader's subscription, which starts at the entry after `mark_delete`."""
        topic = self._topic
        topic.require_open()
        present = self.subscriptions.get(name)
        if present is not None:
            if present.is_durable:
                raise NotAllowedError(f"Durable subscription with the same name already exists: {name}")
            return present
        require_free_name(name)
        self._require_room()
        cursor = topic.broker_context.ledgers.create_non_durable_cursor(self._ledger, name, mark_delete)
        subscription = self.subscriptions[name] = self._made(name, cursor)
        return subscription

    async def delete(self, subscription: Subscription) -> None:
        """Delete the subscription with its cursor, and close its consumers. After a StoreError, the subscription still
        exists.
        """
        if not subscription.is_durable:
            subscription.is_closed = True
            subscription.close_consumers()
            self._forget(subscription)
        elif self.subscriptions.get(subscription.name) is subscription:
            await self._topic.broker_context.tasks.run_to_end(
                self._delete(subscription), f"delete subscription {subscription.name}"
            )

    async def _delete(self, subscription: Subscription) -> None:
        topic, name, cursor = self._topic, subscription.name, subscription.cursor
        subscription.is_closed = True
        subscription.close_consumers()
        self._forget(subscription)
        if name == COMPACTION_SUBSCRIPTION:
            # A running compaction must end, because the ledgers that it reads may be trimmed soon.
            self._ledger.compacted_drops += 1
        try:
            await topic.broker_context.ledgers.delete_cursor(self._ledger, cursor)
        except StoreError:
            if self._ledger.cursors.get(name) is cursor:
                self.subscriptions[name] = self._made(name, cursor)
            raise
        if name == COMPACTION_SUBSCRIPTION:
            await self._ledger.drop_compacted()
        logs.info("subscription.deleted", topic=topic.name, subscription=name)

    def drop(self, subscription: Subscription) -> None:
        """Remove a non-durable subscription that has no readers. Requires no lock."""
        if not subscription.is_closed:
            subscription.is_closed = True
            self._forget(subscription)

    def _forget(self, subscription: Subscription) -> None:
        topic = self._topic
        subscription.delayed.drop()
        subscription.release_memory()
        if not subscription.is_durable:
            topic.broker_context.ledgers.drop_non_durable_cursor(self._ledger, subscription.cursor)
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            topic.in_use()
            topic.counters.messages_out_of_removed += subscription.counters.messages_out
            topic.counters.bytes_out_of_removed += subscription.counters.bytes_out
