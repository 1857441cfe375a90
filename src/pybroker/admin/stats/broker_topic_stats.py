"""The short form of a topic's stats, as `broker-stats/topics` shows it for all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybroker.admin.time_text import iso_text
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.topic.backlog_quota import estimated_backlog_bytes
from pybroker.broker.topic.topic import Topic

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.publishing.producer import Producer
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.model.rates import DeliveryRates

Document = dict[str, Any]

NO_LEDGER_OPERATIONS = {
    "dataLedgerOpenOp": 0,
    "dataLedgerCloseOp": 0,
    "dataLedgerCreateOp": 0,
    "dataLedgerDeleteOp": 0,
    "cursorLedgerOpenOp": 0,
    "cursorLedgerCloseOp": 0,
    "cursorLedgerCreateOp": 0,
    "cursorLedgerDeleteOp": 0,
}
"""What `broker-stats/bookieops` says of a topic that no BookKeeper stores."""
_TRACKING_TYPES = ("Shared", "Key_Shared")


def broker_topic_stats(topic: TopicBase, rates: RateSampler) -> Document:
    """Without a look at the store: the size of the backlog is an estimate."""
    counters, incoming = topic.counters, rates.topic(topic)
    subscriptions = list(topic.subscriptions.values())
    outgoing = [rates.subscription(subscription) for subscription in subscriptions]
    delivered = [subscription.counters for subscription in subscriptions]
    return {
        "publishers": [_publisher(producer, rates) for _, producer in sorted(topic.producers.items())],
        "replication": {},
        "subscriptions": {each.name: _subscription(each, rates) for each in subscriptions},
        "producerCount": len(topic.producers),
        "averageMsgSize": incoming.average_message_bytes,
        "msgRateIn": incoming.messages_in.per_second,
        "msgRateOut": sum(each.messages_out.per_second for each in outgoing),
        "msgInCount": counters.messages_in,
        "bytesInCount": counters.bytes_in,
        "msgOutCount": counters.messages_out_of_removed + sum(each.messages_out for each in delivered),
        "bytesOutCount": counters.bytes_out_of_removed + sum(each.bytes_out for each in delivered),
        "msgThroughputIn": incoming.bytes_in.per_second,
        "msgThroughputOut": sum(each.bytes_out.per_second for each in outgoing),
        "storageSize": topic.ledger.size_bytes if isinstance(topic, Topic) else 0,
        "backlogSize": estimated_backlog_bytes(topic) if isinstance(topic, Topic) else 0,
        "pendingAddEntriesCount": topic.ledger.pending_entries if isinstance(topic, Topic) else 0,
        "filteredEntriesCount": sum(each.filter_processed - each.filter_accepted for each in delivered),
    }


def _publisher(producer: Producer, rates: RateSampler) -> Document:
    sent = rates.producer(producer)
    return {
        "msgRateIn": sent.messages_in.per_second,
        "msgThroughputIn": sent.bytes_in.per_second,
        "averageMsgSize": sent.average_message_bytes,
        "address": producer.peer.address,
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "connectedSince": iso_text(producer.connected_since_ms),
        "clientVersion": producer.peer.client_version,
        "metadata": producer.properties,
    }


def _rates(delivered: DeliveryRates) -> Document:
    return {
        "msgRateOut": delivered.messages_out.per_second,
        "msgThroughputOut": delivered.bytes_out.per_second,
        "msgRateRedeliver": delivered.redelivered_messages.per_second,
        "messageAckRate": delivered.acked_messages.per_second,
    }


def _subscription(subscription: SubscriptionBase, rates: RateSampler) -> Document:
    delivered, counters = rates.subscription(subscription), subscription.counters
    document: Document = {
        "consumers": [_consumer(consumer, subscription, rates) for consumer in subscription.consumers],
        "msgBacklog": subscription.backlog_entries,
        "msgRateExpired": delivered.expired_entries.per_second,
        **_rates(delivered),
        "numberOfEntriesSinceFirstNotAckedMessage": 0,
        "totalNonContiguousDeletedMessagesRange": 0,
        "type": subscription.type_name,
        "filterProcessedMsgCount": counters.filter_processed,
        "filterAcceptedMsgCount": counters.filter_accepted,
        "filterRejectedMsgCount": counters.filter_rejected,
        "filterRescheduledMsgCount": counters.filter_rescheduled,
    }
    if not isinstance(subscription, Subscription):
        return document | {"msgDropRate": delivered.dropped_messages.per_second}
    cursor = subscription.cursor
    document["numberOfEntriesSinceFirstNotAckedMessage"] = cursor.ledger.ledgers.entries_between(
        cursor.mark_delete_position, cursor.read_position
    )
    document["totalNonContiguousDeletedMessagesRange"] = cursor.state.deleted_range_count
    if subscription.type_name in _TRACKING_TYPES:
        document["blockedSubscriptionOnUnackedMsgs"] = subscription.is_blocked
        document["unackedMessages"] = subscription.unacked_messages
    return document


def _consumer(consumer: Consumer, subscription: SubscriptionBase, rates: RateSampler) -> Document:
    document: Document = {
        "address": consumer.peer.address,
        "consumerName": consumer.name,
        "availablePermits": consumer.state.permits,
        "connectedSince": iso_text(consumer.connected_since_ms),
        **_rates(rates.consumer(consumer)),
        "avgMessagesPerEntry": round(consumer.state.messages_per_entry),
        "clientVersion": consumer.peer.client_version,
        "metadata": consumer.properties,
    }
    if subscription.type_name in _TRACKING_TYPES:
        document["unackedMessages"] = consumer.state.unacked_messages
        document["blockedConsumerOnUnackedMsgs"] = consumer.state.blocked
    return document
