from __future__ import annotations

import math

import pytest

from pybroker.model.counters import (
    LATENCY_BOUNDS_MS,
    Buckets,
    DeliveryCounters,
    LedgerCounters,
    ProducerCounters,
    TopicCounters,
)
from pybroker.model.rates import BucketsWindow, DeliveryRates, ProducerRates, Rate, TopicRates, quantile


def test_a_rate_is_the_rise_over_the_window() -> None:
    rate = Rate(now_ms=1000)
    assert rate.per_second == 0
    rate.update(300, now_ms=3000)
    assert rate.per_second == 150
    rate.update(300, now_ms=4000)
    assert rate.per_second == 0


def test_events_of_a_window_that_took_no_time_count_for_the_next() -> None:
    rate = Rate(now_ms=1000)
    rate.update(10, now_ms=1000)
    assert rate.per_second == 0
    rate.update(10, now_ms=2000)
    assert rate.per_second == 10


def test_a_counter_that_falls_is_a_bug() -> None:
    rate = Rate(now_ms=0, total=5)
    with pytest.raises(AssertionError):
        rate.update(4, now_ms=1)


def test_a_window_of_buckets_holds_the_samples_of_that_window_alone() -> None:
    buckets, window = Buckets((1, 10)), BucketsWindow(3)
    buckets.add(0.5)
    buckets.add(5, 2)
    window.update(buckets)
    assert (window.counts, window.count, window.total) == ([1, 2, 0], 3, 10.5)
    buckets.add(100)
    window.update(buckets)
    assert (window.counts, window.count, window.total) == ([0, 0, 1], 1, 100)


def test_a_quantile_is_linear_within_its_bucket() -> None:
    counts = [0, 10, 10, 0]
    bounds = (1.0, 2.0, 4.0)
    assert quantile(counts, bounds, 0.0) == 1.0
    assert quantile(counts, bounds, 0.5) == 2.0
    assert quantile(counts, bounds, 0.75) == 3.0
    assert quantile(counts, bounds, 1.0) == 4.0


def test_a_quantile_above_all_bounds_is_the_last_bound_and_without_samples_nothing() -> None:
    assert quantile([0, 0, 5], (1.0, 2.0), 0.99) == 2.0
    assert math.isnan(quantile([0, 0, 0], (1.0, 2.0), 0.5))


def test_topics_and_subscriptions_have_a_rate_for_each_of_their_counters() -> None:
    topic, delivered = TopicCounters(), DeliveryCounters()
    topic_rates, delivery_rates = TopicRates(0, topic), DeliveryRates(0)
    topic.messages_in, topic.bytes_in, topic.entries_in = 20, 2000, 2
    topic.publish_latency_ms.add(LATENCY_BOUNDS_MS[0])
    topic.entry_size_bytes.add(1000)
    delivered.messages_out, delivered.bytes_out = 40, 4000
    delivered.redelivered_messages, delivered.acked_messages = 2, 4
    ledger = LedgerCounters()
    ledger.entries_read, ledger.bytes_read, ledger.store_entries_read, ledger.mark_deletes = 8, 800, 4, 2
    topic_rates.update(topic, ledger, 2000)
    delivery_rates.update(delivered, 2000)
    assert topic_rates.messages_in.per_second == 10
    assert topic_rates.bytes_in.per_second == 1000
    assert topic_rates.entries_in.per_second == 1
    assert (topic_rates.entries_in.count, topic_rates.average_message_bytes) == (2, 100)
    assert (topic_rates.entries_read.per_second, topic_rates.bytes_read.per_second) == (4, 400)
    assert (topic_rates.store_entries_read.per_second, topic_rates.mark_deletes.per_second) == (2, 1)
    assert topic_rates.publish_latency_ms.counts[0] == 1
    assert topic_rates.entry_size_bytes.total == 1000
    assert delivery_rates.messages_out.per_second == 20
    assert delivery_rates.bytes_out.per_second == 2000
    assert delivery_rates.redelivered_messages.per_second == 1
    assert delivery_rates.acked_messages.per_second == 2


def test_a_producer_is_measured_in_messages_bytes_and_chunks() -> None:
    counters, rates = ProducerCounters(), ProducerRates(now_ms=0)
    counters.messages_in, counters.bytes_in, counters.chunks_in = 10, 1000, 4
    rates.update(counters, now_ms=2000)
    assert (rates.messages_in.per_second, rates.bytes_in.per_second, rates.chunks_in.per_second) == (5, 500, 2)
