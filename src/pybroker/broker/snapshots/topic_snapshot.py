"""Snapshots of topics and their producers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from pybroker.broker.topic.backlog_rules import UNKNOWN_AGE_S

if TYPE_CHECKING:
    from pybroker.broker.publishing.producer import Producer
    from pybroker.broker.publishing.producer_access import AccessMode
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.broker.topic.topic_compaction import CompactionCounters
    from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
    from pybroker.managed_ledger.managed_ledger import ManagedLedger
    from pybroker.model.counters import ProducerCounters, TopicCounters
    from pybroker.model.effective_policies import EffectivePolicies


class TopicSnapshot(NamedTuple):
    """State of a loaded topic at one moment.

    A non-persistent topic has no ledger; its figures of stored entries are 0. `counters`, `ledger` and `transactions`
    are live objects, so a caller that yields to the event loop must take a new snapshot.
    """

    counters: TopicCounters
    policies: EffectivePolicies
    subscription_count: int
    producer_count: int
    waiting_producers: int
    epoch: int | None
    """Topic epoch; None if no producer ever had exclusive access."""
    created_ms: int
    """Creation time in milliseconds since 1970; for a non-persistent topic, the time of its load."""
    ledger: ManagedLedger | None = None
    properties: Mapping[str, str] = {}
    stored_bytes: int = 0
    pending_entries: int = 0
    """Entries that the store has not confirmed yet."""
    backlog_age_s: int = UNKNOWN_AGE_S
    """Age in seconds of the oldest unacknowledged message at the last quota check."""
    backlog_age_subscription: str = ""
    """Subscription whose backlog contains this message; empty if the age is unknown."""
    deduplication_status: str | None = None
    compaction: CompactionCounters | None = None
    transactions: TransactionBuffer | None = None
    """Transaction buffer; None if the topic never had a transaction."""


class ProducerSnapshot(NamedTuple):
    """State of an attached producer at one moment. `counters` is a live object."""

    name: str
    producer_id: int
    access_mode: AccessMode
    address: str
    client_version: str
    supports_partial_producer: bool
    properties: Mapping[str, str]
    connected_since_ms: int
    counters: ProducerCounters
    waits_for_memory_since_ms: float | None
    """Start of the wait for memory, by the monotonic clock; None without a wait."""


def topic_snapshot(topic: TopicBase) -> TopicSnapshot:
    registry = topic.producer_registry
    common = (
        topic.counters,
        topic.policies,
        len(topic.subscriptions),
        len(topic.producers),
        registry.waiting_count,
        registry.epoch,
    )
    if not topic.name.is_persistent:
        return TopicSnapshot(*common, topic.loaded_ms)
    topic = cast("Topic", topic)
    ledger = topic.ledger
    return TopicSnapshot(
        *common,
        ledger.created_ms,
        ledger,
        ledger.properties,
        ledger.size_bytes,
        ledger.pending_entries,
        topic.backlog_age_s,
        topic.backlog_age_subscription,
        topic.deduplication.status,
        topic.compaction.counters,
        topic.transactions.buffer,
    )


def producer_snapshot(producer: Producer) -> ProducerSnapshot:
    peer = producer.peer
    return ProducerSnapshot(
        producer.name,
        producer.producer_id,
        producer.access_mode,
        peer.address,
        peer.client_version,
        peer.supports_partial_producer,
        producer.properties,
        producer.connected_since_ms,
        producer.counters,
        peer.memory_waits.publishes_since_ms,
    )
