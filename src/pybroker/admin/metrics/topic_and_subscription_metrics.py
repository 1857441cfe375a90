"""Values of one topic, subscription, consumer or producer on the metrics page. Each field has the name of its metric."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pybroker.model.rates import BucketsWindow, DeliveryRates, ProducerRates, TopicRates

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.snapshots.subscription_snapshot import ConsumerSnapshot, SubscriptionSnapshot
    from pybroker.broker.snapshots.topic_snapshot import TopicSnapshot
    from pybroker.model.counters import DeliveryCounters

LATENCY_SUFFIXES = ("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000", "overflow")
_SIZE_SUFFIXES = (
    "le_128",
    "le_512",
    "le_1_kb",
    "le_2_kb",
    "le_4_kb",
    "le_16_kb",
    "le_100_kb",
    "le_1_mb",
    "le_overflow",
)
_TOTAL_SUFFIXES = ("count", "sum")
THROTTLE_REASONS = ("subscription", "topic", "broker")


class SubscriptionValues(NamedTuple):
    """Values of one subscription. Backlogs are in entries, other counts in messages."""

    pulsar_subscription_back_log: int
    pulsar_subscription_back_log_no_delayed: int
    pulsar_subscription_delayed: int
    pulsar_subscription_delayed_message_index_size_bytes: int
    pulsar_subscription_in_replay: int
    pulsar_subscription_msg_rate_out: float
    pulsar_subscription_msg_throughput_out: float
    pulsar_subscription_msg_rate_redeliver: float
    pulsar_subscription_msg_ack_rate: float
    pulsar_subscription_msg_rate_expired: float
    pulsar_subscription_msg_drop_rate: float
    pulsar_subscription_total_msg_expired: int
    pulsar_subscription_unacked_messages: int
    pulsar_subscription_blocked_on_unacked_messages: int
    pulsar_subscription_consumers_count: int
    pulsar_subscription_last_expire_timestamp: int
    pulsar_subscription_last_acked_timestamp: int
    pulsar_subscription_last_consumed_flow_timestamp: int
    pulsar_subscription_last_consumed_timestamp: int
    pulsar_subscription_last_mark_delete_advanced_timestamp: int
    pulsar_subscription_filter_processed_msg_count: int
    pulsar_subscription_filter_accepted_msg_count: int
    pulsar_subscription_filter_rejected_msg_count: int
    pulsar_subscription_filter_rescheduled_msg_count: int
    pybroker_subscription_look_ahead_bytes: int
    pybroker_subscription_hashes_set_aside: int
    pybroker_subscription_draining_hashes: int
    pybroker_subscription_oldest_unacked_age_seconds: int
    pybroker_subscription_blocked_on_cursor_state: int


def subscription_values(snapshot: SubscriptionSnapshot, rates: DeliveryRates) -> SubscriptionValues:
    """Return the values of a subscription. For a non-persistent topic, values about stored entries are 0."""
    counters = snapshot.counters
    return SubscriptionValues(
        pulsar_subscription_back_log=snapshot.backlog_entries,
        pulsar_subscription_back_log_no_delayed=snapshot.backlog_entries - snapshot.delayed_entries,
        pulsar_subscription_delayed=snapshot.delayed_entries,
        pulsar_subscription_delayed_message_index_size_bytes=snapshot.delayed_index_bytes,
        pulsar_subscription_in_replay=snapshot.replay_entries,
        pulsar_subscription_msg_rate_out=rates.messages_out.per_second,
        pulsar_subscription_msg_throughput_out=rates.bytes_out.per_second,
        pulsar_subscription_msg_rate_redeliver=rates.redelivered_messages.per_second,
        pulsar_subscription_msg_ack_rate=rates.acked_messages.per_second,
        pulsar_subscription_msg_rate_expired=rates.expired_entries.per_second,
        pulsar_subscription_msg_drop_rate=rates.dropped_messages.per_second,
        pulsar_subscription_total_msg_expired=counters.expired_entries,
        pulsar_subscription_unacked_messages=snapshot.unacked_messages,
        pulsar_subscription_blocked_on_unacked_messages=int(snapshot.is_blocked),
        pulsar_subscription_consumers_count=snapshot.consumer_count,
        pulsar_subscription_last_expire_timestamp=counters.last_expired_ms,
        pulsar_subscription_last_acked_timestamp=counters.last_acked_ms,
        pulsar_subscription_last_consumed_flow_timestamp=counters.last_consumed_flow_ms,
        pulsar_subscription_last_consumed_timestamp=counters.last_consumed_ms,
        pulsar_subscription_last_mark_delete_advanced_timestamp=counters.last_mark_delete_advanced_ms,
        pybroker_subscription_look_ahead_bytes=snapshot.look_ahead_bytes,
        pybroker_subscription_hashes_set_aside=snapshot.parked_hash_count,
        pybroker_subscription_draining_hashes=snapshot.draining_hash_count,
        pybroker_subscription_oldest_unacked_age_seconds=snapshot.oldest_unacked_age_s,
        pybroker_subscription_blocked_on_cursor_state=int(snapshot.is_paused_by_size),
        pulsar_subscription_filter_processed_msg_count=counters.filter_processed,
        pulsar_subscription_filter_accepted_msg_count=counters.filter_accepted,
        pulsar_subscription_filter_rejected_msg_count=counters.filter_rejected,
        pulsar_subscription_filter_rescheduled_msg_count=counters.filter_rescheduled,
    )


class OutValues(NamedTuple):
    """Delivery values of one subscription or consumer, since the topic was loaded or the consumer connected."""

    pulsar_out_bytes_total: int
    pulsar_out_messages_total: int


def out_values(counters: DeliveryCounters) -> OutValues:
    return OutValues(counters.bytes_out, counters.messages_out)


class SummedValues(NamedTuple):
    """Values of one topic that are also summed over its namespace and the broker."""

    pulsar_subscriptions_count: float
    pulsar_producers_count: float
    pulsar_consumers_count: float
    pulsar_rate_in: float
    pulsar_rate_out: float
    pulsar_throughput_in: float
    pulsar_throughput_out: float
    pulsar_in_bytes_total: float
    pulsar_in_messages_total: float
    pulsar_msg_backlog: float
    pulsar_storage_size: float
    pulsar_storage_logical_size: float
    pulsar_storage_backlog_size: float
    pulsar_storage_offloaded_size: float
    pulsar_storage_write_rate: float
    pulsar_storage_read_rate: float
    pulsar_storage_read_cache_misses_rate: float
    pulsar_delayed_message_index_size_bytes: float


class DeliverySums(NamedTuple):
    """Sums over the subscriptions of a namespace, for topics without separate rows."""

    pulsar_subscription_delayed: float
    pulsar_subscription_in_replay: float
    pulsar_consumer_msg_ack_rate: float
    pulsar_out_bytes_total: float
    pulsar_out_messages_total: float


class SingleValues(NamedTuple):
    """Values of one topic that cannot be summed over topics."""

    pulsar_average_msg_size: float
    pulsar_publish_rate_limit_times: int
    pulsar_storage_backlog_quota_limit: int
    pulsar_storage_backlog_quota_limit_time: int
    pulsar_storage_backlog_age_seconds: int


def _bucket_names(name: str, suffixes: Sequence[str]) -> list[str]:
    return [f"{name}_{suffix}" for suffix in (*suffixes, *_TOTAL_SUFFIXES)]


BUCKET_NAMES = (
    *_bucket_names("pulsar_storage_write_latency", LATENCY_SUFFIXES),
    # Both latencies are equal: messages reach the store at once.
    *_bucket_names("pulsar_storage_ledger_write_latency", LATENCY_SUFFIXES),
    *_bucket_names("pulsar_entry_size", _SIZE_SUFFIXES),
)
"""Number of samples per bucket in the last window (not cumulative), then the total number and the sum."""


NO_BUCKETS = (0,) * len(BUCKET_NAMES)


def bucket_values(rates: TopicRates) -> tuple[float, ...]:
    """Return the values of a topic's histograms in the order of BUCKET_NAMES; NO_BUCKETS if no message was published in
    the last window.
    """
    if not rates.publish_latency_ms.count and not rates.entry_size_bytes.count:
        return NO_BUCKETS
    latency = _with_totals(rates.publish_latency_ms)
    return (*latency, *latency, *_with_totals(rates.entry_size_bytes))


def _with_totals(window: BucketsWindow) -> list[float]:
    return [*window.counts, window.count, window.total]


def summed_values(
    snapshot: TopicSnapshot, backlog_bytes: int, rates: TopicRates, delivered: Sequence[SubscriptionValues]
) -> SummedValues:
    return SummedValues(
        pulsar_subscriptions_count=snapshot.subscription_count,
        pulsar_producers_count=snapshot.producer_count,
        pulsar_consumers_count=sum([each.pulsar_subscription_consumers_count for each in delivered]),
        pulsar_rate_in=rates.messages_in.per_second,
        pulsar_rate_out=sum([each.pulsar_subscription_msg_rate_out for each in delivered]),
        pulsar_throughput_in=rates.bytes_in.per_second,
        pulsar_throughput_out=sum([each.pulsar_subscription_msg_throughput_out for each in delivered]),
        pulsar_in_bytes_total=snapshot.counters.bytes_in,
        pulsar_in_messages_total=snapshot.counters.messages_in,
        pulsar_msg_backlog=sum([each.pulsar_subscription_back_log for each in delivered]),
        pulsar_storage_size=snapshot.stored_bytes * (1 if snapshot.ledger is None else snapshot.ledger.copy_count),
        pulsar_storage_logical_size=snapshot.stored_bytes,
        pulsar_storage_backlog_size=backlog_bytes,
        pulsar_storage_offloaded_size=0,
        pulsar_storage_write_rate=0 if snapshot.ledger is None else rates.entries_in.per_second,
        pulsar_storage_read_rate=rates.entries_read.per_second,
        pulsar_storage_read_cache_misses_rate=rates.store_entries_read.per_second,
        pulsar_delayed_message_index_size_bytes=sum(
            [each.pulsar_subscription_delayed_message_index_size_bytes for each in delivered]
        ),
    )


def delivery_sums(subscriptions: Collection[SubscriptionBase], delivered: Sequence[SubscriptionValues]) -> DeliverySums:
    return DeliverySums(
        pulsar_subscription_delayed=sum([each.pulsar_subscription_delayed for each in delivered]),
        pulsar_subscription_in_replay=sum([each.pulsar_subscription_in_replay for each in delivered]),
        pulsar_consumer_msg_ack_rate=sum([each.pulsar_subscription_msg_ack_rate for each in delivered]),
        pulsar_out_bytes_total=sum([each.counters.bytes_out for each in subscriptions]),
        pulsar_out_messages_total=sum([each.counters.messages_out for each in subscriptions]),
    )


def single_values(snapshot: TopicSnapshot, rates: TopicRates) -> SingleValues:
    """Return the values of a topic that cannot be summed over topics. A non-persistent topic has no backlog: its quota
    and age are 0, and its time limit is -1.
    """
    policies, is_stored = snapshot.policies, snapshot.ledger is not None
    return SingleValues(
        pulsar_average_msg_size=rates.average_message_bytes,
        pulsar_publish_rate_limit_times=snapshot.counters.publish_rate_limited,
        pulsar_storage_backlog_quota_limit=policies.size_quota.limitSize if is_stored else 0,
        pulsar_storage_backlog_quota_limit_time=policies.age_quota.limitTime if is_stored else -1,
        pulsar_storage_backlog_age_seconds=snapshot.backlog_age_s if is_stored else 0,
    )


class ConsumerValues(NamedTuple):
    """Values of one consumer."""

    pulsar_consumer_msg_rate_out: float
    pulsar_consumer_msg_throughput_out: float
    pulsar_consumer_msg_rate_redeliver: float
    pulsar_consumer_msg_ack_rate: float
    pulsar_consumer_unacked_messages: int
    pulsar_consumer_blocked_on_unacked_messages: int
    pulsar_consumer_available_permits: int


def consumer_values(snapshot: ConsumerSnapshot, rates: DeliveryRates) -> ConsumerValues:
    return ConsumerValues(
        pulsar_consumer_msg_rate_out=rates.messages_out.per_second,
        pulsar_consumer_msg_throughput_out=rates.bytes_out.per_second,
        pulsar_consumer_msg_rate_redeliver=rates.redelivered_messages.per_second,
        pulsar_consumer_msg_ack_rate=rates.acked_messages.per_second,
        pulsar_consumer_unacked_messages=snapshot.unacked_messages,
        pulsar_consumer_blocked_on_unacked_messages=int(snapshot.is_blocked),
        pulsar_consumer_available_permits=snapshot.permits,
    )


class ProducerValues(NamedTuple):
    """Values of one producer."""

    pulsar_producer_msg_rate_in: float
    pulsar_producer_msg_throughput_in: float
    pulsar_producer_msg_average_Size: float  # noqa: N815  (so it is called)


def producer_values(rates: ProducerRates) -> ProducerValues:
    return ProducerValues(
        pulsar_producer_msg_rate_in=rates.messages_in.per_second,
        pulsar_producer_msg_throughput_in=rates.bytes_in.per_second,
        pulsar_producer_msg_average_Size=rates.average_message_bytes,
    )


NEVER_THROTTLED = (0, 0)


def throttled_events(counters: DeliveryCounters, reason: str) -> tuple[int, int]:
    """Return how often the dispatch rate limit of the scope `reason` (`subscription`, `topic` or `broker`) has delayed
    delivery: first by its limit of messages, then by its limit of bytes.
    """
    events = counters.throttled_events
    if not events:
        return NEVER_THROTTLED
    level = reason.capitalize()
    return events.get(("Msg", level), 0), events.get(("Bytes", level), 0)


THROTTLE_NAMES = (
    "pulsar_subscription_dispatch_throttled_msg_events",
    "pulsar_subscription_dispatch_throttled_bytes_events",
)
EVICTIONS_NAME = "pulsar_storage_backlog_quota_exceeded_evictions_total"
