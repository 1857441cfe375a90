"""The `/metrics` page: Pulsar's names over our counters, read at scrape time.

Owns names, labels and the text format. What must always hold: one `# TYPE` line for each metric with all its samples
behind it, `cluster` as the first label of every sample, and no more than one slice of work between two yields. Rows
of topics and subscriptions are written by hand: the client library needs some 13 µs a row, which a broker with 10,000
topics has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from math import isnan
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, ProcessCollector

from pybroker import __version__
from pybroker.broker.backlog_quota import estimated_backlog_bytes
from pybroker.model.rates import BucketsWindow, DeliveryRates, TopicRates, quantile

if TYPE_CHECKING:
    from pybroker.admin.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService
    from pybroker.broker.subscription import Subscription
    from pybroker.broker.topic import Topic
    from pybroker.dispatch.dispatcher import Dispatcher

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LINES_PER_SLICE = 200
SYSTEM_NAMESPACE = "pulsar/system"

_LATENCY_SUFFIXES = ("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000", "overflow")
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
_QUANTILES = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999, 1.0)

Number = int | float


class _SubscriptionSource(NamedTuple):
    """Where the figures of one subscription come from."""

    subscription: Subscription
    rates: DeliveryRates
    dispatcher: Dispatcher | None


class _TopicSource(NamedTuple):
    """Where the figures of one topic come from; `delivered` holds the values of its subscriptions."""

    topic: Topic
    rates: TopicRates
    delivered: list[_Values]


class _Row(NamedTuple):
    """The labels of one object and its values, in the order of its table of metrics."""

    labels: str
    values: _Values


_Values = list[Number]
_SubscriptionMetric = tuple[str, Callable[[_SubscriptionSource], Number]]
_TopicMetric = tuple[str, Callable[[_TopicSource], Number]]

_SUBSCRIPTION_METRICS: tuple[_SubscriptionMetric, ...] = (
    ("pulsar_subscription_back_log", lambda s: s.subscription.cursor.backlog_entries),
    (
        "pulsar_subscription_back_log_no_delayed",
        lambda s: s.subscription.cursor.backlog_entries - s.subscription.delayed.entry_count,
    ),
    ("pulsar_subscription_delayed", lambda s: s.subscription.delayed.entry_count),
    ("pulsar_subscription_delayed_message_index_size_bytes", lambda s: s.subscription.delayed.index_size_bytes),
    ("pulsar_subscription_in_replay", lambda s: s.dispatcher.replay_entry_count if s.dispatcher else 0),
    ("pulsar_subscription_msg_rate_out", lambda s: s.rates.messages_out.per_second),
    ("pulsar_subscription_msg_throughput_out", lambda s: s.rates.bytes_out.per_second),
    ("pulsar_subscription_msg_rate_redeliver", lambda s: s.rates.redelivered_messages.per_second),
    ("pulsar_subscription_msg_ack_rate", lambda s: s.rates.acked_messages.per_second),
    ("pulsar_subscription_msg_rate_expired", lambda s: s.rates.expired_entries.per_second),
    ("pulsar_subscription_total_msg_expired", lambda s: s.subscription.counters.expired_entries),
    ("pulsar_subscription_last_expire_timestamp", lambda s: s.subscription.counters.last_expired_ms),
    ("pulsar_subscription_unacked_messages", lambda s: s.dispatcher.unacked_messages if s.dispatcher else 0),
    (
        "pulsar_subscription_blocked_on_unacked_messages",
        lambda s: int(s.dispatcher.blocked) if s.dispatcher else 0,
    ),
    ("pulsar_subscription_consumers_count", lambda s: len(s.subscription.consumers)),
    ("pulsar_subscription_last_acked_timestamp", lambda s: s.subscription.counters.last_acked_ms),
    ("pulsar_subscription_last_consumed_flow_timestamp", lambda s: s.subscription.counters.last_consumed_flow_ms),
    ("pulsar_subscription_last_consumed_timestamp", lambda s: s.subscription.counters.last_consumed_ms),
    (
        "pulsar_subscription_last_mark_delete_advanced_timestamp",
        lambda s: s.subscription.counters.last_mark_delete_advanced_ms,
    ),
    ("pulsar_out_bytes_total", lambda s: s.subscription.counters.bytes_out),
    ("pulsar_out_messages_total", lambda s: s.subscription.counters.messages_out),
)
_SUBSCRIPTION_INDEX = {name: index for index, (name, _) in enumerate(_SUBSCRIPTION_METRICS)}


def _of_subscriptions(name: str) -> Callable[[_TopicSource], Number]:
    """A topic's figure that is the sum of one figure of its subscriptions."""
    index = _SUBSCRIPTION_INDEX[name]
    return lambda source: sum(values[index] for values in source.delivered)


