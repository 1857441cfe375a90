"""What happens on one topic: the JSON of `stats`, Pulsar's members.

Built from live objects without waiting for anything: a generator that pauses after each slice of work, so that a topic
with thousands of consumers, or a subscription with thousands of draining hashes, holds nobody up. What has to be asked
of the store is measured before and handed in. Members that do not apply are left out; all others are always there.

Invariant: sums are over what is shown, in one turn of the generator's owner; a consumer that leaves meanwhile is shown
as it left.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from pybroker.admin.stats import transaction_stats
from pybroker.admin.time_text import iso_text
from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.look_ahead import ChunkLookAhead, LookAhead, WaitingOfHash
from pybroker.dispatch.selectors.hash_selector import HashRange
from pybroker.model.system_topics import is_system_topic

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.publishing.producer import Producer
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.dispatch.draining_hashes import DrainingHash
    from pybroker.dispatch.views import KeyOrderView
    from pybroker.model.rates import DeliveryRates, TopicRates

Document = dict[str, Any]
Steps = Generator[None, None, Document]
"""A document in the making: whoever has it made lets others run at each pause."""

OBJECTS_PER_SLICE = 50
HASHES_PER_SLICE = 1000
MAX_WAITING_HASHES = 10
"""How many of the hashes that hold back most are shown."""
THROTTLED_EVENTS = {
    f"dispatchThrottled{unit}EventsBy{limit}Limit": (unit, limit)
    for limit in ("Subscription", "Topic", "Broker")
    for unit in ("Msg", "Bytes")
}
"""How often a rate has held up a subscription: the members, and what they are counted by."""
NEVER_COMPACTED = {
    "lastCompactionRemovedEventCount": 0,
    "lastCompactionSucceedTimestamp": 0,
    "lastCompactionFailedTimestamp": 0,
    "lastCompactionDurationTimeInMills": 0,
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What only the store knows of a subscription; -1 where nobody asked, 0 as the time where nothing is unread."""

    backlog_bytes: int
    earliest_publish_ms: int


@dataclass(frozen=True, slots=True)
class StatsRequest:
    """What is to be shown, and what was measured for it."""

    measured: Mapping[Subscription, Measured]
    backlog_bytes: int
    """Of the slowest subscription."""
    broker_id: str
    with_publishers: bool
    with_consumers: bool


def topic_stats(topic: Topic, rates: RateSampler, request: StatsRequest) -> Steps:
    """The document of one topic."""
    subscriptions: dict[str, Document] = {}
    for name, subscription in list(topic.subscriptions.items()):
        measured = request.measured.get(subscription)
        if measured is not None:  # else it was made while others were measured
            subscriptions[name] = yield from _subscription(subscription, rates, measured, request.with_consumers)
    publishers: list[Document] = []
    if request.with_publishers:
        for _, producer in sorted(topic.producers.items()):
            publishers.append(publisher_stats(producer, rates, topic.runtime.clock.monotonic_ms()))
            if not len(publishers) % OBJECTS_PER_SLICE:
                yield
    shown = subscriptions.values()
    counters, incoming, policies = topic.counters, rates.topic(topic), topic.policies
    document = {
        **traffic_stats(topic, incoming, shown),
        "bytesOutInternalCounter": 0,
        "averageMsgSize": incoming.average_message_bytes,
        "msgChunkPublished": counters.chunks_in > 0,
        "storageSize": topic.ledger.size_bytes,
        "backlogSize": request.backlog_bytes,
        "backlogQuotaLimitSize": policies.size_quota.limitSize,
        "backlogQuotaLimitTime": policies.age_quota.limitTime,
        "oldestBacklogMessageAgeSeconds": topic.backlog_age_s,
        "publishRateLimitedTimes": counters.publish_rate_limited,
        "earliestMsgPublishTimeInBacklogs": _earliest(request.measured.values()),
        "offloadedStorageSize": 0,
        "lastOffloadLedgerId": 0,
        "lastOffloadSuccessTimeStamp": 0,
        "lastOffloadFailureTimeStamp": 0,
        **transaction_stats.of_topic(topic),
        "publishers": publishers,
        "waitingPublishers": topic.producer_registry.waiting_count,
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": topic.deduplication.status,
        "nonContiguousDeletedMessagesRanges": sum(each["nonContiguousDeletedMessagesRanges"] for each in shown),
        "nonContiguousDeletedMessagesRangesSerializedSize": sum(
            each["nonContiguousDeletedMessagesRangesSerializedSize"] for each in shown
        ),
        "delayedMessageIndexSizeInBytes": sum(each["delayedMessageIndexSizeInBytes"] for each in shown),
        "compaction": _compaction(topic),
        "ownerBroker": request.broker_id,
        "topicCreationTimeStamp": topic.ledger.created_ms,
        "lastPublishTimeStamp": counters.last_publish_ms,
    }
    if topic.producer_registry.epoch is not None:
        document["topicEpoch"] = topic.producer_registry.epoch
    if topic.backlog_age_subscription:
        document["oldestBacklogMessageSubscriptionName"] = topic.backlog_age_subscription
    return document


