from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.support.metric_rules import problems
from tests.unit.admin.fake_broker import NO_LIMITS, FakeBroker, FakeClock, FakeConsumer, FakeDispatcher, FakeProducer

from pybroker.admin.metrics.exposition_text import escape
from pybroker.admin.metrics.metrics_page import MetricsPage
from pybroker.admin.stats.rate_sampler import RateSampler
from pybroker.broker.service import BrokerService
from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.config import BrokerConfig
from pybroker.model.policies import BacklogQuota
from pybroker.model.position import Position
from pybroker.runtime.time_slices import SLICE_MS

TOPIC = 'cluster="standalone",namespace="public/default",topic="persistent://public/default/t"'
SUBSCRIPTION = f'{TOPIC},subscription="s"'


class Scrapes:
    """A fake broker and its metrics page."""

    def __init__(self, **settings: Any) -> None:
        self.broker = FakeBroker(BrokerConfig(**settings))
        service = cast(BrokerService, self.broker)
        self.rates = RateSampler(service, self.broker.runtime.clock)
        self._page = MetricsPage(service, self.rates)

    def page(self) -> str:
        return "".join(self._page.slices())

    def slices(self) -> list[str]:
        return list(self._page.slices())

    def value(self, name: str, labels: str) -> float:
        """Return the only value of a sample."""
        prefix = f"{name}{{{labels}}} "
        values = [line.removeprefix(prefix) for line in self.page().splitlines() if line.startswith(prefix)]
        assert len(values) == 1, (prefix, values)
        return float(values[0])