def _buckets(name: str, suffixes: tuple[str, ...], window: Callable[[TopicRates], BucketsWindow]) -> list[_TopicMetric]:
    """The rows of one bucket metric: the samples of each bucket alone in the last window, then their number and sum."""

    def bucket(index: int) -> Callable[[_TopicSource], Number]:
        return lambda source: window(source.rates).counts[index]

    metrics: list[_TopicMetric] = [(f"{name}_{suffix}", bucket(index)) for index, suffix in enumerate(suffixes)]
    metrics.append((f"{name}_count", lambda source: window(source.rates).count))
    metrics.append((f"{name}_sum", lambda source: window(source.rates).total))
    return metrics


# In the rows of a namespace each of these is the sum over its topics.
_TOPIC_METRICS: tuple[_TopicMetric, ...] = (
    ("pulsar_subscriptions_count", lambda t: len(t.topic.subscriptions)),
    ("pulsar_producers_count", lambda t: len(t.topic.producers)),
    ("pulsar_consumers_count", _of_subscriptions("pulsar_subscription_consumers_count")),
    ("pulsar_rate_in", lambda t: t.rates.messages_in.per_second),
    ("pulsar_rate_out", _of_subscriptions("pulsar_subscription_msg_rate_out")),
    ("pulsar_throughput_in", lambda t: t.rates.bytes_in.per_second),
    ("pulsar_throughput_out", _of_subscriptions("pulsar_subscription_msg_throughput_out")),
    ("pulsar_in_bytes_total", lambda t: t.topic.counters.bytes_in),
    ("pulsar_in_messages_total", lambda t: t.topic.counters.messages_in),
    ("pulsar_msg_backlog", _of_subscriptions("pulsar_subscription_back_log")),
    ("pulsar_storage_size", lambda t: t.topic.ledger.ledgers.size_bytes),
    ("pulsar_storage_logical_size", lambda t: t.topic.ledger.ledgers.size_bytes),
    ("pulsar_storage_backlog_size", lambda t: estimated_backlog_bytes(t.topic)),
    ("pulsar_storage_write_rate", lambda t: t.rates.entries_in.per_second),
    *_buckets("pulsar_storage_write_latency", _LATENCY_SUFFIXES, lambda rates: rates.publish_latency_ms),
    *_buckets("pulsar_entry_size", _SIZE_SUFFIXES, lambda rates: rates.entry_size_bytes),
)
# Of single topics only: a sum over a namespace would say nothing.
_LIMIT_METRICS: tuple[_TopicMetric, ...] = (
    ("pulsar_storage_backlog_quota_limit", lambda t: t.topic.policies.size_quota.limitSize),
    ("pulsar_storage_backlog_quota_limit_time", lambda t: t.topic.policies.age_quota.limitTime),
    ("pulsar_storage_backlog_age_seconds", lambda t: t.topic.backlog_age_s),
)
_TOPIC_INDEX = {name: index for index, (name, _) in enumerate(_TOPIC_METRICS)}

# Shown once more for the whole broker, summed over its topics.
_BROKER_SUMS = (
    "subscriptions_count",
    "producers_count",
    "consumers_count",
    "rate_in",
    "rate_out",
    "throughput_in",
    "throughput_out",
    "storage_size",
    "storage_logical_size",
    "storage_write_rate",
    "msg_backlog",
)


