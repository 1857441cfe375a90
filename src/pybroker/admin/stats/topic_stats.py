"""JSON of a topic's `stats`, in Pulsar's format, built from snapshots (`broker/snapshots`) in short steps."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from pybroker.admin.stats import transaction_stats
from pybroker.admin.time_text import iso_text
from pybroker.broker.snapshots.subscription_snapshot import (
    ConsumerSnapshot,
    SubscriptionSnapshot,
    consumer_snapshot,
    subscription_snapshot,
)
from pybroker.broker.snapshots.topic_snapshot import ProducerSnapshot, TopicSnapshot, producer_snapshot, topic_snapshot
from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.look_ahead import ChunkLookAhead, LookAhead, WaitingOfHash
from pybroker.dispatch.selectors.hash_selector import HashRange
from pybroker.model.system_topics import is_system_topic

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.dispatch.draining_hashes import DrainingHash
    from pybroker.dispatch.key_shared.hash_owners import HashOwners
    from pybroker.dispatch.views import KeyOrderView
    from pybroker.model.counters import DeliveryCounters
    from pybroker.model.rates import DeliveryRates, ProducerRates, TopicRates

Document = dict[str, Any]
Steps = Generator[None, None, Document]
"""Generator that returns a document. The caller yields to the event loop at each pause."""

OBJECTS_PER_SLICE = 50
HASHES_PER_SLICE = 1000
MAX_WAITING_HASHES = 10
"""Maximum number of listed hashes; hashes with the most waiting entries come first."""
THROTTLED_EVENTS = {
    f"dispatchThrottled{unit}EventsBy{limit}Limit": (unit, limit)
    for limit in ("Subscription", "Topic", "Broker")
    for unit in ("Msg", "Bytes")
}
"""Members that count delays by a dispatch rate, and the keys of their counters."""
NOT_STORED = (
    "bytesOutInternalCounter",
    "offloadedStorageSize",
    "lastOffloadLedgerId",
    "lastOffloadSuccessTimeStamp",
    "lastOffloadFailureTimeStamp",
)
"""Always 0: no ledger is offloaded."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of a subscription that require reads from the store; -1 if not requested. The publish time is 0 without a
    backlog.
    """

    backlog_bytes: int
    earliest_publish_ms: int


@dataclass(frozen=True, slots=True)
class StatsRequest:
    """Requested members, and the measured figures for them."""

    measured: Mapping[SubscriptionBase, Measured]
    """Measured figures of each subscription in the document."""
    backlog_bytes: int
    """Backlog of the slowest subscription."""
    broker_id: str
    with_publishers: bool
    with_consumers: bool


def topic_stats(topic: TopicBase, rates: RateSampler, request: StatsRequest) -> Steps:
    subscriptions: dict[str, Document] = {}
    for name, subscription in list(topic.subscriptions.items()):
        measured = request.measured.get(subscription)
        if measured is not None:  # otherwise created meanwhile
            subscriptions[name] = yield from _subscription(subscription, rates, measured, request.with_consumers)
    publishers: list[Document] = []
    for _, producer in sorted(topic.producers.items()) if request.with_publishers else ():
        sent = rates.producer(producer)
        publisher = _publisher(producer_snapshot(producer), sent, topic.runtime.clock.monotonic_ms())
        if not topic.name.is_persistent:
            publisher["msgDropRate"] = sent.dropped_messages.per_second
        publishers.append(publisher)
        if not len(publishers) % OBJECTS_PER_SLICE:
            yield
    shown, incoming, snapshot = subscriptions.values(), rates.topic(topic), topic_snapshot(topic)
    counters = snapshot.counters
    document = {
        **dict.fromkeys(NOT_STORED, 0),
        **_traffic(snapshot, incoming, shown),
        "systemTopicBytesInCounter": counters.bytes_in if is_system_topic(topic.name) else 0,
        "averageMsgSize": incoming.average_message_bytes,
        "msgChunkPublished": counters.chunks_in > 0,
        "storageSize": snapshot.stored_bytes,
        "backlogSize": request.backlog_bytes,
        **_backlog_quotas(snapshot),
        "publishRateLimitedTimes": counters.publish_rate_limited,
        "earliestMsgPublishTimeInBacklogs": _earliest(request.measured.values()),
        **transaction_stats.of_topic(snapshot, topic.runtime.clock.wall_ms()),
        "publishers": publishers,
        "waitingPublishers": snapshot.waiting_producers,
        "subscriptions": subscriptions,
        "replication": {},
        **{
            key: sum(each[key] for each in shown)
            for key in (
                "nonContiguousDeletedMessagesRanges",
                "nonContiguousDeletedMessagesRangesSerializedSize",
                "delayedMessageIndexSizeInBytes",
            )
        },
        "compaction": _compaction(snapshot),
        "ownerBroker": request.broker_id,
        "topicCreationTimeStamp": snapshot.created_ms,
        "lastPublishTimeStamp": counters.last_publish_ms,
    }
    if snapshot.deduplication_status is not None:
        document["deduplicationStatus"] = snapshot.deduplication_status
    if snapshot.epoch is not None:
        document["topicEpoch"] = snapshot.epoch
    if snapshot.ledger is None:
        document["msgDropRate"] = sum(
            rates.producer(each).dropped_messages.per_second for each in topic.producers.values()
        )
    return document


def _traffic(snapshot: TopicSnapshot, incoming: TopicRates, subscriptions: Collection[Document]) -> Document:
    counters = snapshot.counters
    return {
        "msgRateIn": incoming.messages_in.per_second,
        "msgThroughputIn": incoming.bytes_in.per_second,
        "msgRateOut": sum(each["msgRateOut"] for each in subscriptions),
        "msgThroughputOut": sum(each["msgThroughputOut"] for each in subscriptions),
        "bytesInCounter": counters.bytes_in,
        "msgInCounter": counters.messages_in,
        "bytesOutCounter": counters.bytes_out_of_removed + sum(each["bytesOutCounter"] for each in subscriptions),
        "msgOutCounter": counters.messages_out_of_removed + sum(each["msgOutCounter"] for each in subscriptions),
    }


def _backlog_quotas(snapshot: TopicSnapshot) -> Document:
    if snapshot.ledger is None:
        return {"backlogQuotaLimitSize": 0, "backlogQuotaLimitTime": 0, "oldestBacklogMessageAgeSeconds": 0}
    document: Document = {
        "backlogQuotaLimitSize": snapshot.policies.size_quota.limitSize,
        "backlogQuotaLimitTime": snapshot.policies.age_quota.limitTime,
        "oldestBacklogMessageAgeSeconds": snapshot.backlog_age_s,
    }
    if snapshot.backlog_age_subscription:
        document["oldestBacklogMessageSubscriptionName"] = snapshot.backlog_age_subscription
    return document


def _compaction(snapshot: TopicSnapshot) -> Document:
    counters = snapshot.compaction
    return {
        "lastCompactionRemovedEventCount": 0 if counters is None else counters.last_removed_messages,
        "lastCompactionSucceedTimestamp": 0 if counters is None else counters.last_succeeded_ms,
        "lastCompactionFailedTimestamp": 0 if counters is None else counters.last_failed_ms,
        "lastCompactionDurationTimeInMills": 0 if counters is None else counters.last_duration_ms,
    }


def _earliest(measured: Collection[Measured]) -> int:
    return min((each.earliest_publish_ms for each in measured if each.earliest_publish_ms > 0), default=0)


def _publisher(producer: ProducerSnapshot, sent: ProducerRates, now_ms: float) -> Document:
    return {
        "accessMode": producer.access_mode.value,
        "msgRateIn": sent.messages_in.per_second,
        "msgThroughputIn": sent.bytes_in.per_second,
        "averageMsgSize": sent.average_message_bytes,
        "chunkedMessageRate": sent.chunks_in.per_second,
        "producerId": producer.producer_id,
        "supportsPartialProducer": producer.supports_partial_producer,
        "producerName": producer.name,
        "address": producer.address,
        "connectedSince": iso_text(producer.connected_since_ms),
        "clientVersion": producer.client_version,
        "metadata": producer.properties,
        **_waits_for_memory(producer.waits_for_memory_since_ms, now_ms),
    }


def _waits_for_memory(since_ms: float | None, now_ms: float) -> Document:
    return {} if since_ms is None else {"waitsForMemory": {"forMillis": round(now_ms - since_ms)}}


def _subscription(
    subscription: SubscriptionBase, rates: RateSampler, measured: Measured, with_consumers: bool
) -> Steps:
    consumers: list[Document] = []
    if with_consumers:
        first = subscription_snapshot(subscription)
        keys = None if first.owners is None else _KeyView(first.owners, first.key_order)
        for index, consumer in enumerate(list(subscription.consumers)):
            document = _consumer(consumer_snapshot(consumer), rates.consumer(consumer))
            consumers.append(document)
            if keys is not None:
                yield from keys.add_to(document, consumer.state)
            if index % OBJECTS_PER_SLICE == OBJECTS_PER_SLICE - 1:
                yield
    snapshot, delivered = subscription_snapshot(subscription), rates.subscription(subscription)
    counters = snapshot.counters
    document = {
        **_delivery(counters, delivered),
        "msgBacklog": snapshot.backlog_entries,
        "backlogSize": measured.backlog_bytes,
        "earliestMsgPublishTimeInBacklog": measured.earliest_publish_ms,
        "msgBacklogNoDelayed": snapshot.backlog_entries - snapshot.delayed_entries,
        "blockedSubscriptionOnUnackedMsgs": snapshot.is_blocked,
        "msgDelayed": snapshot.delayed_entries,
        "msgInReplay": snapshot.replay_entries,
        "unackedMessages": snapshot.unacked_messages,
        "type": snapshot.type_name,
        "msgRateExpired": delivered.expired_entries.per_second,
        "msgExpired": counters.expired_last_run_entries,
        "totalMsgExpired": counters.expired_entries,
        "lastExpireTimestamp": counters.last_expired_ms,
        "lastConsumedFlowTimestamp": counters.last_consumed_flow_ms,
        "lastConsumedTimestamp": counters.last_consumed_ms,
        "lastAckedTimestamp": counters.last_acked_ms,
        "lastMarkDeleteAdvancedTimestamp": counters.last_mark_delete_advanced_ms,
        "consumers": consumers,
        "isDurable": snapshot.is_durable,
        "durable": snapshot.is_durable,
        "isReplicated": snapshot.is_replicated,
        "replicated": snapshot.is_replicated,
        **_hashes(snapshot),
        **_beyond_pulsar(subscription, snapshot),
        "nonContiguousDeletedMessagesRanges": snapshot.deleted_range_count,
        "nonContiguousDeletedMessagesRangesSerializedSize": snapshot.deleted_ranges_bytes,
        "delayedMessageIndexSizeInBytes": snapshot.delayed_index_bytes,
        **transaction_stats.of_subscription(snapshot, subscription.runtime.clock.wall_ms()),
        "subscriptionProperties": snapshot.properties,
        "filterProcessedMsgCount": counters.filter_processed,
        "filterAcceptedMsgCount": counters.filter_accepted,
        "filterRejectedMsgCount": counters.filter_rejected,
        "filterRescheduledMsgCount": counters.filter_rescheduled,
        **{name: counters.throttled_events[event] for name, event in THROTTLED_EVENTS.items()},
    }
    if snapshot.active_consumer is not None:
        document["activeConsumerName"] = snapshot.active_consumer
    if snapshot.cursor is None:
        document["msgDropRate"] = delivered.dropped_messages.per_second
    return document


def _beyond_pulsar(subscription: SubscriptionBase, snapshot: SubscriptionSnapshot) -> Document:
    document: Document = {}
    if snapshot.cursor is None:
        return document
    stall = subscription.stall
    if stall is not None and stall.blocked_reason is BlockedReason.MEMORY:
        document |= _waits_for_memory(stall.since_ms, subscription.runtime.clock.monotonic_ms())
    chunk_order, key_order = snapshot.chunk_order, snapshot.key_order
    if chunk_order is not None and chunk_order.holds_chunks_back:
        document["lookAhead"] = _chunk_look_ahead(chunk_order.look_ahead())
    if key_order is not None and (key_order.waiting or key_order.parked):
        document["lookAhead"] = _look_ahead(key_order.look_ahead(MAX_WAITING_HASHES))
    if snapshot.oldest_unacked_age_s >= 0:
        document["oldestUnackedMessageAgeSeconds"] = snapshot.oldest_unacked_age_s
    if (
        snapshot.redelivery_entries
    ):  # Return a member beyond Pulsar's, present only during the wait. Both times are from the monotonic clock.
        document["entriesToRedeliver"] = snapshot.redelivery_entries
    return document


def _delivery(counters: DeliveryCounters, rates: DeliveryRates) -> Document:
    return {
        "msgRateOut": rates.messages_out.per_second,
        "msgThroughputOut": rates.bytes_out.per_second,
        "bytesOutCounter": counters.bytes_out,
        "msgOutCounter": counters.messages_out,
        "msgRateRedeliver": rates.redelivered_messages.per_second,
        "messageAckRate": rates.acked_messages.per_second,
        "chunkedMessageRate": rates.chunks_out.per_second,
    }


def _hashes(snapshot: SubscriptionSnapshot) -> Document:
    owners, key_order = snapshot.owners, snapshot.key_order
    joined = [] if key_order is None else key_order.recently_joined()
    document: Document = {
        "allowOutOfOrderDelivery": owners is not None and owners.allows_out_of_order_delivery,
        "consumersAfterMarkDeletePosition": {state.name: str(position) for state, position in joined},
        "drainingHashesCount": 0 if key_order is None else len(key_order.draining),
        "drainingHashesClearedTotal": snapshot.draining_hashes_cleared_total,
        "drainingHashesUnackedMessages": 0 if key_order is None else key_order.draining.unacked_messages(),
    }
    if owners is not None:
        document["keySharedMode"] = owners.mode
    return document


def _look_ahead(look_ahead: LookAhead) -> Document:
    return {
        "entries": look_ahead.entries,
        "hashesSetAside": look_ahead.parked_hashes,
        "sizeBytes": look_ahead.size_bytes,
        "maxSizeBytes": look_ahead.max_size_bytes,
        "isFull": look_ahead.is_full,
        "hashes": [
            {
                "hash": each.sticky_hash,
                "consumer": None if each.consumer is None else each.consumer.name,
                "reason": _reason(each),
                "entries": each.entries,
                "since": iso_text(int(each.since_ms)),
                "setAsideFrom": None if each.parked_from is None else str(each.parked_from),
            }
            for each in look_ahead.most
        ],
    }


def _chunk_look_ahead(look_ahead: ChunkLookAhead) -> Document:
    most = nlargest(MAX_WAITING_HASHES, look_ahead.consumers, key=lambda each: each.entries)
    return {
        "entries": look_ahead.entries,
        "consumersSetAside": sum(each.parked_from is not None for each in look_ahead.consumers),
        "sizeBytes": look_ahead.size_bytes,
        "maxSizeBytes": look_ahead.max_size_bytes,
        "consumers": [
            {
                "consumer": each.consumer.name,
                "reason": "consumer cannot receive more chunks of its message",
                "entries": each.entries,
                "since": None if each.since_ms is None else iso_text(each.since_ms),
                "setAsideFrom": None if each.parked_from is None else str(each.parked_from),
            }
            for each in most
        ],
    }


def _reason(each: WaitingOfHash) -> str:
    if not each.is_draining:
        return "consumer cannot receive messages now"
    return "no consumer owns the hash" if each.consumer is None else "consumer still drains the hash"


def _consumer(consumer: ConsumerSnapshot, rates: DeliveryRates) -> Document:
    counters = consumer.counters
    document = {
        **_delivery(counters, rates),
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "avgMessagesPerEntry": round(consumer.messages_per_entry),
        "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
        "drainingHashesCount": 0,
        "drainingHashesClearedTotal": consumer.draining_hashes_cleared_total,
        "drainingHashesUnackedMessages": 0,
        "address": consumer.address,
        "connectedSince": iso_text(consumer.connected_since_ms),
        "clientVersion": consumer.client_version,
        "lastAckedTimestamp": counters.last_acked_ms,
        "lastConsumedTimestamp": counters.last_consumed_ms,
        "lastConsumedFlowTimestamp": counters.last_consumed_flow_ms,
        "firstMessagesSentTimestamp": counters.first_consumed_ms,
        "firstConsumedFlowTimestamp": counters.first_consumed_flow_ms,
        "lastAckedTime": iso_text(counters.last_acked_ms),
        "lastConsumedTime": iso_text(counters.last_consumed_ms),
        "metadata": consumer.properties,
    }
    if consumer.role is not None:
        document["appId"] = consumer.role
    return document


class _KeyView:
    def __init__(self, owners: HashOwners, key_order: KeyOrderView | None) -> None:
        self._ranges: dict[ConsumerState, list[HashRange]] = owners.selector.ranges()
        self._draining: dict[ConsumerState, list[tuple[int, DrainingHash]]] | None = None
        if key_order is not None:
            self._draining = key_order.draining.by_consumer()

    def add_to(self, document: Document, consumer: ConsumerState) -> Generator[None, None, None]:
        document["keyHashRangeArrays"] = self._ranges.get(consumer, [])
        if self._draining is None:
            return
        listed: list[Document] = []
        for sticky_hash, each in self._draining.get(consumer, []):
            listed.append(
                {"hash": sticky_hash, "unackMsgs": each.unacked_messages, "blockedAttempts": each.blocked_attempts}
            )
            if not len(listed) % HASHES_PER_SLICE:
                yield
        document["drainingHashes"] = listed
        document["drainingHashesCount"] = len(listed)
        document["drainingHashesUnackedMessages"] = sum(each["unackMsgs"] for each in listed)
        joined_at = consumer.read_position_when_joining
        if joined_at is not None:
            document["readPositionWhenJoining"] = str(joined_at)
