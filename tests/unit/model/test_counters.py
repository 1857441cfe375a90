"""Buckets count every sample once, in the first bucket whose bound it does not exceed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.support import EXAMPLES

from pybroker.model.counters import (
    ENTRY_SIZE_BOUNDS_BYTES,
    LATENCY_BOUNDS_MS,
    BrokerStats,
    Buckets,
    DeliveryCounters,
    ProducerCounters,
    TopicCounters,
)
from pybroker.model.request_refusals import Refusals


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0, 0), (0.5, 0), (0.51, 1), (1, 1), (200, 7), (999, 8), (1000, 8), (1000.1, 9), (1e9, 9)],
)
def test_a_bound_belongs_to_its_own_bucket(value: float, bucket: int) -> None:
    buckets = Buckets(LATENCY_BOUNDS_MS)
    buckets.add(value, 3)
    assert buckets.counts == [3 if index == bucket else 0 for index in range(len(LATENCY_BOUNDS_MS) + 1)]
    assert buckets.total == value * 3


@EXAMPLES
@given(
    st.lists(
        st.one_of(st.integers(0, 200), st.sampled_from([511, 512, 513, 1024, 1025, 20_000])), min_size=1, max_size=20
    )
)
def test_a_run_of_payloads_counts_as_each_of_them_alone(sizes: list[int]) -> None:
    one_by_one = Buckets(ENTRY_SIZE_BOUNDS_BYTES)
    for size in sizes:
        one_by_one.add(size)
    at_once = Buckets(ENTRY_SIZE_BOUNDS_BYTES)
    at_once.add_sizes([bytes(size) for size in sizes], sum(sizes))
    assert (at_once.counts, at_once.total) == (one_by_one.counts, one_by_one.total)


def test_bounds_rise() -> None:
    for bounds in (LATENCY_BOUNDS_MS, ENTRY_SIZE_BOUNDS_BYTES):
        assert list(bounds) == sorted(set(bounds))


@pytest.mark.parametrize("counters", [TopicCounters, ProducerCounters, DeliveryCounters, BrokerStats])
def test_counters_start_at_zero_and_have_no_others(counters: type) -> None:
    made = counters()
    for name in counters.__slots__:  # type: ignore[attr-defined]
        value = getattr(made, name)
        if isinstance(value, Buckets):
            value = any(value.counts) or value.total
        elif isinstance(value, Refusals):
            value = list(value.totals())
        assert not value, name
    with pytest.raises(AttributeError):
        made.misspelt = 1


def test_topics_do_not_share_their_buckets() -> None:
    first, second = TopicCounters(), TopicCounters()
    first.publish_latency_ms.add(1)
    assert not any(second.publish_latency_ms.counts)


def test_one_sample_of_two_histograms_is_counted_in_the_same_bucket_of_both() -> None:
    topic, broker = Buckets(LATENCY_BOUNDS_MS), Buckets(LATENCY_BOUNDS_MS)
    topic.add_to_both(broker, 7, 3)
    alone = Buckets(LATENCY_BOUNDS_MS)
    alone.add(7, 3)
    assert topic.counts == broker.counts == alone.counts
    assert topic.total == broker.total == alone.total
