"""Metrics `pulsar_compaction_...` of topics that were compacted since they were loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pybroker.admin.metrics.exposition_text import Number
from pybroker.admin.metrics.topic_and_subscription_metrics import LATENCY_SUFFIXES

if TYPE_CHECKING:
    from pybroker.broker.topic.topic_compaction import CompactionCounters
    from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo

_MS_PER_S = 1000
_US_PER_MS = 1000

COMPACTION_NAMES = (
    "pulsar_compaction_removed_event_count",
    "pulsar_compaction_succeed_count",
    "pulsar_compaction_failed_count",
    "pulsar_compaction_duration_time_in_mills",
    "pulsar_compaction_read_throughput",
    "pulsar_compaction_write_throughput",
    "pulsar_compaction_compacted_entries_count",
    "pulsar_compaction_compacted_entries_size",
    *(f"pulsar_compaction_latency_{suffix}" for suffix in LATENCY_SUFFIXES),
    "pulsar_compaction_latency_count",
    "pulsar_compaction_latency_sum",
)


def compaction_values(counters: CompactionCounters, view: CompactedInfo | None) -> Sequence[Number]:
    """Return the values in the order of COMPACTION_NAMES. Throughput counts only the time during which compactions ran.
    `view`: the topic's compacted ledger; None, reported as size 0, if it has none.
    """
    running_s = counters.running_ms / _MS_PER_S
    latency = counters.write_latency_ms
    return (
        counters.removed_messages,
        counters.succeeded,
        counters.failed,
        counters.last_duration_ms,
        counters.read_bytes / running_s if running_s else 0.0,
        counters.written_bytes / running_s if running_s else 0.0,
        0 if view is None else view.entries,
        0 if view is None else view.bytes,
        *latency.counts,
        latency.count,
        latency.total * _US_PER_MS,
    )