async def test_a_topics_counters_and_rates_are_shown() -> None:
    scrapes = Scrapes()
    topic = scrapes.broker.add_topic("t")
    subscription = topic.subscribe("s")
    subscription.dispatcher = FakeDispatcher(unacked_messages=3, replay_entry_count=2, blocked=True)
    subscription.consumers = [FakeConsumer()]
    subscription.cursor.backlog_entries = 7
    subscription.counters.messages_out, subscription.counters.bytes_out = 60, 600
    topic.producers = {"p": FakeProducer()}
    subscription.counters.expired_entries = 30
    topic.ledger.ledgers.add_ledger(1)
    topic.ledger.ledgers.added(1, entry_count=10, message_count=10, size_bytes=1000)
    subscription.cursor.mark_delete_position = Position(1, 2)
    topic.policies = replace(NO_LIMITS, size_quota=BacklogQuota(limitSize=5000), age_quota=BacklogQuota(limitTime=60))
    topic.backlog_age_s = 9
    topic.counters.messages_in, topic.counters.bytes_in, topic.counters.entries_in = 120, 1200, 12
    topic.counters.entry_size_bytes.add(100, 12)
    topic.counters.publish_latency_ms.add(3, 12)
    topic.counters.publish_rate_limited = 4
    topic.ledger.counters.entries_read, topic.ledger.counters.store_entries_read = 30, 6
    topic.ledger.counters.mark_deletes, topic.counters.publish_errors = 60, 2
    subscription.counters.throttled_events["Msg", "Topic"] = 8
    subscription.counters.filter_processed = 9
    scrapes.broker.runtime.clock.now_ms += 60_000  # type: ignore[attr-defined]
    await scrapes.rates.sample()
    expected = {
        "pulsar_subscriptions_count": 1,
        "pulsar_producers_count": 1,
        "pulsar_consumers_count": 1,
        "pulsar_rate_in": 2,
        "pulsar_throughput_in": 20,
        "pulsar_rate_out": 1,
        "pulsar_throughput_out": 10,
        "pulsar_in_bytes_total": 1200,
        "pulsar_in_messages_total": 120,
        "pulsar_msg_backlog": 7,
        "pulsar_storage_size": 1000,
        "pulsar_storage_logical_size": 1000,
        "pulsar_storage_backlog_size": 700,
        "pulsar_storage_offloaded_size": 0,
        "pulsar_storage_backlog_quota_limit": 5000,
        "pulsar_storage_backlog_quota_limit_time": 60,
        "pulsar_storage_backlog_age_seconds": 9,
        "pulsar_storage_write_rate": 0.2,
        "pulsar_storage_read_rate": 0.5,
        "pulsar_storage_read_cache_misses_rate": 0.1,
        "pulsar_average_msg_size": 10,
        "pulsar_publish_rate_limit_times": 4,
        "pulsar_storage_ledger_write_latency_le_5": 12,
        "pulsar_storage_write_latency_le_5": 12,
        "pulsar_storage_write_latency_overflow": 0,
        "pulsar_storage_write_latency_count": 12,
        "pulsar_storage_write_latency_sum": 36,
        "pulsar_entry_size_le_128": 12,
        "pulsar_entry_size_le_overflow": 0,
        "pulsar_entry_size_count": 12,
        "pulsar_entry_size_sum": 1200,
    }
    assert {name: scrapes.value(name, TOPIC) for name in expected} == expected
    expected = {
        "pulsar_subscription_back_log": 7,
        "pulsar_subscription_delayed": 0,
        "pulsar_subscription_in_replay": 2,
        "pulsar_subscription_msg_rate_out": 1,
        "pulsar_subscription_msg_throughput_out": 10,
        "pulsar_subscription_msg_rate_redeliver": 0,
        "pulsar_subscription_msg_rate_expired": 0.5,
        "pulsar_subscription_total_msg_expired": 30,
        "pulsar_subscription_unacked_messages": 3,
        "pulsar_subscription_blocked_on_unacked_messages": 1,
        "pulsar_subscription_consumers_count": 1,
        "pulsar_subscription_filter_processed_msg_count": 9,
        "pulsar_out_bytes_total": 600,
        "pulsar_out_messages_total": 60,
    }
    assert {name: scrapes.value(name, SUBSCRIPTION) for name in expected} == expected
    throttled = "pulsar_subscription_dispatch_throttled_msg_events"
    assert scrapes.value(throttled, f'{SUBSCRIPTION},reason="topic"') == 8
    assert scrapes.value(throttled, f'{SUBSCRIPTION},reason="broker"') == 0
    ledgers = 'cluster="standalone",namespace="public/default/persistent"'
    expected = {
        "pulsar_ml_AddEntryMessagesRate": 0.2,
        "pulsar_ml_AddEntrySucceed": 12,
        "pulsar_ml_AddEntryErrors": 2,
        "pulsar_ml_ReadEntriesRate": 0.5,
        "pulsar_ml_ReadEntriesOpsCacheMissesRate": 0.1,
        "pulsar_ml_MarkDeleteRate": 1,
        "pulsar_ml_NumberOfMessagesInBacklog": 7,
        "pulsar_ml_StoredMessagesSize": 1000,
    }
    assert {name: scrapes.value(name, ledgers) for name in expected} == expected
    assert scrapes.value("pulsar_ml_AddEntryLatencyBuckets", f'{ledgers},quantile="1.0_5.0"') == 12 / 60
    assert scrapes.value("pulsar_ml_LedgerSwitchLatencyBuckets_OVERFLOW", ledgers) == 0
    assert scrapes.value("pulsar_ml_EntrySizeBuckets", f'{ledgers},quantile="0.0_128.0"') == 12 / 60
    assert scrapes.value("pulsar_topics_count", 'cluster="standalone",namespace="public/default"') == 1