def traffic_stats(topic: TopicBase, incoming: TopicRates, subscriptions: Collection[Document]) -> Document:
    """What came in and went out, whether it is stored or not."""
    counters = topic.counters
    return {
        "msgRateIn": incoming.messages_in.per_second,
        "msgThroughputIn": incoming.bytes_in.per_second,
        "msgRateOut": sum(each["msgRateOut"] for each in subscriptions),
        "msgThroughputOut": sum(each["msgThroughputOut"] for each in subscriptions),
        "bytesInCounter": counters.bytes_in,
        "msgInCounter": counters.messages_in,
        "systemTopicBytesInCounter": counters.bytes_in if is_system_topic(topic.name) else 0,
        "bytesOutCounter": counters.bytes_out_of_removed + sum(each["bytesOutCounter"] for each in subscriptions),
        "msgOutCounter": counters.messages_out_of_removed + sum(each["msgOutCounter"] for each in subscriptions),
    }


def _compaction(topic: Topic) -> Document:
    counters = topic.compaction.counters
    return {
        "lastCompactionRemovedEventCount": counters.last_removed_messages,
        "lastCompactionSucceedTimestamp": counters.last_succeeded_ms,
        "lastCompactionFailedTimestamp": counters.last_failed_ms,
        "lastCompactionDurationTimeInMills": counters.last_duration_ms,
    }


def _earliest(measured: Any) -> int:
    return min((each.earliest_publish_ms for each in measured if each.earliest_publish_ms > 0), default=0)


def publisher_stats(producer: Producer, rates: RateSampler, now_ms: float) -> Document:
    """`now_ms` is monotonic."""
    sent = rates.producer(producer)
    return {
        "accessMode": producer.access_mode.value,
        "msgRateIn": sent.messages_in.per_second,
        "msgThroughputIn": sent.bytes_in.per_second,
        "averageMsgSize": sent.average_message_bytes,
        "chunkedMessageRate": sent.chunks_in.per_second,
        "producerId": producer.producer_id,
        "supportsPartialProducer": producer.peer.supports_partial_producer,
        "producerName": producer.name,
        "address": producer.peer.address,
        "connectedSince": iso_text(producer.connected_since_ms),
        "clientVersion": producer.peer.client_version,
        "metadata": producer.properties,
        **_waits_for_memory(producer.peer.memory_waits.publishes_since_ms, now_ms),
    }


def _waits_for_memory(since_ms: float | None, now_ms: float) -> Document:
    """Ours, and so shown only while it waits; both times are monotonic."""
    return {} if since_ms is None else {"waitsForMemory": {"forMillis": round(now_ms - since_ms)}}


