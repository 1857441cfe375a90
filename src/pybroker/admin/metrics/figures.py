"""Figures of the broker that appear as `pulsar_...` on the metrics page and as `brk_...` in `broker-stats`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pybroker.model.rates import quantile

if TYPE_CHECKING:
    from pybroker.admin.metrics.exposition_text import Number
    from pybroker.admin.stats.rate_sampler import BrokerRates
    from pybroker.admin.stats.resource_usage import ResourceMeter
    from pybroker.broker.service import BrokerService
    from pybroker.model.counters import BrokerStats

TOPIC_LOADS = "pulsar_topic_load_times"
CONNECTIONS = "broker_connection"
HEALTH = "broker_health"
LOAD = "loadBalancing"
"""Values of the label `metric`, the subject of a figure."""

_TOPIC_LOAD_QUANTILES = {
    "median": 0.5,
    "75percentile": 0.75,
    "95percentile": 0.95,
    "99_percentile": 0.99,
    "99_9_percentile": 0.999,
    "99_99_percentile": 0.9999,
}


def broker_host(broker: BrokerService) -> str:
    addresses = broker.presence.addresses.resolve(None)
    return urlsplit(addresses.broker_url or addresses.broker_url_tls).hostname or ""


def cache_figures(broker: BrokerService, rates: BrokerRates) -> dict[str, Number]:
    """Return size and activity of the entry cache. Hits and misses are counted in entries."""
    cache = broker.ledgers.cache
    return {
        "ml_count": len(broker.loaded.persistent),
        "ml_cache_used_size": cache.size_bytes,
        "ml_cache_entries": cache.entry_count,
        "ml_cache_inserted_entries_total": cache.inserted_entries_total,
        "ml_cache_evicted_entries_total": cache.evicted_entries_total,
        "ml_cache_evictions": rates.cache_evictions.count,
        "ml_cache_hits_rate": rates.cache_hits.per_second,
        "ml_cache_hits_throughput": rates.cache_hit_bytes.per_second,
        "ml_cache_misses_rate": rates.cache_misses.per_second,
        "ml_cache_misses_throughput": rates.cache_miss_bytes.per_second,
    }


def topic_load_figures(stats: BrokerStats, rates: BrokerRates) -> dict[str, Number]:
    """Return load times of topics in the last rate window, in milliseconds; NaN if no topic was loaded in this window."""
    window = rates.topic_load_ms
    figures: dict[str, Number] = {
        "topic_load_time_mean_ms": window.total / window.count if window.count else float("nan")
    }
    for name, fraction in _TOPIC_LOAD_QUANTILES.items():
        figures[f"topic_load_time_{name}_ms"] = quantile(window.counts, stats.topic_load_ms.bounds, fraction)
    figures["topic_load_rate_s"] = rates.topic_loads.per_second
    figures["topic_load_failed_count"] = rates.topic_load_failures.count
    return figures


def connection_figures(stats: BrokerStats) -> dict[str, Number]:
    return {
        "active_connections": stats.active_connections,
        "connection_created_total_count": stats.connections_created,
        "connection_create_success_count": stats.connections_created - stats.connections_failed,
        "connection_create_fail_count": stats.connections_failed,
        "connection_closed_total_count": stats.connections_closed,
    }


def health_figures(stats: BrokerStats) -> dict[str, Number]:
    """Return the result of the last periodic health check: 1 for success, 0 for failure, -1 before the first check."""
    return {"health": -1 if stats.is_healthy is None else int(stats.is_healthy)}


def load_figures(resources: ResourceMeter) -> dict[str, Number]:
    return {
        "lb_cpu_usage": resources.cpu.percent,
        "lb_memory_usage": resources.memory.percent,
        "lb_directMemory_usage": resources.direct_memory.percent,
        "lb_bandwidth_in_usage": resources.bandwidth_in.percent,
        "lb_bandwidth_out_usage": resources.bandwidth_out.percent,
    }