async def test_broker_totals_are_the_sums_over_the_topics() -> None:
    scrapes = Scrapes()
    for name in ("public/default/a", "public/default/b", "pulsar/system/c"):
        topic = scrapes.broker.add_topic(f"persistent://{name}")
        topic.counters.bytes_in = 10
        topic.counters.messages_in = 60
        topic.counters.bytes_out_of_removed = 1
        topic.counters.size_evictions, topic.counters.age_evictions = 2, 1
        topic.subscribe("s").counters.bytes_out = 4
    scrapes.broker.runtime.stats.active_connections = 5
    reads = scrapes.broker.ledgers.counters
    reads.entries_read, reads.bytes_read, reads.store_entries_read, reads.store_bytes_read = 180, 1800, 60, 600
    scrapes.broker.runtime.stats.publish_latency_ms.add(0.5, 100)
    scrapes.broker.runtime.clock.now_ms += 60_000  # type: ignore[attr-defined]
    await scrapes.rates.sample()
    cluster = 'cluster="standalone"'
    assert scrapes.value("pulsar_broker_topics_count", cluster) == 3
    assert scrapes.value("pulsar_broker_subscriptions_count", cluster) == 3
    assert scrapes.value("pulsar_broker_rate_in", cluster) == 3
    assert scrapes.value("pulsar_broker_in_bytes_total", f'{cluster},system_topic="false"') == 20
    assert scrapes.value("pulsar_broker_in_bytes_total", f'{cluster},system_topic="true"') == 10
    assert scrapes.value("pulsar_broker_out_bytes_total", f'{cluster},system_subscription="false"') == 10
    evictions = "storage_backlog_quota_exceeded_evictions_total"
    assert scrapes.value(f"pulsar_broker_{evictions}", f'{cluster},quota_type="size"') == 6
    assert scrapes.value(f"pulsar_broker_{evictions}", f'{cluster},quota_type="time"') == 3
    labels = f'{cluster},namespace="public/default",topic="persistent://public/default/a",quota_type="size"'
    assert scrapes.value(f"pulsar_{evictions}", labels) == 2
    assert scrapes.value("pulsar_broker_publish_latency", f'{cluster},quantile="0.99"') == pytest.approx(0.495)
    assert scrapes.value("pulsar_broker_publish_latency_count", cluster) == 100
    assert scrapes.value("pulsar_ml_cache_hits_rate", cluster) == 2
    assert scrapes.value("pulsar_ml_cache_hits_throughput", cluster) == 20
    assert scrapes.value("pulsar_ml_cache_misses_rate", cluster) == 1
    assert scrapes.value("pulsar_ml_cache_misses_throughput", cluster) == 10
    connection = f'{cluster},broker="127.0.0.1",metric="broker_connection"'
    assert scrapes.value("pulsar_active_connections", connection) == 5


def test_every_metric_is_one_block_behind_its_type_and_begins_with_the_cluster() -> None:
    scrapes = Scrapes(cluster_name="east")
    for index in range(3):
        scrapes.broker.add_topic(f"t-{index}").subscribe("s")
    page = scrapes.page()
    assert problems(page) == []
    for line in page.splitlines():
        assert line.startswith("#") or line.partition("{")[2].startswith('cluster="east"'), line
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"} <= set(
        re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    )


def test_without_topics_no_topic_metric_is_announced() -> None:
    page = Scrapes().page()
    assert "pulsar_rate_in " not in page
    assert "pulsar_broker_rate_in " in page


def test_without_topic_level_the_rows_are_the_sums_of_a_namespace() -> None:
    scrapes = Scrapes(expose_topic_level_metrics_in_prometheus=False)
    for name in ("a", "b"):
        scrapes.broker.add_topic(name).counters.messages_in = 3
    assert scrapes.value("pulsar_in_messages_total", 'cluster="standalone",namespace="public/default"') == 6
    assert ',topic="' not in scrapes.page()


