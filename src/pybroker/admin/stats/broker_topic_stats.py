"""Short form of topic statistics, for `broker-stats/topics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybroker.admin.time_text import iso_text
from pybroker.broker.snapshots.subscription_snapshot import consumer_snapshot, subscription_snapshot
from pybroker.broker.snapshots.topic_snapshot import producer_snapshot, topic_snapshot
from pybroker.broker.topic.backlog_quota import estimated_backlog_bytes

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
"""The entry of `broker-stats/bookieops`: topics are not stored in BookKeeper."""
_TRACKING_TYPES = ("Shared", "Key_Shared")


def broker_topic_stats(topic: TopicBase, rates: RateSampler) -> Document:
    """Return the statistics of a topic, without reads from the store. The backlog size is an estimate."""
    snapshot, incoming = topic_snapshot(topic), rates.topic(topic)
    counters = snapshot.counters
    subscriptions = list(topic.subscriptions.values())
    outgoing = [rates.subscription(subscription) for subscription in subscriptions]
    delivered = [subscription.counters for subscription in subscriptions]
    return {
        "publishers": [_publisher(producer, rates) for _, producer in sorted(topic.producers.items())],
        "replication": {},
        "subscriptions": {each.name: _subscription(each, rates) for each in subscriptions},
        "producerCount": snapshot.producer_count,
        "averageMsgSize": incoming.average_message_bytes,
        "msgRateIn": incoming.messages_in.per_second,
        "msgRateOut": sum(each.messages_out.per_second for each in outgoing),
        "msgInCount": counters.messages_in,
        "bytesInCount": counters.bytes_in,
        "msgOutCount": counters.messages_out_of_removed + sum(each.messages_out for each in delivered),
        "bytesOutCount": counters.bytes_out_of_removed + sum(each.bytes_out for each in delivered),
        "msgThroughputIn": incoming.bytes_in.per_second,
        "msgThroughputOut": sum(each.bytes_out.per_second for each in outgoing),
        "storageSize": snapshot.stored_bytes,
        "backlogSize": estimated_backlog_bytes(topic),
        "pendingAddEntriesCount": snapshot.pending_entries,
        "filteredEntriesCount": sum(each.filter_processed - each.filter_accepted for each in delivered),
    }


def _publisher(producer: Producer, rates: RateSampler) -> Document:
    snapshot, sent = producer_snapshot(producer), rates.producer(producer)
    return {
        "msgRateIn": sent.messages_in.per_second,
        "msgThroughputIn": sent.bytes_in.per_second,
        "averageMsgSize": sent.average_message_bytes,
        "address": snapshot.address,
        "producerId": snapshot.producer_id,
        "producerName": snapshot.name,
        "connectedSince": iso_text(snapshot.connected_since_ms),
        "clientVersion": snapshot.client_version,
        "metadata": snapshot.properties,
    }


def _rates(delivered: DeliveryRates) -> Document:
    return {
        "msgRateOut": delivered.messages_out.per_second,
        "msgThroughputOut": delivered.bytes_out.per_second,
        "msgRateRedeliver": delivered.redelivered_messages.per_second,
        "messageAckRate": delivered.acked_messages.per_second,
    }


def _subscription(subscription: SubscriptionBase, rates: RateSampler) -> Document:
    snapshot, delivered = subscription_snapshot(subscription), rates.subscription(subscription)
    counters = snapshot.counters
    tracks_unacked = snapshot.type_name in _TRACKING_TYPES
    document: Document = {
        "consumers": [_consumer(each, rates, tracks_unacked=tracks_unacked) for each in subscription.consumers],
        "msgBacklog": snapshot.backlog_entries,
        "msgRateExpired": delivered.expired_entries.per_second,
        **_rates(delivered),
        "numberOfEntriesSinceFirstNotAckedMessage": snapshot.entries_since_first_unacked(),
        "totalNonContiguousDeletedMessagesRange": snapshot.deleted_range_count,
        "type": snapshot.type_name,
        "filterProcessedMsgCount": counters.filter_processed,
        "filterAcceptedMsgCount": counters.filter_accepted,
        "filterRejectedMsgCount": counters.filter_rejected,
        "filterRescheduledMsgCount": counters.filter_rescheduled,
    }
    if snapshot.cursor is None:
        document["msgDropRate"] = delivered.dropped_messages.per_second
    elif tracks_unacked:
        document["blockedSubscriptionOnUnackedMsgs"] = snapshot.is_blocked
        document["unackedMessages"] = snapshot.unacked_messages
    return document


def _consumer(consumer: Consumer, rates: RateSampler, *, tracks_unacked: bool) -> Document:
    snapshot = consumer_snapshot(consumer)
    document: Document = {
        "address": snapshot.address,
        "consumerName": snapshot.name,
        "availablePermits": snapshot.permits,
        "connectedSince": iso_text(snapshot.connected_since_ms),
        **_rates(rates.consumer(consumer)),
        "avgMessagesPerEntry": round(snapshot.messages_per_entry),
        "clientVersion": snapshot.client_version,
        "metadata": snapshot.properties,
    }
    if tracks_unacked:
        document["unackedMessages"] = snapshot.unacked_messages
        document["blockedConsumerOnUnackedMsgs"] = snapshot.is_blocked
    return document
