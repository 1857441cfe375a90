"""Writes the Grafana dashboards of `docker/grafana/dashboards`: `python -m tools.grafana_dashboards`.

The tables below list the panels. Changes made in Grafana are overwritten, so change the tables. All metrics are on the
metrics page with the default settings. `$job`, `$instance`, `$namespace`, `$topic` and `$subscription` are variables
that the user selects at the top of a dashboard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parents[1] / "docker" / "grafana" / "dashboards"
WIDTH = 24
ROW_HEIGHT = 1
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WORDS = {
    "BROKER": 'job=~"$job",instance=~"$instance"',
    "TOPIC": 'job=~"$job",instance=~"$instance",namespace=~"$namespace",topic=~"$topic"',
    "SUBSCRIPTION": (
        'job=~"$job",instance=~"$instance",namespace=~"$namespace",topic=~"$topic",subscription=~"$subscription"'
    ),
    "MOST": "10",  # number of topics or subscriptions in a panel: the ones with the highest values
}
"""Abbreviations in the expressions below, and their replacements."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression with abbreviations of `_WORDS`, and the name of its series in the legend."""

    expression: str
    legend: str = "{{instance}}"


@dataclass(frozen=True)
class Panel:
    """One panel. `kind` is Grafana's name of its type."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str = ""
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    is_stacked: bool = False
    red_from: float | None = None
    """The value from which a stat is red."""
    red_below: float | None = None


@dataclass(frozen=True)
class Row:
    """A heading and its panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """One JSON file, named after `uid`."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[str, ...] = ()
    """Variables besides data source, job, and instance."""


def series(metric: str, selector: str = "BROKER", legend: str = "{{instance}}") -> Query:
    return Query(metric + "{" + selector + "}", legend)


def rate(metric: str, legend: str) -> Query:
    return Query(f"rate({metric}{{BROKER}}[$__rate_interval])", legend)


def quantile(fraction: float, metric: str, legend: str, by: str = "instance") -> Query:
    buckets = f"rate({metric}_bucket{{BROKER}}[$__rate_interval])"
    return Query(f"histogram_quantile({fraction}, sum by ({by}, le) ({buckets}))", legend)


def mean(total: str, count: str, legend: str) -> Query:
    """Return a query for the mean duration of operations, from the metrics with their summed duration and their
    number.
    """
    window = "{BROKER}[$__rate_interval]"
    return Query(f"rate({total}{window}) / (rate({count}{window}) > 0)", legend)


def most(metric: str) -> Query:
    return Query(f"topk(MOST, {metric}{{SUBSCRIPTION}})", "{{topic}} / {{subscription}}")


def most_topics(metric: str) -> Query:
    return Query(f"topk(MOST, {metric}{{TOPIC}})", "{{topic}}")


def stat(
    title: str,
    unit: str,
    query: Query,
    description: str = "",
    *,
    red_from: float | None = None,
    red_below: float | None = None,
) -> Panel:
    return Panel(
        title, unit, (query,), description, kind="stat", width=3, height=4, red_from=red_from, red_below=red_below
    )


OVERVIEW = Dashboard(
    "pybroker-overview",
    "pybroker: overview",
    "Health, traffic, backlog, memory, and connections of a broker",
    (
        Row(
            "Health",
            (
                stat("Up", "short", series("up"), red_below=1),
                stat("Ready", "short", series("pybroker_ready"), red_below=1, description="GET /ready answers ok."),
                stat(
                    "Alerts firing",
                    "short",
                    Query('count(ALERTS{alertstate="firing",alertname=~"Pybroker.*"}) or vector(0)', "alerts"),
                    red_from=1,
                ),
                stat("Version", "short", series("pulsar_version_info", legend="{{version}}")),
                stat("Running for", "s", Query("time() - process_start_time_seconds{BROKER}")),
                stat("Publishing refused", "short", series("pybroker_store_publishing_refused"), red_from=1),
                stat("Unexpected failures", "short", series("pybroker_bugs_total"), red_from=1),
                stat("Backlog", "short", series("pulsar_broker_msg_backlog")),
                stat("Topics", "short", series("pulsar_broker_topics_count")),
                stat("Subscriptions", "short", series("pulsar_broker_subscriptions_count")),
                stat("Producers", "short", series("pulsar_broker_producers_count")),
                stat("Consumers", "short", series("pulsar_broker_consumers_count")),
                stat("Connections", "short", series("pulsar_active_connections")),
                stat("Stored", "bytes", series("pulsar_broker_storage_size")),
                stat("Free disk space", "bytes", series("pybroker_store_free_bytes")),
                stat("Resident memory", "bytes", series("process_resident_memory_bytes")),
            ),
        ),
        Row(
            "Traffic",
            (
                Panel(
                    "Messages per second",
                    "cps",
                    (
                        series("pulsar_broker_rate_in", legend="published"),
                        series("pulsar_broker_rate_out", legend="delivered"),
                    ),
                    "Rates of the last window of statsUpdateFrequencyInSecs.",
                ),
                Panel(
                    "Bytes per second",
                    "Bps",
                    (
                        series("pulsar_broker_throughput_in", legend="published"),
                        series("pulsar_broker_throughput_out", legend="delivered"),
                    ),
                ),
                Panel(
                    "Publish latency",
                    "ms",
                    tuple(
                        series("pulsar_broker_publish_latency", f'BROKER,quantile="{quantile}"', name)
                        for quantile, name in (
                            ("0.5", "median"),
                            ("0.95", "95 %"),
                            ("0.99", "99 %"),
                            ("0.999", "99.9 %"),
                        )
                    ),
                    "From the arrival of a message to its receipt, in the last window. Empty while no message is published.",
                ),
                Panel(
                    "Backlog",
                    "short",
                    (
                        series("pulsar_broker_msg_backlog", legend="entries not acknowledged"),
                        Query(
                            "sum by (instance) (pulsar_subscription_unacked_messages{BROKER})",
                            "delivered, not acknowledged",
                        ),
                        Query("sum by (instance) (pulsar_subscription_delayed{BROKER})", "delayed"),
                    ),
                ),
                Panel(
                    "Lookups",
                    "cps",
                    (
                        rate("pulsar_broker_lookup_answers_total", "answered"),
                        rate("pulsar_broker_lookup_failures_total", "failed"),
                        series("pulsar_broker_lookup_pending_requests", legend="waiting"),
                    ),
                ),
                Panel(
                    "Topic loads",
                    "short",
                    (
                        series("pulsar_broker_topic_load_pending_requests", legend="being loaded"),
                        rate("pulsar_topic_load_times_count", "loaded per second"),
                        rate("topic_load_failed_total", "failed per second"),
                    ),
                ),
            ),
        ),
        Row(
            "Storage and memory",
            (
                Panel(
                    "Disk space",
                    "bytes",
                    (
                        series("pulsar_broker_storage_size", legend="stored in topics"),
                        series("pybroker_store_free_bytes", legend="free"),
                    ),
                ),
                Panel(
                    "Process memory",
                    "bytes",
                    (
                        series("process_resident_memory_bytes", legend="resident"),
                        series("pybroker_memory_limit_bytes", legend="limit"),
                    ),
                    "The limit is brokerMemoryLimitMB.",
                ),
                Panel(
                    "Memory by part",
                    "bytes",
                    (series("pybroker_memory_used_bytes", legend="{{part}}"),),
                    is_stacked=True,
                ),
                Panel(
                    "Waiting for memory",
                    "short",
                    (series("pybroker_memory_waiting", legend="{{part}}"),),
                    "Requests that wait for memory of a part, and connections or subscriptions that it stops.",
                ),
                Panel(
                    "Longest wait for memory",
                    "s",
                    (series("pybroker_memory_longest_wait_seconds", legend="{{part}}"),),
                ),
                Panel(
                    "Publishing held back",
                    "short",
                    (
                        series("pulsar_broker_throttled_connections", legend="connections that are not read"),
                        Query(
                            "sum by (instance) (rate(pulsar_publish_rate_limit_times{BROKER}[$__rate_interval]))",
                            "publish rate limit, per second",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Connections",
            (
                Panel(
                    "Connections",
                    "short",
                    (
                        series("pulsar_active_connections", legend="open"),
                        series("pybroker_connections_limit", legend="limit"),
                    ),
                ),
                Panel(
                    "Connections per second",
                    "cps",
                    (
                        rate("pulsar_connection_created_total_count", "created"),
                        rate("pulsar_connection_closed_total_count", "closed"),
                        rate("pulsar_connection_create_fail_count", "failed in the handshake"),
                        rate("pybroker_connections_refused_total", "refused"),
                    ),
                ),
                Panel(
                    "Refused commands per second",
                    "cps",
                    (
                        Query(
                            "sum by (command, cause) (rate(pybroker_client_refusals_total{BROKER}[$__rate_interval]))",
                            "{{command}}: {{cause}}",
                        ),
                    ),
                    "Empty until the broker refuses a command.",
                ),
            ),
        ),
    ),
)

TOPICS = Dashboard(
    "pybroker-topics",
    "pybroker: topics and subscriptions",
    "Traffic of topics, and the reasons for which subscriptions do not progress",
    (
        Row(
            "Subscriptions that wait",
            (
                Panel(
                    "Backlog", "short", (most("pulsar_subscription_back_log"),), "Entries that are not acknowledged."
                ),
                Panel(
                    "Age of the oldest unacknowledged message",
                    "s",
                    (
                        Query(
                            "topk(MOST, pybroker_subscription_oldest_unacked_age_seconds{SUBSCRIPTION} >= 0)",
                            "{{topic}} / {{subscription}}",
                        ),
                    ),
                ),
                Panel(
                    "Backlog without a consumer",
                    "short",
                    (
                        Query(
                            "topk(MOST, pulsar_subscription_back_log{SUBSCRIPTION} > 0 "
                            "and pulsar_subscription_consumers_count{SUBSCRIPTION} == 0)",
                            "{{topic}} / {{subscription}}",
                        ),
                    ),
                    "Empty if each subscription with a backlog has a consumer.",
                ),
                Panel(
                    "Unacknowledged messages",
                    "short",
                    (most("pulsar_subscription_unacked_messages"),),
                    "Delivered to a consumer and not acknowledged.",
                ),
                Panel(
                    "Blocked by the limit of unacknowledged messages",
                    "short",
                    (most("pulsar_subscription_blocked_on_unacked_messages"),),
                    "1 while maxUnackedMessagesPerSubscription or maxUnackedMessagesPerBroker stops delivery.",
                ),
                Panel(
                    "Time since the last acknowledgement",
                    "s",
                    (
                        Query(
                            "topk(MOST, time() - pulsar_subscription_last_acked_timestamp{SUBSCRIPTION} / 1000 "
                            "and pulsar_subscription_last_acked_timestamp{SUBSCRIPTION} > 0 "
                            "and pulsar_subscription_back_log{SUBSCRIPTION} > 0)",
                            "{{topic}} / {{subscription}}",
                        ),
                    ),
                    "Subscriptions with a backlog.",
                ),
            ),
        ),
        Row(
            "Key_Shared",
            (
                Panel(
                    "Draining hashes",
                    "short",
                    (most("pybroker_subscription_draining_hashes"),),
                    "Their keys wait until the previous consumer has acknowledged. "
                    "`pybroker draining NAME SUBSCRIPTION` lists them.",
                ),
                Panel(
                    "Entries that cannot be delivered yet",
                    "short",
                    (most("pulsar_subscription_in_replay"),),
                    "Read, and waiting for a key, a consumer, or redelivery.",
                ),
                Panel("Look-ahead memory", "bytes", (most("pybroker_subscription_look_ahead_bytes"),)),
                Panel(
                    "Parked hashes",
                    "short",
                    (most("pybroker_subscription_hashes_set_aside"),),
                    "Their entries are read again later, because the look-ahead is full.",
                ),
            ),
        ),
        Row(
            "Delayed messages",
            (
                Panel("Delayed entries", "short", (most("pulsar_subscription_delayed"),)),
                Panel(
                    "Memory of the delayed index",
                    "bytes",
                    (most("pulsar_subscription_delayed_message_index_size_bytes"),),
                ),
            ),
        ),
        Row(
            "Delivery",
            (
                Panel("Messages delivered per second", "cps", (most("pulsar_subscription_msg_rate_out"),)),
                Panel("Messages acknowledged per second", "cps", (most("pulsar_subscription_msg_ack_rate"),)),
                Panel("Messages redelivered per second", "cps", (most("pulsar_subscription_msg_rate_redeliver"),)),
                Panel("Entries expired per second", "cps", (most("pulsar_subscription_msg_rate_expired"),)),
                Panel("Consumers", "short", (most("pulsar_subscription_consumers_count"),)),
                Panel(
                    "Dispatch held back by a limit, per second",
                    "cps",
                    (
                        Query(
                            "topk(MOST, rate(pulsar_subscription_dispatch_throttled_msg_events{SUBSCRIPTION}"
                            "[$__rate_interval]) > 0)",
                            "{{topic}} / {{subscription}}, messages: {{reason}}",
                        ),
                        Query(
                            "topk(MOST, rate(pulsar_subscription_dispatch_throttled_bytes_events{SUBSCRIPTION}"
                            "[$__rate_interval]) > 0)",
                            "{{topic}} / {{subscription}}, bytes: {{reason}}",
                        ),
                    ),
                    "Empty if no dispatch rate limit acts.",
                ),
            ),
        ),
        Row(
            "Topics",
            (
                Panel("Messages published per second", "cps", (most_topics("pulsar_rate_in"),)),
                Panel("Bytes published per second", "Bps", (most_topics("pulsar_throughput_in"),)),
                Panel(
                    "Mean publish latency",
                    "ms",
                    (
                        Query(
                            "topk(MOST, pulsar_storage_write_latency_sum{TOPIC} / (pulsar_storage_write_latency_count{TOPIC} > 0))",
                            "{{topic}}",
                        ),
                    ),
                    "In the last window; empty while no message is published.",
                ),
                Panel("Storage", "bytes", (most_topics("pulsar_storage_size"),)),
                Panel(
                    "Backlog in bytes",
                    "bytes",
                    (most_topics("pulsar_storage_backlog_size"),),
                    "Behind the slowest durable subscription.",
                ),
                Panel(
                    "Backlog quota in use",
                    "percentunit",
                    (
                        Query(
                            "topk(MOST, pulsar_storage_backlog_size{TOPIC} / (pulsar_storage_backlog_quota_limit{TOPIC} > 0))",
                            "{{topic}}",
                        ),
                    ),
                    "Empty for topics without a quota by size.",
                ),
                Panel("Producers", "short", (most_topics("pulsar_producers_count"),)),
                Panel("Average message size", "bytes", (most_topics("pulsar_average_msg_size"),)),
                Panel(
                    "Topics by namespace",
                    "short",
                    (series("pulsar_topics_count", 'BROKER,namespace=~"$namespace"', "{{namespace}}"),),
                    is_stacked=True,
                ),
            ),
        ),
    ),
    ("namespace", "topic", "subscription"),
)

STORAGE = Dashboard(
    "pybroker-storage",
    "pybroker: storage",
    "Journal, checkpoints, reads, cache, metadata, and disk space",
    (
        Row(
            "Disk",
            (
                Panel(
                    "Disk space",
                    "bytes",
                    (
                        series("pybroker_store_file_system_bytes", legend="file system"),
                        series("pybroker_store_free_bytes", legend="free"),
                        series("pulsar_broker_storage_size", legend="stored in topics"),
                    ),
                ),
                Panel(
                    "Free disk space in 24 hours",
                    "bytes",
                    (Query("predict_linear(pybroker_store_free_bytes{BROKER}[6h], 86400)"),),
                    "Extrapolated from the last 6 hours.",
                ),
                Panel(
                    "Refused because the disk is full",
                    "short",
                    (
                        series("pybroker_store_publishing_refused", legend="publishing is refused"),
                        rate("pybroker_store_refused_entries", "refused entries per second"),
                        rate("pybroker_store_journal_refused_batches", "refused journal batches per second"),
                    ),
                ),
            ),
        ),
        Row(
            "Journal",
            (
                Panel("Journal bytes per second", "Bps", (rate("pybroker_store_journal_bytes", "written"),)),
                Panel(
                    "Journal operations per second",
                    "cps",
                    (
                        rate("pybroker_store_journal_batches", "batches"),
                        rate("pybroker_store_journal_entries", "entries"),
                    ),
                ),
                Panel(
                    "Duration of a durable write",
                    "s",
                    tuple(
                        quantile(fraction, "pybroker_store_journal_sync_duration_seconds", name)
                        for fraction, name in ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))
                    ),
                ),
                Panel(
                    "From append to completion",
                    "s",
                    (
                        mean(
                            "pybroker_store_submit_to_completion_seconds",
                            "pybroker_store_journal_batches",
                            "mean of the oldest append of a batch",
                        ),
                    ),
                ),
                Panel(
                    "Entries per batch",
                    "short",
                    tuple(
                        quantile(fraction, "pybroker_store_journal_batch_entries", name)
                        for fraction, name in ((0.5, "median"), (0.99, "99 %"))
                    ),
                ),
                Panel(
                    "Waiting for the journal",
                    "short",
                    (
                        series("pybroker_store_journal_queue_depth", legend="runs in the queue"),
                        series("pybroker_store_held_runs", legend="runs that wait for a checkpoint or capacity"),
                    ),
                ),
            ),
        ),
        Row(
            "Checkpoints and reads",
            (
                Panel("Journal that awaits a checkpoint", "bytes", (series("pybroker_store_journal_live_bytes"),)),
                Panel(
                    "Duration of a checkpoint",
                    "s",
                    (mean("pybroker_store_checkpoint_seconds", "pybroker_store_checkpoints", "mean"),),
                    "Empty while no checkpoint ends.",
                ),
                Panel(
                    "Checkpoints",
                    "short",
                    (
                        Query("increase(pybroker_store_checkpoints{BROKER}[1h])", "in the last hour"),
                        Query("increase(pybroker_store_checkpoint_retries{BROKER}[1h])", "repeated in the last hour"),
                    ),
                ),
                Panel(
                    "Entries read per second",
                    "cps",
                    (
                        series("pulsar_broker_storage_read_rate", legend="all"),
                        series("pulsar_broker_storage_read_cache_misses_rate", legend="not in memory"),
                    ),
                ),
                Panel(
                    "Cache",
                    "bytes",
                    (
                        series("pulsar_ml_cache_used_size", legend="used"),
                        series("pulsar_ml_reads_inflight_bytes", legend="read or read ahead"),
                    ),
                ),
                Panel(
                    "Cache hits per second",
                    "cps",
                    (
                        series("pulsar_ml_cache_hits_rate", legend="hits"),
                        series("pulsar_ml_cache_misses_rate", legend="misses"),
                    ),
                ),
            ),
        ),
        Row(
            "Metadata and damage",
            (
                Panel(
                    "Metadata operations, 99 %",
                    "ms",
                    (quantile(0.99, "pulsar_metadata_store_ops_latency_ms", "{{type}}", by="instance, type"),),
                    "Empty without operations.",
                ),
                Panel(
                    "Cursor changes per second",
                    "cps",
                    (Query("sum by (namespace) (pulsar_ml_MarkDeleteRate{BROKER})", "{{namespace}}"),),
                ),
                Panel(
                    "Damaged data",
                    "short",
                    (
                        series("pybroker_storage_damaged_entries_total", legend="entries"),
                        series("pybroker_store_damaged_segments", legend="segments"),
                        series("pybroker_store_damaged_cursors", legend="subscriptions"),
                        series("pybroker_skipped_damaged_entries_total", legend="skipped entries"),
                    ),
                ),
            ),
        ),
    ),
)

PROCESS = Dashboard(
    "pybroker-process",
    "pybroker: process",
    "Event loop, processor, garbage collection, file descriptors, and queues of the broker process",
    (
        Row(
            "Event loop",
            (
                Panel(
                    "Lag of the event loop",
                    "s",
                    tuple(
                        quantile(fraction, "pybroker_loop_tick_lag_seconds", name)
                        for fraction, name in ((0.5, "median"), (0.99, "99 %"), (0.999, "99.9 %"))
                    ),
                    "One tick each 50 ms. 0.5 s is the highest bound that the histogram has.",
                ),
                Panel(
                    "Without processor time",
                    "cps",
                    (rate("pybroker_loop_starved_total", "late ticks per second"),),
                    "The event loop was late by more than eventLoopWatchdogMs while no callback held it.",
                ),
                Panel("Subscriptions that wait to dispatch", "short", (series("pybroker_pump_queue_depth"),)),
            ),
        ),
        Row(
            "Processor and memory",
            (
                Panel("Processor time", "percentunit", (rate("process_cpu_seconds_total", "of one core"),)),
                Panel(
                    "Load of the machine",
                    "percent",
                    (
                        series("pulsar_lb_cpu_usage", legend="processor"),
                        series("pulsar_lb_memory_usage", legend="memory"),
                        series("pulsar_lb_bandwidth_in_usage", legend="network, received"),
                        series("pulsar_lb_bandwidth_out_usage", legend="network, sent"),
                    ),
                ),
                Panel(
                    "Memory",
                    "bytes",
                    (
                        series("process_resident_memory_bytes", legend="resident"),
                        series("process_virtual_memory_bytes", legend="virtual"),
                        series("pybroker_memory_limit_bytes", legend="limit"),
                    ),
                ),
                Panel(
                    "Pauses by the garbage collector",
                    "s",
                    (
                        quantile(0.99, "pybroker_gc_pauses_seconds", "99 %"),
                        mean("pybroker_gc_pauses_seconds_sum", "pybroker_gc_pauses_seconds_count", "mean"),
                    ),
                ),
                Panel(
                    "Garbage collections per second",
                    "cps",
                    (
                        rate("pybroker_gc_pauses_seconds_count", "all"),
                        rate("pybroker_gc_full_collections_total", "full"),
                    ),
                ),
                Panel(
                    "File descriptors",
                    "short",
                    (series("process_open_fds", legend="open"), series("process_max_fds", legend="limit")),
                ),
            ),
        ),
        Row(
            "Queues and HTTP",
            (
                Panel(
                    "Waiting requests",
                    "short",
                    (
                        series("pybroker_waiting_topic_requests", legend="topics"),
                        series("pybroker_waiting_subscription_requests", legend="subscriptions"),
                        series("pybroker_waiting_password_checks", legend="password checks"),
                        series("pybroker_http_waiting_requests", legend="HTTP"),
                        series("pybroker_http_bulk_reads_waiting", legend="bulk reads"),
                    ),
                ),
                Panel(
                    "Late and refused requests per second",
                    "cps",
                    (
                        rate("pybroker_late_topic_requests_total", "topics, late"),
                        rate("pybroker_refused_topic_requests_total", "topics, refused"),
                        rate("pybroker_late_subscription_requests_total", "subscriptions, late"),
                        rate("pybroker_refused_subscription_requests_total", "subscriptions, refused"),
                    ),
                ),
                Panel(
                    "HTTP connections",
                    "short",
                    (
                        series("pybroker_http_connections", legend="open"),
                        rate("pybroker_http_refused_connections", "refused per second"),
                    ),
                ),
                Panel(
                    "HTTP memory",
                    "bytes",
                    (
                        series("pybroker_http_request_bytes", legend="request bodies"),
                        series("pybroker_http_response_bytes", legend="responses"),
                        series("pybroker_http_viewed_bytes", legend="messages that are shown"),
                    ),
                ),
                Panel(
                    "Unexpected failures",
                    "short",
                    (series("pybroker_bugs_total"),),
                    "Each is in the log with its stack trace.",
                ),
                Panel("Bytes published and not stored yet", "bytes", (series("pybroker_pending_publish_bytes"),)),
            ),
        ),
    ),
)

DASHBOARDS: Sequence[Dashboard] = (OVERVIEW, TOPICS, STORAGE, PROCESS)

# Source of each variable's values: a metric that has the label, and the variables that restrict it.
_VARIABLES = {
    "job": "label_values(pulsar_version_info, job)",
    "instance": 'label_values(pulsar_version_info{job=~"$job"}, instance)',
    "namespace": "label_values(pulsar_topics_count{BROKER}, namespace)",
    "topic": 'label_values(pulsar_msg_backlog{BROKER,namespace=~"$namespace"}, topic)',
    "subscription": "label_values(pulsar_subscription_back_log{TOPIC}, subscription)",
}


def document(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["pybroker"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [
            {"type": "dashboards", "title": "pybroker", "tags": ["pybroker"], "asDropdown": True, "keepTime": True}
        ],
        "templating": {"list": list(_variables(dashboard))},
        "panels": list(_panels(dashboard)),
    }


def _written_out(expression: str) -> str:
    return re.sub("|".join(rf"\b{word}\b" for word in _WORDS), lambda found: _WORDS[found[0]], expression)


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}
    for name in ("job", "instance", *dashboard.variables):
        query = _written_out(_VARIABLES[name])
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": DATA_SOURCE,
            "definition": query,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row in dashboard.rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": ROW_HEIGHT},
        }
        top += ROW_HEIGHT
        left = 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                left, top = 0, top + panel.height
            number += 1
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": panel.height})
            left += panel.width
        top += row.panels[-1].height


def _panel(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
    is_stat = panel.kind == "stat"
    field: dict[str, Any] = {"unit": panel.unit, "min": None if is_stat else 0}
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    if panel.red_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
    field["thresholds"] = {"mode": "absolute", "steps": steps}
    options: dict[str, Any]
    if is_stat:
        has_name = panel.queries[0].legend == "{{version}}"
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "none",
            "textMode": "name" if has_name else "auto",
        }
    else:
        field["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 30 if panel.is_stacked else 5,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATA_SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": field, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATA_SOURCE,
                "expr": _written_out(query.expression),
                "legendFormat": query.legend,
                "instant": is_stat,
                "range": not is_stat,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def text(dashboard: Dashboard) -> str:
    return json.dumps(document(dashboard), indent=2) + "\n"


def main() -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        (DIRECTORY / f"{dashboard.uid}.json").write_text(text(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()
