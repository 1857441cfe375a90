"""Snapshots of subscriptions and their consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from pybroker.broker.topic.backlog_rules import estimated_bytes_behind

if TYPE_CHECKING:
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.non_persistent_subscription import NonPersistentSubscription
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.delivery.subscription_transactions import SubscriptionTransactions
    from pybroker.dispatch.key_shared.hash_owners import HashOwners
    from pybroker.dispatch.views import ChunkOrderView, KeyOrderView
    from pybroker.managed_ledger.managed_cursor import ManagedCursor
    from pybroker.managed_ledger.pending_transaction_acks import PendingTransactionAcks
    from pybroker.model.counters import DeliveryCounters


class SubscriptionSnapshot(NamedTuple):
    """State of a subscription at one moment.

    A subscription of a non-persistent topic has no cursor; its figures of stored entries are 0. `counters`, `cursor`
    and the views are live objects, so a caller that yields to the event loop must take a new snapshot.
    """

    type_name: str
    """Subscription type in Pulsar's spelling; the text `None` before the first consumer."""
    is_durable: bool
    is_replicated: bool
    properties: Mapping[str, str]
    counters: DeliveryCounters
    consumer_count: int
    active_consumer: str | None
    """The name of the consumer that receives all entries, for types with one active consumer."""
    owners: HashOwners | None
    """Owners of key hashes; None for subscription types that do not use keys."""
    cursor: ManagedCursor | None = None
    backlog_entries: int = 0
    """Stored entries that are not acknowledged."""
    delayed_entries: int = 0
    delayed_index_bytes: int = 0
    replay_entries: int = 0
    """Entries that were read and wait to be sent or redelivered."""
    redelivery_entries: int = 0
    """Number of `replay_entries` that were delivered before."""
    unacked_messages: int = 0
    is_blocked: bool = False
    """Whether a limit of unacknowledged messages, of the subscription or the broker, stops dispatch."""
    look_ahead_bytes: int = 0
    oldest_unacked_age_s: int = 0
    """Age of the oldest unacknowledged message in seconds; -1 if unknown."""
    draining_hashes_cleared_total: int = 0
    key_order: KeyOrderView | None = None
    chunk_order: ChunkOrderView | None = None
    transactions: SubscriptionTransactions | None = None

    @property
    def is_paused_by_size(self) -> bool:
        """Whether delivery is paused because the cursor's acknowledgement state is too large to be stored."""
        return self.cursor is not None and self.cursor.size_limit.excess is not None

    @property
    def deleted_range_count(self) -> int:
        return 0 if self.cursor is None else self.cursor.state.deleted_range_count

    @property
    def deleted_ranges_bytes(self) -> int:
        return 0 if self.cursor is None else self.cursor.state.deleted_ranges_bytes

    @property
    def parked_hash_count(self) -> int:
        return 0 if self.key_order is None else len(self.key_order.parked)

    @property
    def draining_hash_count(self) -> int:
        return 0 if self.key_order is None else len(self.key_order.draining)

    @property
    def pending_transaction_acks(self) -> PendingTransactionAcks | None:
        return None if self.cursor is None else self.cursor.state.held or None

    def entries_since_first_unacked(self) -> int:
        """Return the number of stored entries between the mark-delete position and the read position; 0 for a
        non-persistent topic.
        """
        cursor = self.cursor
        if cursor is None:
            return 0
        return cursor.ledger.ledgers.entries_between(cursor.mark_delete_position, cursor.read_position)

    def estimated_backlog_bytes(self) -> int:
        """Return the approximate size of the backlog in bytes, without reading entries."""
        cursor = self.cursor
        return 0 if cursor is None else estimated_bytes_behind(cursor.ledger.ledgers, cursor.mark_delete_position)


class ConsumerSnapshot(NamedTuple):
    """State of an attached consumer at one moment. `counters` is a live object."""

    name: str
    consumer_id: int
    address: str
    client_version: str
    role: str | None
    properties: Mapping[str, str]
    connected_since_ms: int
    counters: DeliveryCounters
    permits: int
    unacked_messages: int
    max_unacked_messages: int
    """0 for no limit."""
    is_blocked: bool
    is_writable: bool
    messages_per_entry: float
    draining_hashes_cleared_total: int


def subscription_snapshot(subscription: SubscriptionBase) -> SubscriptionSnapshot:
    if subscription.topic.name.is_persistent:
        return _persistent(cast("Subscription", subscription))
    return _non_persistent(cast("NonPersistentSubscription", subscription))


def _persistent(subscription: Subscription) -> SubscriptionSnapshot:
    cursor, delayed, dispatcher = subscription.cursor, subscription.delayed, subscription.dispatcher
    of_cursor = (cursor, cursor.backlog_entries, delayed.entry_count, delayed.index_size_bytes)
    if dispatcher is None:
        return SubscriptionSnapshot(
            "None",
            cursor.is_durable,
            subscription.is_replicated,
            subscription.properties,
            subscription.counters,
            0,
            None,
            None,
            *of_cursor,
            is_blocked=subscription.is_blocked,
            oldest_unacked_age_s=cursor.oldest.known_age_s(),
            draining_hashes_cleared_total=subscription.draining_hashes_cleared_total,
            transactions=subscription.transactions,
        )
    active, key_order = dispatcher.active_consumer, dispatcher.key_order
    return SubscriptionSnapshot(
        dispatcher.kind,
        cursor.is_durable,
        subscription.is_replicated,
        subscription.properties,
        subscription.counters,
        len(subscription.consumers),
        None if active is None else active.name,
        None if key_order is None else key_order.owners,
        *of_cursor,
        dispatcher.replay_entry_count,
        dispatcher.redelivery_entry_count,
        dispatcher.unacked_messages,
        subscription.is_blocked,
        dispatcher.look_ahead_size_bytes,
        cursor.oldest.known_age_s(),
        subscription.draining_hashes_cleared_total,
        key_order,
        dispatcher.chunk_order,
        subscription.transactions,
    )


def _non_persistent(subscription: NonPersistentSubscription) -> SubscriptionSnapshot:
    dispatcher = subscription.dispatcher
    active = None if dispatcher is None else dispatcher.active_consumer
    return SubscriptionSnapshot(
        subscription.type_name,
        False,
        False,
        subscription.properties,
        subscription.counters,
        len(subscription.consumers),
        None if active is None else active.name,
        None if dispatcher is None else dispatcher.owners,
    )


def consumer_snapshot(consumer: Consumer) -> ConsumerSnapshot:
    state, peer = consumer.state, consumer.peer
    return ConsumerSnapshot(
        consumer.name,
        consumer.consumer_id,
        peer.address,
        peer.client_version,
        peer.role,
        consumer.properties,
        consumer.connected_since_ms,
        consumer.counters,
        state.permits,
        state.unacked_messages,
        state.max_unacked_messages,
        state.blocked,
        state.writable,
        state.messages_per_entry,
        state.draining_hashes_cleared_total,
    )
