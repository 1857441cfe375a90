"""What happens on one non-persistent topic: the JSON of its `stats` and `internalStats`.

The members are those of persistent topics, zeros where they are about what is stored, and what was dropped: `msgDropRate` of a
subscription is what no consumer could take, that of a publisher, and of the topic, what came too fast to be given to anybody.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pybroker.admin.stats.internal_stats import internal_stats
from pybroker.admin.stats.topic_stats import (
    NEVER_COMPACTED,
    OBJECTS_PER_SLICE,
    THROTTLED_EVENTS,
    Document,
    Steps,
    consumer_stats,
    delivery_stats,
    publisher_stats,
    traffic_stats,
)
from pybroker.broker.topic.non_persistent_topic import NonPersistentTopic
from pybroker.broker.topic.topic import Topic

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.delivery.non_persistent_subscription import NonPersistentSubscription
    from pybroker.broker.topic.topic_base import TopicBase

_NOTHING_STORED = (
    "bytesOutInternalCounter",
    "storageSize",
    "backlogSize",
    "backlogQuotaLimitSize",
    "backlogQuotaLimitTime",
    "oldestBacklogMessageAgeSeconds",
    "earliestMsgPublishTimeInBacklogs",
    "offloadedStorageSize",
    "lastOffloadLedgerId",
    "lastOffloadSuccessTimeStamp",
    "lastOffloadFailureTimeStamp",
    "ongoingTxnCount",
    "abortedTxnCount",
    "committedTxnCount",
    "nonContiguousDeletedMessagesRanges",
    "nonContiguousDeletedMessagesRangesSerializedSize",
    "delayedMessageIndexSizeInBytes",
)
_NOTHING_KEPT = (
    "msgBacklog",
    "backlogSize",
    "earliestMsgPublishTimeInBacklog",
    "msgBacklogNoDelayed",
    "msgDelayed",
    "msgInReplay",
    "unackedMessages",
    "msgExpired",
    "totalMsgExpired",
    "lastExpireTimestamp",
    "lastAckedTimestamp",
    "lastMarkDeleteAdvancedTimestamp",
    "drainingHashesCount",
    "drainingHashesClearedTotal",
    "drainingHashesUnackedMessages",
    "nonContiguousDeletedMessagesRanges",
    "nonContiguousDeletedMessagesRangesSerializedSize",
    "delayedMessageIndexSizeInBytes",
    *THROTTLED_EVENTS,
)


@dataclass(frozen=True, slots=True)
class NonPersistentRequest:
    """What is to be shown."""

    broker_id: str
    with_publishers: bool
    with_consumers: bool


def non_persistent_stats(topic: NonPersistentTopic, rates: RateSampler, request: NonPersistentRequest) -> Steps:
    """The document of one topic; as that of a persistent one, it is made in steps."""
    subscriptions: dict[str, Document] = {}
    for name, subscription in list(topic.subscriptions.items()):
        subscriptions[name] = yield from _subscription(subscription, rates, request.with_consumers)
    publishers: list[Document] = []
    for _, producer in sorted(topic.producers.items()) if request.with_publishers else ():
        dropped = rates.producer(producer).dropped_messages.per_second
        publishers.append(
            publisher_stats(producer, rates, topic.runtime.clock.monotonic_ms()) | {"msgDropRate": dropped}
        )
        if not len(publishers) % OBJECTS_PER_SLICE:
            yield
    shown = subscriptions.values()
    counters, incoming = topic.counters, rates.topic(topic)
    document = {
        **dict.fromkeys(_NOTHING_STORED, 0),
        **traffic_stats(topic, incoming, shown),
        "msgDropRate": sum(rates.producer(each).dropped_messages.per_second for each in topic.producers.values()),
        "averageMsgSize": incoming.average_message_bytes,
        "msgChunkPublished": counters.chunks_in > 0,
        "publishRateLimitedTimes": counters.publish_rate_limited,
        "publishers": publishers,
        "waitingPublishers": topic.producer_registry.waiting_count,
        "subscriptions": subscriptions,
        "replication": {},
        "compaction": NEVER_COMPACTED,
        "ownerBroker": request.broker_id,
        "topicCreationTimeStamp": topic.loaded_ms,
        "lastPublishTimeStamp": counters.last_publish_ms,
    }
    if topic.producer_registry.epoch is not None:
        document["topicEpoch"] = topic.producer_registry.epoch
    return document


def _subscription(
    subscription: NonPersistentSubscription, rates: RateSampler, with_consumers: bool
) -> Generator[None, None, Document]:
    dispatcher, counters = subscription.dispatcher, subscription.counters
    owners = None if dispatcher is None else dispatcher.owners
    ranges = {} if owners is None or not with_consumers else owners.selector.ranges()
    consumers: list[Document] = []
    for consumer in list(subscription.consumers) if with_consumers else ():
        document = consumer_stats(consumer, rates)
        if owners is not None:
            document["keyHashRangeArrays"] = ranges.get(consumer.state, [])
        consumers.append(document)
        if not len(consumers) % OBJECTS_PER_SLICE:
            yield
    delivered = rates.subscription(subscription)
    document = {
        **dict.fromkeys(_NOTHING_KEPT, 0),
        **delivery_stats(subscription, delivered),
        "msgDropRate": delivered.dropped_messages.per_second,
        "blockedSubscriptionOnUnackedMsgs": False,
        "type": subscription.type_name,
        "msgRateExpired": 0.0,
        "lastConsumedFlowTimestamp": counters.last_consumed_flow_ms,
        "lastConsumedTimestamp": counters.last_consumed_ms,
        "consumers": consumers,
        "isDurable": False,
        "durable": False,
        "isReplicated": False,
        "replicated": False,
        "allowOutOfOrderDelivery": owners is not None and owners.allows_out_of_order_delivery,
        "consumersAfterMarkDeletePosition": {},
        "subscriptionProperties": subscription.properties,
        "filterProcessedMsgCount": counters.filter_processed,
        "filterAcceptedMsgCount": counters.filter_accepted,
        "filterRejectedMsgCount": counters.filter_rejected,
        "filterRescheduledMsgCount": counters.filter_rescheduled,
    }
    if owners is not None:
        document["keySharedMode"] = owners.mode
    if dispatcher is not None and dispatcher.active_consumer is not None:
        document["activeConsumerName"] = dispatcher.active_consumer.name
    return document


def any_internal_stats(topic: TopicBase, *, with_metadata: bool = False) -> dict[str, Any]:
    """The JSON of `internalStats` of any topic; a non-persistent one has no ledger, and its subscriptions no cursors."""
    if isinstance(topic, Topic):
        return internal_stats(topic, with_metadata=with_metadata)
    return {
        "entriesAddedCounter": topic.counters.entries_in,
        "numberOfEntries": 0,
        "totalSize": 0,
        "currentLedgerEntries": 0,
        "currentLedgerSize": 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "cursors": dict.fromkeys(topic.subscriptions, _NO_CURSOR),
    }


_NO_CURSOR = {
    "waitingReadOp": False,
    "pendingReadOps": 0,
    "messagesConsumedCounter": 0,
    "cursorLedger": 0,
    "cursorLedgerLastEntry": 0,
    "active": False,
    "numberOfEntriesSinceFirstNotAckedMessage": 0,
    "totalNonContiguousDeletedMessagesRange": 0,
    "subscriptionHavePendingRead": False,
    "subscriptionHavePendingReplayRead": False,
}