def _subscription(subscription: Subscription, rates: RateSampler, measured: Measured, with_consumers: bool) -> Steps:
    key_order = subscription.key_order
    consumers: list[Document] = []
    if with_consumers:
        keys = None if key_order is None else _KeyView(key_order)
        for index, consumer in enumerate(list(subscription.consumers)):
            document = consumer_stats(consumer, rates)
            consumers.append(document)
            if keys is not None:
                yield from keys.add_to(document, consumer.state)
            if index % OBJECTS_PER_SLICE == OBJECTS_PER_SLICE - 1:
                yield
    counters, cursor, delayed = subscription.counters, subscription.cursor, subscription.delayed
    delivered = rates.subscription(subscription)
    backlog_entries = cursor.backlog_entries
    document = {
        **delivery_stats(subscription, delivered),
        "msgBacklog": backlog_entries,
        "backlogSize": measured.backlog_bytes,
        "earliestMsgPublishTimeInBacklog": measured.earliest_publish_ms,
        "msgBacklogNoDelayed": backlog_entries - delayed.entry_count,
        "blockedSubscriptionOnUnackedMsgs": subscription.is_blocked,
        "msgDelayed": delayed.entry_count,
        "msgInReplay": subscription.replay_entry_count,
        "unackedMessages": subscription.unacked_messages,
        "type": subscription.type_name,
        "msgRateExpired": delivered.expired_entries.per_second,
        "msgExpired": counters.expired_last_run_entries,
        "totalMsgExpired": counters.expired_entries,
        "lastExpireTimestamp": counters.last_expired_ms,
        "lastConsumedFlowTimestamp": counters.last_consumed_flow_ms,
        "lastConsumedTimestamp": counters.last_consumed_ms,
        "lastAckedTimestamp": counters.last_acked_ms,
        "lastMarkDeleteAdvancedTimestamp": counters.last_mark_delete_advanced_ms,
        "consumers": consumers,
        "isDurable": subscription.is_durable,
        "durable": subscription.is_durable,
        "isReplicated": subscription.is_replicated,
        "replicated": subscription.is_replicated,
        **_draining(key_order, subscription),
        "nonContiguousDeletedMessagesRanges": cursor.state.deleted_range_count,
        "nonContiguousDeletedMessagesRangesSerializedSize": cursor.state.deleted_ranges_bytes,
        "delayedMessageIndexSizeInBytes": delayed.index_size_bytes,
        **_oldest_unacked(subscription),
        **_redeliveries(subscription),
        **transaction_stats.of_subscription(subscription),
        "subscriptionProperties": subscription.properties,
        "filterProcessedMsgCount": counters.filter_processed,
        "filterAcceptedMsgCount": counters.filter_accepted,
        "filterRejectedMsgCount": counters.filter_rejected,
        "filterRescheduledMsgCount": counters.filter_rescheduled,
        **{name: counters.throttled_events[event] for name, event in THROTTLED_EVENTS.items()},
    }
    active = None if subscription.dispatcher is None else subscription.dispatcher.active_consumer
    if active is not None:
        document["activeConsumerName"] = active.name
    return document


def _oldest_unacked(subscription: Subscription) -> Document:
    """Ours, and so shown only while something is not acknowledged of which it is known."""
    age_s = subscription.cursor.oldest.known_age_s()
    return {} if age_s < 0 else {"oldestUnackedMessageAgeSeconds": age_s}


def _redeliveries(subscription: Subscription) -> Document:
    """Return a field beyond Pulsar's, only if it is not 0. Pulsar's `msgInReplay` also counts entries that were never
    sent."""
    dispatcher = subscription.dispatcher
    waiting = dispatcher.redelivery_entry_count if dispatcher is not None else 0
    return {"entriesToRedeliver": waiting} if waiting else {}


def delivery_stats(counters_of: SubscriptionBase | Consumer, rates: DeliveryRates) -> Document:
    """What subscriptions and consumers have in common."""
    counters = counters_of.counters
    return {
        "msgRateOut": rates.messages_out.per_second,
        "msgThroughputOut": rates.bytes_out.per_second,
        "bytesOutCounter": counters.bytes_out,
        "msgOutCounter": counters.messages_out,
        "msgRateRedeliver": rates.redelivered_messages.per_second,
        "messageAckRate": rates.acked_messages.per_second,
        "chunkedMessageRate": rates.chunks_out.per_second,
    }


def _draining(key_order: KeyOrderView | None, subscription: Subscription) -> Document:
    """What subscriptions say of Key_Shared; zeros for the other types."""
    document: Document = {
        "allowOutOfOrderDelivery": False,
        "consumersAfterMarkDeletePosition": {},
        "drainingHashesCount": 0,
        "drainingHashesClearedTotal": subscription.draining_hashes_cleared_total,
        "drainingHashesUnackedMessages": 0,
    }
    stall = subscription.stall
    if stall is not None and stall.blocked_reason is BlockedReason.MEMORY:
        document |= _waits_for_memory(stall.since_ms, subscription.runtime.clock.monotonic_ms())
    if (chunk_order := subscription.chunk_order) is not None and chunk_order.holds_chunks_back:
        document["lookAhead"] = _chunk_look_ahead(chunk_order.look_ahead())
    if key_order is None:
        return document
    document |= {
        "allowOutOfOrderDelivery": key_order.owners.allows_out_of_order_delivery,
        "keySharedMode": key_order.owners.mode,
        "drainingHashesCount": len(key_order.draining),
        "drainingHashesUnackedMessages": key_order.draining.unacked_messages(),
    }
    if key_order.waiting or key_order.parked:
        document["lookAhead"] = _look_ahead(key_order.look_ahead(MAX_WAITING_HASHES))
    if joined := key_order.recently_joined():
        document["consumersAfterMarkDeletePosition"] = {state.name: str(position) for state, position in joined}
    return document