def test_names_with_quotes_and_backslashes_are_escaped() -> None:
    assert escape('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
    scrapes = Scrapes()
    scrapes.broker.add_topic('say "hi"').subscribe('"')
    labels = 'cluster="standalone",namespace="public/default",topic="persistent://public/default/say \\"hi\\""'
    assert scrapes.value("pulsar_subscription_back_log", f'{labels},subscription="\\""') == 0


class TickingClock(FakeClock):
    """A clock that advances a millisecond with each reading."""

    def monotonic_ms(self) -> float:
        self.now_ms += 1
        return self.now_ms


def test_the_page_comes_in_slices_also_while_the_topics_are_read() -> None:
    scrapes = Scrapes()
    scrapes.broker.runtime.clock = TickingClock()
    for index in range(20):
        scrapes.broker.add_topic(f"t-{index}")
    slices = scrapes.slices()
    assert [bool(text) for text in slices[:5]] == [False] * 5
    assert all(text.count("# TYPE") <= SLICE_MS for text in slices)
    scrapes.broker.runtime.clock = FakeClock()
    assert len(scrapes.slices()) == 1


def test_a_topic_that_goes_during_a_scrape_is_still_written() -> None:
    scrapes = Scrapes()
    scrapes.broker.runtime.clock = TickingClock()
    for index in range(20):
        scrapes.broker.add_topic(f"t-{index}")
    slices = scrapes._page.slices()
    next(slices)
    scrapes.broker.loaded.persistent.clear()
    assert "t-19" in "".join(slices)
    assert "t-0" not in scrapes.page()


async def test_the_windows_of_an_unloaded_topic_are_forgotten() -> None:
    scrapes = Scrapes()
    topic = scrapes.broker.add_topic("t")
    subscription = topic.subscribe("s")
    topic.counters.messages_in = subscription.counters.messages_out = 60
    scrapes.broker.runtime.clock.now_ms += 60_000  # type: ignore[attr-defined]
    await scrapes.rates.sample()
    assert scrapes.rates.topic(cast(Any, topic)).messages_in.per_second == 1
    scrapes.broker.loaded.persistent.clear()
    await scrapes.rates.sample()
    assert scrapes.rates.topic(cast(Any, topic)).messages_in.per_second == 0
    assert scrapes.rates.subscription(cast(Any, subscription)).messages_out.per_second == 0


def test_consumers_and_producers_have_rows_only_when_they_are_wanted() -> None:
    assert "pulsar_consumer_msg_rate_out" not in _with_clients().page()
    scrapes = _with_clients(
        expose_consumer_level_metrics_in_prometheus=True, expose_producer_level_metrics_in_prometheus=True
    )
    consumer = f'{SUBSCRIPTION},consumer_name="c",consumer_id="1"'
    assert scrapes.value("pulsar_consumer_available_permits", consumer) == 5
    assert scrapes.value("pulsar_consumer_unacked_messages", consumer) == 3
    assert scrapes.value("pulsar_out_messages_total", consumer) == 7
    assert scrapes.value("pulsar_out_messages_total", SUBSCRIPTION) == 0
    assert scrapes.value("pulsar_producer_msg_average_Size", f'{TOPIC},producer_name="p",producer_id="1"') == 0
    assert scrapes.page().count("# TYPE pulsar_out_messages_total counter") == 1


def _with_clients(**settings: Any) -> Scrapes:
    scrapes = Scrapes(**settings)
    topic = scrapes.broker.add_topic("t")
    consumer = FakeConsumer()
    consumer.counters.messages_out, consumer.state.permits, consumer.state.unacked_messages = 7, 5, 3
    topic.subscribe("s").consumers = [consumer]
    topic.producers = {"p": FakeProducer()}
    return scrapes


def test_cursors_backlog_sizes_and_bundles_have_rows_only_when_they_are_wanted() -> None:
    names = ("pulsar_ml_cursor_writeLedgerSize", "pybroker_subscription_backlog_bytes", "pulsar_bundle_topics_count")
    plain = _with_clients().page()
    assert not any(name in plain for name in names)
    scrapes = _with_clients(
        expose_managed_cursor_metrics_in_prometheus=True,
        expose_subscription_backlog_size_in_prometheus=True,
        expose_bundles_metrics_in_prometheus=True,
    )
    subscription = next(iter(scrapes.broker.loaded.persistent.values())).subscriptions["s"]
    subscription.cursor.writes, subscription.cursor.written_bytes = 4, 400
    cursor = 'cluster="standalone",namespace="public/default",ledger_name="public/default/persistent/t",cursor_name="s"'
    assert scrapes.value("pulsar_ml_cursor_persistLedgerSucceed", cursor) == 4
    assert scrapes.value("pulsar_ml_cursor_writeLedgerSize", cursor) == 400
    assert scrapes.value("pybroker_subscription_backlog_bytes", SUBSCRIPTION) == 0
    bundle = 'cluster="standalone",broker="127.0.0.1",bundle="public/default/0x00000000_0xffffffff",metric="bundle"'
    assert scrapes.value("pulsar_bundle_topics_count", bundle) == 1
    assert scrapes.value("pulsar_bundle_consumer_count", bundle) == 1


def test_without_managed_ledger_metrics_only_those_of_the_cache_are_left() -> None:
    page = _with_clients(expose_managed_ledger_metrics_in_prometheus=False).page()
    assert "pulsar_ml_AddEntrySucceed" not in page
    assert "pulsar_ml_cache_used_size" in page


def test_a_partition_can_have_a_label_of_its_own() -> None:
    scrapes = Scrapes(split_topic_and_partition_label_in_prometheus=True)
    scrapes.broker.add_topic("t-partition-3").counters.messages_in = 3
    scrapes.broker.add_topic("u").counters.messages_in = 4
    begin = 'cluster="standalone",namespace="public/default",topic="persistent://public/default/'
    assert scrapes.value("pulsar_in_messages_total", f'{begin}t",partition="3"') == 3
    assert scrapes.value("pulsar_in_messages_total", f'{begin}u",partition="-1"') == 4


def test_the_rows_of_a_namespace_hold_what_its_subscriptions_have_no_rows_for() -> None:
    scrapes = Scrapes(expose_topic_level_metrics_in_prometheus=False)
    for name in ("a", "b"):
        subscription = scrapes.broker.add_topic(name).subscribe("s")
        subscription.delayed.entry_count, subscription.counters.messages_out = 2, 5
    namespace = 'cluster="standalone",namespace="public/default"'
    assert scrapes.value("pulsar_subscription_delayed", namespace) == 4
    assert scrapes.value("pulsar_out_messages_total", namespace) == 10
    assert scrapes.value("pulsar_storage_backlog_quota_exceeded_evictions_total", f'{namespace},quota_type="time"') == 0


def test_transaction_buffer_of_topic_is_shown() -> None:
    scrapes = Scrapes()
    topic = scrapes.broker.add_topic("t")
    assert "pulsar_txn_tb_" not in scrapes.page()
    buffer = TransactionBuffer()
    buffer.committed_total, buffer.aborted_total = 3, 2
    topic.transactions.buffer = buffer
    assert scrapes.value("pulsar_txn_tb_active_total", TOPIC) == 0
    assert scrapes.value("pulsar_txn_tb_committed_total", TOPIC) == 3
    assert scrapes.value("pulsar_txn_tb_aborted_total", TOPIC) == 2


def test_readiness_and_expiry_of_certificate_are_shown() -> None:
    scrapes = Scrapes()
    cluster = 'cluster="standalone"'
    assert scrapes.value("pybroker_ready", cluster) == 1
    assert "pybroker_tls_certificate" not in scrapes.page()
    scrapes.broker.presence.is_closing = True
    scrapes.broker.runtime.stats.certificate_expires_s = 1.8e9
    assert scrapes.value("pybroker_ready", cluster) == 0
    assert scrapes.value("pybroker_tls_certificate_expiry_timestamp_seconds", cluster) == 1.8e9


async def test_histograms_and_summaries_add_up() -> None:
    scrapes = Scrapes()
    stats = scrapes.broker.runtime.stats
    stats.loop_lags_ms.add(0.4, 3)
    stats.loop_lags_ms.add(30)
    stats.lookup_ms.add(0.1, 10)
    stats.lookups, stats.lookup_failures = 10, 1
    cluster = 'cluster="standalone"'
    assert scrapes.value("pybroker_loop_tick_lag_seconds_bucket", f'{cluster},le="0.0005"') == 3
    assert scrapes.value("pybroker_loop_tick_lag_seconds_bucket", f'{cluster},le="0.05"') == 4
    assert scrapes.value("pybroker_loop_tick_lag_seconds_bucket", f'{cluster},le="+Inf"') == 4
    assert scrapes.value("pulsar_broker_lookup_count", cluster) == 10
    assert scrapes.value("pulsar_broker_lookup_answers_total", cluster) == 9


def test_every_metric_that_dashboards_use_most_is_on_the_page() -> None:
    scrapes = _with_clients(expose_consumer_level_metrics_in_prometheus=True)
    page = scrapes.page()
    missing = [name for name in MOST_USED.split() if f"\n{name}{{" not in page]
    assert missing == []


# Without metrics of transactions and replication.
MOST_USED = """
pulsar_topics_count pulsar_subscriptions_count pulsar_producers_count pulsar_consumers_count pulsar_rate_in
pulsar_rate_out pulsar_throughput_in pulsar_throughput_out pulsar_in_bytes_total pulsar_in_messages_total
pulsar_out_bytes_total pulsar_out_messages_total pulsar_msg_backlog pulsar_storage_size pulsar_storage_logical_size
pulsar_storage_backlog_size pulsar_storage_offloaded_size pulsar_storage_write_rate pulsar_storage_read_rate
pulsar_storage_write_latency_le_0_5 pulsar_storage_write_latency_le_1 pulsar_storage_write_latency_le_5
pulsar_storage_write_latency_le_10 pulsar_storage_write_latency_le_20 pulsar_storage_write_latency_le_50
pulsar_storage_write_latency_le_100 pulsar_storage_write_latency_le_200 pulsar_storage_write_latency_le_1000
pulsar_storage_write_latency_overflow pulsar_storage_write_latency_sum pulsar_storage_write_latency_count
pulsar_entry_size_le_128 pulsar_entry_size_le_512 pulsar_entry_size_le_1_kb pulsar_entry_size_le_2_kb
pulsar_entry_size_le_4_kb pulsar_entry_size_le_16_kb pulsar_entry_size_le_100_kb pulsar_entry_size_le_1_mb
pulsar_entry_size_le_overflow pulsar_entry_size_sum pulsar_entry_size_count pulsar_storage_backlog_quota_limit
pulsar_subscription_back_log pulsar_subscription_delayed pulsar_subscription_msg_rate_out
pulsar_subscription_msg_throughput_out pulsar_subscription_msg_rate_redeliver pulsar_subscription_unacked_messages
pulsar_subscription_blocked_on_unacked_messages pulsar_consumer_msg_rate_redeliver pulsar_broker_publish_latency
pulsar_broker_topics_count pulsar_broker_subscriptions_count pulsar_broker_producers_count
pulsar_broker_consumers_count pulsar_broker_rate_in pulsar_broker_rate_out pulsar_broker_throughput_in
pulsar_broker_throughput_out pulsar_version_info pulsar_active_connections pulsar_lb_cpu_usage pulsar_lb_memory_usage
pulsar_lb_directMemory_usage pulsar_lb_bandwidth_in_usage pulsar_lb_bandwidth_out_usage pulsar_ml_cache_hits_rate
pulsar_ml_cache_misses_rate pulsar_ml_cache_used_size pulsar_ml_cache_evictions process_cpu_seconds_total
process_resident_memory_bytes process_open_fds
"""