class _Reading:
    """All rows of one scrape, and the sums over them."""

    def __init__(self) -> None:
        self.topic_count = 0
        self.topics: list[_Row] = []
        self.limits: list[_Row] = []
        self.evictions: list[_Row] = []
        self.size_evictions = 0
        self.age_evictions = 0
        self.subscriptions: list[_Row] = []
        self.topic_counts: dict[str, int] = {}  # by namespace
        self.namespaces: dict[str, _Values] = {}
        self.broker: _Values = [0] * len(_TOPIC_METRICS)
        # By whether the bytes are the system namespace's.
        self.bytes_in = {True: 0, False: 0}
        self.bytes_out = {True: 0, False: 0}


class MetricsPage:
    """Writes the page. The label texts of loaded objects are kept from one scrape to the next."""

    def __init__(self, broker: BrokerService, rates: RateSampler) -> None:
        self._broker = broker
        self._rates = rates
        self._cluster = f'cluster="{escape(broker.config.cluster_name)}"'
        self._labels: dict[str, str] = {}
        # Of our own: the library's default registry belongs to whoever embeds the broker.
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

    def slices(self) -> Iterator[str]:
        """The page in pieces of about a millisecond of work each; some are empty."""
        lines = self._lines()
        while batch := list(islice(lines, LINES_PER_SLICE)):
            yield "".join(batch)

    def _lines(self) -> Iterator[str]:
        reading = _Reading()
        yield from self._read(reading)
        yield from self._broker_lines(reading)
        yield from self._process_lines()
        yield from self._count_lines("pulsar_topics_count", reading.topic_counts)
        if self._broker.config.expose_topic_level_metrics_in_prometheus:
            yield from _table(_TOPIC_METRICS, reading.topics)
            yield from _constant("pulsar_storage_offloaded_size", 0, reading.topics)
            yield from _table(_LIMIT_METRICS, reading.limits)
            yield from _table((("pulsar_storage_backlog_quota_exceeded_evictions_total", None),), reading.evictions)
            yield from _table(_SUBSCRIPTION_METRICS, reading.subscriptions)
        else:
            rows = [_Row(f"{{{self._namespace(name)}}}", values) for name, values in reading.namespaces.items()]
            yield from _table(_TOPIC_METRICS, rows)

    def _read(self, reading: _Reading) -> Iterator[str]:
        """Fill `reading`; the empty lines that come out are where the caller may pause."""
        labels: dict[str, str] = {}
        for name, topic in list(self._broker.topics.items()):
            known = self._labels.get(name)
            labels[name] = known or f'{self._namespace(str(topic.name.namespace))},topic="{escape(name)}"'
            delivered = []
            for subscription_name, subscription in topic.subscriptions.items():
                delivery = _SubscriptionSource(
                    subscription, self._rates.subscription(subscription), subscription.dispatcher
                )
                values = [read(delivery) for _, read in _SUBSCRIPTION_METRICS]
                text = f'{{{labels[name]},subscription="{escape(subscription_name)}"}}'
                reading.subscriptions.append(_Row(text, values))
                delivered.append(values)
                yield ""
            self._add(reading, topic, f"{{{labels[name]}}}", delivered)
            yield ""
        self._labels = labels

    def _add(self, reading: _Reading, topic: Topic, labels: str, delivered: list[_Values]) -> None:
        source = _TopicSource(topic, self._rates.topic(topic), delivered)
        values = [read(source) for _, read in _TOPIC_METRICS]
        namespace = str(topic.name.namespace)
        reading.topic_count += 1
        reading.topics.append(_Row(labels, values))
        reading.limits.append(_Row(labels, [read(source) for _, read in _LIMIT_METRICS]))
        for kind, count in (("size", topic.counters.size_evictions), ("time", topic.counters.age_evictions)):
            reading.evictions.append(_Row(f'{labels[:-1]},quota_type="{kind}"}}', [count]))
        reading.size_evictions += topic.counters.size_evictions
        reading.age_evictions += topic.counters.age_evictions
        reading.topic_counts[namespace] = reading.topic_counts.get(namespace, 0) + 1
        sums = reading.namespaces.setdefault(namespace, [0] * len(values))
        for index, value in enumerate(values):
            sums[index] += value
            reading.broker[index] += value
        is_system = namespace == SYSTEM_NAMESPACE
        counters = topic.counters
        bytes_out = _SUBSCRIPTION_INDEX["pulsar_out_bytes_total"]
        reading.bytes_in[is_system] += counters.bytes_in
        reading.bytes_out[is_system] += counters.bytes_out_of_removed + sum(int(row[bytes_out]) for row in delivered)

    def _broker_lines(self, reading: _Reading) -> Iterator[str]:
        yield from self._gauge("pulsar_version_info", 1, f'version="{__version__}",commit=""')
        yield from self._gauge("pulsar_broker_topics_count", reading.topic_count)
        for name in _BROKER_SUMS:
            yield from self._gauge(f"pulsar_broker_{name}", reading.broker[_TOPIC_INDEX[f"pulsar_{name}"]])
        for direction, label, by_system in (
            ("in", "system_topic", reading.bytes_in),
            ("out", "system_subscription", reading.bytes_out),
        ):
            name = f"pulsar_broker_{direction}_bytes_total"
            yield _type_line(name)
            for is_system, total in by_system.items():
                yield f'{name}{{{self._cluster},{label}="{str(is_system).lower()}"}} {total}\n'
        yield from self._quota_lines(reading)
        yield from self._publish_latency_lines()
        stats = self._broker.stats
        yield from self._counter("pulsar_broker_lookup_answers", stats.lookups)
        yield from self._counter("pulsar_broker_lookup_failures", stats.lookup_failures)
        yield from self._counter("topic_load_failed", stats.topic_load_failures)
        yield from self._gauge("pulsar_broker_throttled_connections", stats.throttled_connections)
        yield from self._gauge("pybroker_pending_publish_bytes", stats.pending_publish_bytes)
        yield from self._gauge("pybroker_loop_lag_max_ms", stats.loop_lag_max_ms)
        yield from self._gauge("pybroker_loop_lag_ms", stats.loop_lag_ms)
        yield from self._counter("pybroker_bugs", stats.bugs)
        yield from self._counter("pybroker_skipped_damaged_entries", stats.skipped_damaged_entries)
        for name, value in self._broker.ledgers.store.figures().items():
            if name == "damaged_entries":
                yield from self._counter("pybroker_storage_damaged_entries", int(value))
            else:
                yield from self._gauge(f"pybroker_store_{name}", value)
        yield from self._connection_lines()
        yield from self._cache_lines()

    def _connection_lines(self) -> Iterator[str]:
        stats = self._broker.stats
        broker = f'broker="{escape(self._host())}",metric="broker_connection"'
        yield from self._gauge("pulsar_active_connections", stats.active_connections, broker)
        yield from self._gauge("pulsar_connection_created_total_count", stats.connections_created, broker)
        yield from self._gauge(
            "pulsar_connection_create_success_count", stats.connections_created - stats.connections_failed, broker
        )
        yield from self._gauge("pulsar_connection_create_fail_count", stats.connections_failed, broker)
        yield from self._gauge("pulsar_connection_closed_total_count", stats.connections_closed, broker)

    def _cache_lines(self) -> Iterator[str]:
        cache = self._broker.ledgers.cache
        yield from self._gauge("pulsar_ml_count", len(self._broker.topics))
        yield from self._gauge("pulsar_ml_cache_used_size", cache.size_bytes)
        yield from self._gauge("pulsar_ml_cache_entries", cache.entry_count)
        yield from self._gauge("pulsar_ml_cache_hits_rate", self._rates.cache_hits.per_second)
        yield from self._gauge("pulsar_ml_cache_misses_rate", self._rates.cache_misses.per_second)
        yield from self._counter("pulsar_ml_cache_evicted_entries", cache.evicted_entries_total)

    def _quota_lines(self, reading: _Reading) -> Iterator[str]:
        name = "pulsar_broker_storage_backlog_quota_exceeded_evictions_total"
        yield _type_line(name)
        yield f'{name}{{{self._cluster},quota_type="size"}} {reading.size_evictions}\n'
        yield f'{name}{{{self._cluster},quota_type="time"}} {reading.age_evictions}\n'
        name = "pulsar_storage_backlog_quota_check_duration_seconds"
        durations = self._broker.maintenance.quota_check_duration_s
        yield f"# TYPE {name} histogram\n"
        bounds = (*map(str, durations.bounds), "+Inf")
        for bound, count in zip(bounds, accumulate(durations.counts), strict=True):
            yield f'{name}_bucket{{{self._cluster},le="{bound}"}} {count}\n'
        yield f"{name}_count{{{self._cluster}}} {sum(durations.counts)}\n"
        yield f"{name}_sum{{{self._cluster}}} {_text(durations.total)}\n"

    def _publish_latency_lines(self) -> Iterator[str]:
        name = "pulsar_broker_publish_latency"
        buckets = self._broker.stats.publish_latency_ms
        window = self._rates.publish_latency_ms
        yield f"# TYPE {name} summary\n"
        for fraction in _QUANTILES:
            value = quantile(window.counts, buckets.bounds, fraction)
            yield f'{name}{{{self._cluster},quantile="{fraction}"}} {_text(value)}\n'
        yield f"{name}_count{{{self._cluster}}} {sum(buckets.counts)}\n"
        yield f"{name}_sum{{{self._cluster}}} {_text(buckets.total)}\n"

    def _process_lines(self) -> Iterator[str]:
        for metric in self._registry.collect():
            yield f"# TYPE {metric.name} {metric.type}\n"
            for sample in metric.samples:
                own = "".join(f',{key}="{escape(value)}"' for key, value in sample.labels.items())
                yield f"{sample.name}{{{self._cluster}{own}}} {_text(sample.value)}\n"

    def _count_lines(self, name: str, counts: dict[str, int]) -> Iterator[str]:
        yield _type_line(name)
        for namespace, count in counts.items():
            yield f"{name}{{{self._namespace(namespace)}}} {count}\n"

    def _gauge(self, name: str, value: Number, labels: str = "") -> Iterator[str]:
        yield _type_line(name)
        yield f"{name}{{{self._cluster}{',' if labels else ''}{labels}}} {_text(value)}\n"

    def _counter(self, name: str, total: int) -> Iterator[str]:
        yield f"# TYPE {name} counter\n"
        yield f"{name}_total{{{self._cluster}}} {total}\n"

    def _namespace(self, name: str) -> str:
        return f'{self._cluster},namespace="{escape(name)}"'

    def _host(self) -> str:
        addresses = self._broker.addresses.resolve(None)
        return urlsplit(addresses.broker_url or addresses.broker_url_tls).hostname or ""


def _table(metrics: Iterable[tuple[str, object]], rows: list[_Row]) -> Iterator[str]:
    """Every metric of a table with the values of all rows."""
    for index, (name, _) in enumerate(metrics):
        if rows:
            yield _type_line(name)
        for labels, values in rows:
            yield f"{name}{labels} {values[index]}\n"


def _constant(name: str, value: int, rows: list[_Row]) -> Iterator[str]:
    """A figure that is the same for every row."""
    if rows:
        yield _type_line(name)
    for row in rows:
        yield f"{name}{row.labels} {value}\n"


def _type_line(name: str) -> str:
    # Pulsar declares its own figures as gauges, those that only grow as well; dashboards do not mind.
    return f"# TYPE {name} gauge\n"


def _text(value: Number) -> str:
    return "NaN" if isnan(value) else str(value)


def escape(text: str) -> str:
    """A label value as the text format wants it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