def _look_ahead(look_ahead: LookAhead) -> Document:
    """What Key_Shared holds back, and because of whom: shown while there is something, Pulsar has no such field."""
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
    """What Shared holds back of large messages, since one consumer each must put them together."""
    most = nlargest(MAX_WAITING_HASHES, look_ahead.consumers, key=lambda each: each.entries)
    return {
        "entries": look_ahead.entries,
        "consumersSetAside": sum(each.parked_from is not None for each in look_ahead.consumers),
        "sizeBytes": look_ahead.size_bytes,
        "maxSizeBytes": look_ahead.max_size_bytes,
        "consumers": [
            {
                "consumer": each.consumer.name,
                "reason": "consumer cannot take more of the message that it has begun",
                "entries": each.entries,
                "since": None if each.since_ms is None else iso_text(each.since_ms),
                "setAsideFrom": None if each.parked_from is None else str(each.parked_from),
            }
            for each in most
        ],
    }


def _reason(each: WaitingOfHash) -> str:
    if not each.is_draining:
        return "consumer cannot take more"
    return "nobody has this hash" if each.consumer is None else "consumer drains this hash"


def consumer_stats(consumer: Consumer, rates: RateSampler) -> Document:
    counters, state, peer = consumer.counters, consumer.state, consumer.peer
    document = {
        **delivery_stats(consumer, rates.consumer(consumer)),
        "consumerName": consumer.name,
        "availablePermits": state.permits,
        "unackedMessages": state.unacked_messages,
        "avgMessagesPerEntry": round(state.messages_per_entry),
        "blockedConsumerOnUnackedMsgs": state.blocked,
        "drainingHashesCount": 0,
        "drainingHashesClearedTotal": state.draining_hashes_cleared_total,
        "drainingHashesUnackedMessages": 0,
        "address": peer.address,
        "connectedSince": iso_text(consumer.connected_since_ms),
        "clientVersion": peer.client_version,
        "lastAckedTimestamp": counters.last_acked_ms,
        "lastConsumedTimestamp": counters.last_consumed_ms,
        "lastConsumedFlowTimestamp": counters.last_consumed_flow_ms,
        "firstMessagesSentTimestamp": counters.first_consumed_ms,
        "firstConsumedFlowTimestamp": counters.first_consumed_flow_ms,
        "lastAckedTime": iso_text(counters.last_acked_ms),
        "lastConsumedTime": iso_text(counters.last_consumed_ms),
        "metadata": consumer.properties,
    }
    if peer.role is not None:
        document["appId"] = peer.role
    return document


class _KeyView:
    """What a Key_Shared subscription knows of its consumers' hashes, looked up once for all of them."""

    def __init__(self, key_order: KeyOrderView) -> None:
        self._ranges: dict[ConsumerState, list[HashRange]] = key_order.owners.selector.ranges()
        self._draining: dict[ConsumerState, list[tuple[int, DrainingHash]]] = key_order.draining.by_consumer()

    def add_to(self, document: Document, consumer: ConsumerState) -> Generator[None, None, None]:
        """Complete the document of one consumer."""
        draining = self._draining.get(consumer, [])
        listed: list[Document] = []
        for sticky_hash, each in draining:
            listed.append(
                {"hash": sticky_hash, "unackMsgs": each.unacked_messages, "blockedAttempts": each.blocked_attempts}
            )
            if not len(listed) % HASHES_PER_SLICE:
                yield
        document["keyHashRangeArrays"] = self._ranges.get(consumer, [])
        document["drainingHashes"] = listed
        document["drainingHashesCount"] = len(listed)
        document["drainingHashesUnackedMessages"] = sum(each["unackMsgs"] for each in listed)
        joined_at = consumer.read_position_when_joining
        if joined_at is not None:
            document["readPositionWhenJoining"] = str(joined_at)
