"""Metrics of the broker: totals over topics, connections, lookups, load, and internals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector

from pybroker.admin.metrics import figures
from pybroker.admin.metrics.bookkeeper_metrics import bookkeeper_lines
from pybroker.admin.metrics.exposition_text import Number, Samples, number_text, type_line
from pybroker.admin.metrics.resource_group_metrics import resource_group_lines
from pybroker.admin.metrics.topic_metrics import EVICTION_TYPES, Reading
from pybroker.memory.memory_parts import DELAYED, PUBLISHES, WRITES
from pybroker.metadata.session_report import SessionState
from pybroker.version import __version__
from pybroker.wire import core

if TYPE_CHECKING:
    from pybroker.admin.stats.rate_sampler import RateSampler
    from pybroker.broker.service import BrokerService

# Summed over all topics, too.
_SUMS = (
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
    "storage_read_rate",
    "storage_read_cache_misses_rate",
    "msg_backlog",
)

MS_PER_S = 1000
METADATA_STORE = "metadata-store"
"""Value of the label `name`: there is one metadata store."""


def _in_seconds(name: str) -> str:
    return f"{name}econds" if name.endswith("_s") else name


class BrokerLines:
    """Writer of the broker's metrics."""

    def __init__(self, broker: BrokerService, rates: RateSampler, samples: Samples) -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._rates = rates
        self._samples = samples
        # The library's default registry belongs to the embedding program.
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

    def lines(self, reading: Reading) -> Iterator[str]:
        yield from self._totals(reading)
        yield from self._lookups()
        yield from self._topic_loads()
        yield from self._connections()
        yield from self._load()
        yield from self._cache()
        yield from resource_group_lines(self._samples, self._broker.broker_context.resource_groups, self._rates.groups)
        yield from self._metadata()
        yield from self._authentication()
        yield from self._internals()
        yield from self._process()

    def _totals(self, reading: Reading) -> Iterator[str]:
        samples, stats, namespaces = self._samples, self._runtime.stats, reading.namespaces.values()
        yield from samples.gauge("pulsar_version_info", 1, version=__version__, commit="")
        yield from samples.gauge("pulsar_broker_topics_count", sum(each.topic_count for each in namespaces))
        for name in _SUMS:
            total = sum(getattr(each.summed, f"pulsar_{name}") for each in namespaces)
            yield from samples.gauge(f"pulsar_broker_{name}", total)
        for direction, label, by_system in (
            ("in", "system_topic", reading.bytes_in),
            ("out", "system_subscription", reading.bytes_out),
        ):
            totals: dict[str, Number] = {str(is_system).lower(): total for is_system, total in by_system.items()}
            yield from samples.gauges(f"pulsar_broker_{direction}_bytes_total", label, totals)
        evictions: dict[str, Number] = {
            kind: sum(each.evictions[index] for each in namespaces) for index, kind in enumerate(EVICTION_TYPES)
        }
        name = "pulsar_broker_storage_backlog_quota_exceeded_evictions_total"
        yield from samples.gauges(name, "quota_type", evictions)
        name = "pulsar_storage_backlog_quota_check_duration_seconds"
        yield from samples.histogram(name, self._broker.maintenance.quota_check_duration_s)
        window = self._rates.broker.publish_latency_ms
        yield from samples.summary("pulsar_broker_publish_latency", stats.publish_latency_ms, window)
        yield from samples.gauge("pulsar_broker_throttled_connections", stats.throttled_connections)
        # Always 0: entries are delivered in the iteration that reads them.
        yield from samples.gauge("pulsar_broker_pending_bytes_to_dispatch", 0)

    def _lookups(self) -> Iterator[str]:
        samples, stats = self._samples, self._runtime.stats
        yield from samples.summary("pulsar_broker_lookup", stats.lookup_ms, self._rates.broker.lookup_ms)
        yield from samples.counter("pulsar_broker_lookup_answers", stats.lookups - stats.lookup_failures)
        yield from samples.counter("pulsar_broker_lookup_failures", stats.lookup_failures)
        # Always 0: one broker serves all topics.
        yield from samples.counter("pulsar_broker_lookup_redirects", stats.lookup_redirects)
        yield from samples.gauge("pulsar_broker_lookup_pending_requests", self._broker.pending_metadata_requests)

    def _topic_loads(self) -> Iterator[str]:
        samples, stats, rates = self._samples, self._runtime.stats, self._rates.broker
        yield from samples.gauge("pulsar_broker_topic_load_pending_requests", self._broker.topics.loading_count)
        yield from samples.summary("pulsar_topic_load_times", stats.topic_load_ms, rates.topic_load_ms)
        yield from samples.counter("topic_load_failed", stats.topic_load_failures)
        yield from self._about(figures.TOPIC_LOADS, figures.topic_load_figures(stats, rates))

    def _connections(self) -> Iterator[str]:
        yield from self._about(figures.CONNECTIONS, figures.connection_figures(self._runtime.stats))
        samples, broker = self._samples, self._broker
        yield from samples.gauge("pybroker_connections_limit", broker.descriptors.max_clients)
        yield from samples.counter("pybroker_connections_refused", broker.runtime.stats.connections_refused)
        name = "pybroker_client_refusals"
        yield type_line(name, "counter")
        for command, cause, total in broker.runtime.stats.refusals.totals():
            yield f"{name}_total{samples.labels(command=command, cause=cause)} {total}\n"
        name = "pybroker_refused_accesses"
        yield type_line(name, "counter")
        for (interface, reason), total in broker.runtime.stats.refused_accesses.items():
            yield f"{name}_total{samples.labels(interface=interface, cause=reason)} {total}\n"

        questions = broker.broker_context.authorization.questions
        yield from samples.gauge("pybroker_authorization_pending_questions", questions.pending)
        name = "pybroker_authorization_unanswered_questions"
        yield type_line(name, "counter")
        for reason, total in questions.failures.items():
            yield f"{name}_total{samples.labels(reason=reason)} {total}\n"

    def _load(self) -> Iterator[str]:
        yield from self._about(figures.HEALTH, figures.health_figures(self._runtime.stats))
        yield from self._about(figures.LOAD, figures.load_figures(self._rates.resources))

    def _cache(self) -> Iterator[str]:
        samples, cache = self._samples, self._broker.ledgers.cache
        for name, value in figures.cache_figures(self._broker, self._rates.broker).items():
            yield from samples.gauge(f"pulsar_{name}", value)
        reads = self._runtime.memory.reads
        yield from samples.gauge("pulsar_ml_reads_inflight_bytes", reads.used_bytes)
        yield from samples.gauge(
            "pulsar_ml_reads_available_inflight_bytes", max(0, reads.most_bytes - reads.used_bytes)
        )
        yield from samples.counter("pybroker_cache_hit_entries", cache.hits_total)
        yield from samples.counter("pybroker_cache_missed_reads", cache.misses_total)

    def _metadata(self) -> Iterator[str]:
        latencies = self._broker.metadata_store.latencies
        if latencies is None:
            return
        name = "pulsar_metadata_store_ops_latency_ms"
        yield type_line(name, "histogram")
        for (kind, status), buckets in latencies.took_ms.items():
            labels = {"name": METADATA_STORE, "type": kind, "status": status}
            yield from self._samples.histogram_samples(name, buckets, **labels)
        yield from self._samples.counter("pulsar_metadata_store_put_bytes", latencies.put_bytes, name=METADATA_STORE)
        yield from self._metadata_session()
        yield from self._membership()

    def _metadata_session(self) -> Iterator[str]:
        session, samples = self._broker.metadata_store.session_report, self._samples
        if session is None:
            return
        yield from samples.gauge("pybroker_metadata_session_up", int(session.state is SessionState.CONNECTED))
        yield from samples.counter("pybroker_metadata_session_suspensions", session.suspensions)
        yield from samples.counter("pybroker_metadata_session_losses", session.losses)
        yield from samples.counter("pybroker_metadata_outcomes_read_back", session.outcomes_read_back)
        refresher = self._broker.cache_refresher
        yield from samples.gauge("pybroker_metadata_cache_pending", 0 if refresher is None else refresher.pending)

    def _membership(self) -> Iterator[str]:
        if self._broker.membership is None:
            return
        report, samples = self._broker.membership.report(), self._samples
        yield from samples.gauge("pybroker_cluster_brokers", report.broker_count)
        yield from samples.gauge("pybroker_cluster_unusable_registrations", len(report.unusable))
        yield from samples.gauge("pybroker_cluster_registered", int(report.is_registered))
        yield from samples.gauge("pybroker_cluster_leader", int(report.is_leader))
        yield from samples.gauge("pybroker_cluster_unacquired_bundles", report.open_decisions)
        yield from samples.counter("pybroker_cluster_moved_bundles", report.moved_total)
        yield from samples.counter("pybroker_cluster_split_bundles", report.split_total)

    def _about(self, metric: str, values: dict[str, Number]) -> Iterator[str]:
        host = figures.broker_host(self._broker)
        for name, value in values.items():
            yield from self._samples.gauge(f"pulsar_{name}", value, broker=host, metric=metric)

    def _authentication(self) -> Iterator[str]:
        """Yield successful and failed authentications; none without authentication."""
        authentication, samples = self._broker.authentication, self._samples
        if not authentication.enabled:
            return
        yield from samples.counter("pulsar_expired_token", authentication.expired_tokens)
        yield from samples.histogram("pulsar_expiring_token_minutes", authentication.expiring_minutes)
        name = "pulsar_authentication_success"
        yield type_line(name, "counter")
        for (provider, method), total in authentication.successes.items():
            yield f"{name}_total{samples.labels(provider_name=provider, auth_method=method)} {total}\n"
        name = "pulsar_authentication_failures"
        yield type_line(name, "counter")
        for key, total in authentication.failures.items():
            labels = samples.labels(provider_name=key.provider, auth_method=key.method, reason=key.reason)
            yield f"{name}_total{labels} {total}\n"

    def _internals(self) -> Iterator[str]:
        samples, stats, broker = self._samples, self._runtime.stats, self._broker
        yield from samples.gauge("pybroker_ready", int(broker.unready_reason() is None))
        yield from samples.gauge("pybroker_wire_core_info", 1, implementation=core.IMPLEMENTATION, crc32c=core.CRC32C)
        if stats.certificate_expires_s is not None:
            yield from samples.gauge("pybroker_tls_certificate_expiry_timestamp_seconds", stats.certificate_expires_s)
        yield from samples.gauge("pybroker_loop_lag_seconds", stats.loop_lag_ms / MS_PER_S)
        yield from samples.gauge("pybroker_loop_lag_max_seconds", stats.loop_lag_max_ms / MS_PER_S)
        yield from samples.histogram("pybroker_loop_tick_lag_seconds", stats.loop_lags_ms, divisor=MS_PER_S)
        yield from samples.counter("pybroker_loop_starved", stats.loop_starved)
        yield from samples.histogram("pybroker_gc_pauses_seconds", stats.gc_pauses_ms, divisor=MS_PER_S)
        yield from samples.counter("pybroker_gc_full_collections", stats.gc_full_collections)
        yield from samples.gauge("pybroker_pending_publish_bytes", self._runtime.memory.publishes.used_bytes)
        yield from samples.gauge("pybroker_pump_queue_depth", len(broker.broker_context.pumps))
        yield from self._memory()
        waiting = broker.broker_context.waiting
        yield from samples.gauge("pybroker_waiting_subscription_requests", waiting.subscriptions.count)
        yield from samples.counter("pybroker_late_subscription_requests", waiting.subscriptions.late_total)
        yield from samples.counter("pybroker_refused_subscription_requests", waiting.subscriptions.refused_total)
        yield from samples.gauge("pybroker_waiting_password_checks", broker.authentication.waiting_checks)
        yield from samples.counter("pybroker_displaced_connections", stats.connections_displaced)
        yield from samples.gauge("pybroker_waiting_topic_requests", waiting.topics.count)
        yield from samples.counter("pybroker_late_topic_requests", waiting.topics.late_total)
        yield from samples.counter("pybroker_refused_topic_requests", waiting.topics.refused_total)
        yield from samples.counter("pybroker_bugs", stats.bugs)
        yield from samples.counter("pybroker_skipped_damaged_entries", stats.skipped_damaged_entries)
        yield from bookkeeper_lines(samples, broker.ledgers.store)
        for name, value in broker.ledgers.store.figures().items():
            if name == "damaged_entries":
                yield from samples.counter("pybroker_storage_damaged_entries", int(value))
            else:
                yield from samples.gauge(f"pybroker_store_{_in_seconds(name)}", value)
        for name, buckets in broker.ledgers.store.histograms().items():
            if name.endswith("_ms"):
                shown = f"pybroker_store_{name.removesuffix('_ms')}_duration_seconds"
                yield from samples.histogram(shown, buckets, divisor=MS_PER_S)
            else:
                yield from samples.histogram(f"pybroker_store_{name}", buckets)

    def _memory(self) -> Iterator[str]:
        samples, memory = self._samples, self._runtime.memory
        yield from samples.gauge("pybroker_memory_limit_bytes", memory.process_limit_bytes)
        parts = memory.budget.parts.values()
        writes_bytes = int(self._broker.ledgers.store.figures().get("journal_live_bytes", 0))  # limited by the store
        now_ms = self._runtime.clock.monotonic_ms()
        waits_s: dict[str, Number] = {part.name: round(part.longest_wait_ms(now_ms) / 1000, 3) for part in parts}
        stats, delays = self._runtime.stats, memory.delays
        if stats.throttled_connections:
            waits_s[PUBLISHES] = round((now_ms - stats.throttled_since_ms) / 1000, 3)
        held = {PUBLISHES: stats.throttled_connections, DELAYED: delays.waiting}  # they are paused and do not wait
        for name, values in (
            ("used_bytes", {part.name: part.used_bytes for part in parts} | {WRITES: writes_bytes}),
            ("bound_bytes", {part.name: part.most_bytes for part in parts}),
            ("ahead_bytes", {part.name: part.ahead_bytes for part in parts}),
            ("waiting", {part.name: part.waiting for part in parts} | held),
        ):
            yield from samples.gauges(f"pybroker_memory_{name}", "part", dict[str, Number](values))
        yield from samples.gauges("pybroker_memory_longest_wait_seconds", "part", waits_s)
        for name, totals in (
            ("pybroker_memory_waits_total", {part.name: part.waits_total for part in parts}),
            ("pybroker_memory_gave_way_total", {part.name: part.gave_way_total for part in parts}),
        ):
            yield type_line(name.removesuffix("_total"), "counter")
            for part_name, total in totals.items():
                yield f"{name}{samples.labels(part=part_name)} {total}\n"

    def _process(self) -> Iterator[str]:
        for metric in self._registry.collect():
            yield type_line(metric.name, metric.type, metric.documentation)
            for sample in metric.samples:
                yield f"{sample.name}{self._samples.labels(**sample.labels)} {number_text(sample.value)}\n"
