from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from tests.unit.admin.fake_broker import NO_LIMITS, FakeBroker, FakeConsumer, FakeDispatcher, FakeProducer

from pybroker.admin.prometheus import LINES_PER_SLICE, MetricsPage, escape
from pybroker.admin.rate_sampler import RateSampler
from pybroker.broker.service import BrokerService
from pybroker.config import BrokerConfig
from pybroker.model.policies import BacklogQuota
from pybroker.model.position import Position

TOPIC = 'cluster="standalone",namespace="public/default",topic="persistent://public/default/t"'
SUBSCRIPTION = f'{TOPIC},subscription="s"'


class Scrapes:
    """A fake broker with the page over it."""

    def __init__(self, **settings: Any) -> None:
        self.broker = FakeBroker(BrokerConfig(**settings))
        service = cast(BrokerService, self.broker)
        self.rates = RateSampler(service, self.broker.clock)
        self._page = MetricsPage(service, self.rates)

    def page(self) -> str:
        return "".join(self._page.slices())

    def slices(self) -> list[str]:
        return list(self._page.slices())

    def value(self, name: str, labels: str) -> float:
        """The one value of a sample."""
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
    scrapes.broker.clock.now_ms += 60_000
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
        "pulsar_out_bytes_total": 600,
        "pulsar_out_messages_total": 60,
    }
    assert {name: scrapes.value(name, SUBSCRIPTION) for name in expected} == expected
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
    scrapes.broker.stats.active_connections = 5
    scrapes.broker.ledgers.cache.hits_total = 120
    scrapes.broker.stats.publish_latency_ms.add(0.5, 100)
    scrapes.broker.clock.now_ms += 60_000
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
    connection = f'{cluster},broker="127.0.0.1",metric="broker_connection"'
    assert scrapes.value("pulsar_active_connections", connection) == 5


def test_every_metric_is_one_block_behind_its_type_and_begins_with_the_cluster() -> None:
    scrapes = Scrapes(cluster_name="east")
    for index in range(3):
        scrapes.broker.add_topic(f"t-{index}").subscribe("s")
    seen: set[str] = set()
    current, kind = "", ""
    for line in scrapes.page().splitlines():
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current not in seen
            seen.add(current)
        else:
            name = line.partition("{")[0]
            suffixes = {
                "gauge": [""],
                "counter": ["_total"],
                "summary": ["", "_sum", "_count"],
                "histogram": ["_bucket", "_sum", "_count"],
            }[kind]
            assert name in {current + suffix for suffix in suffixes}, line
            assert line.startswith(f'{name}{{cluster="east"'), line
            float(line.rpartition(" ")[2])
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= seen


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


def test_the_page_comes_in_slices_also_while_the_topics_are_read() -> None:
    scrapes = Scrapes()
    for index in range(LINES_PER_SLICE * 2):
        scrapes.broker.add_topic(f"t-{index}")
    slices = scrapes.slices()
    assert [bool(text) for text in slices[:3]] == [False, False, True]
    assert max(text.count("\n") for text in slices) <= LINES_PER_SLICE


def test_a_topic_that_goes_during_a_scrape_is_still_written() -> None:
    scrapes = Scrapes()
    for index in range(LINES_PER_SLICE * 2):
        scrapes.broker.add_topic(f"t-{index}")
    slices = scrapes._page.slices()
    next(slices)
    scrapes.broker.topics.clear()
    assert f"t-{LINES_PER_SLICE}" in "".join(slices)
    assert "t-0" not in scrapes.page()


async def test_the_windows_of_an_unloaded_topic_are_forgotten() -> None:
    scrapes = Scrapes()
    topic = scrapes.broker.add_topic("t")
    subscription = topic.subscribe("s")
    topic.counters.messages_in = subscription.counters.messages_out = 60
    scrapes.broker.clock.now_ms += 60_000
    await scrapes.rates.sample()
    assert scrapes.rates.topic(cast(Any, topic)).messages_in.per_second == 1
    scrapes.broker.topics.clear()
    await scrapes.rates.sample()
    assert scrapes.rates.topic(cast(Any, topic)).messages_in.per_second == 0
    assert scrapes.rates.subscription(cast(Any, subscription)).messages_out.per_second == 0
