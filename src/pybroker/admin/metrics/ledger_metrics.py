"""Metrics `pulsar_ml_...`: operations of managed ledgers in the last window, summed per namespace.

Figures that include replicas are multiplied by the copies per entry (managedLedgerDefaultWriteQuorum on BookKeeper).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pybroker.admin.metrics.exposition_text import Samples, number_text, type_line
from pybroker.model.counters import ENTRY_SIZE_BOUNDS_BYTES, LATENCY_BOUNDS_MS
from pybroker.model.rates import TopicRates

if TYPE_CHECKING:
    from pybroker.managed_ledger.managed_cursor import ManagedCursor
    from pybroker.managed_ledger.managed_ledger import ManagedLedger
    from pybroker.model.names import TopicName

LEDGER_NAMES = (
    "AddEntryBytesRate",
    "AddEntryWithReplicasBytesRate",
    "AddEntryMessagesRate",
    "AddEntrySucceed",
    "AddEntryErrors",
    "ReadEntriesBytesRate",
    "ReadEntriesRate",
    "ReadEntriesSucceeded",
    "ReadEntriesErrors",
    "ReadEntriesOpsCacheMissesRate",
    "MarkDeleteRate",
    "NumberOfMessagesInBacklog",
    "StoredMessagesSize",
)
OVERFLOW = "OVERFLOW"
ENTRY_SIZES = "EntrySizeBuckets"
LEDGER_SWITCHES = "LedgerSwitchLatencyBuckets"
BUCKETS: dict[str, tuple[float, ...]] = {
    "AddEntryLatencyBuckets": LATENCY_BOUNDS_MS,
    "LedgerAddEntryLatencyBuckets": LATENCY_BOUNDS_MS,
    LEDGER_SWITCHES: LATENCY_BOUNDS_MS,
    ENTRY_SIZES: ENTRY_SIZE_BOUNDS_BYTES,
}
CURSOR_NAMES = (
    "pulsar_ml_cursor_persistLedgerSucceed",
    "pulsar_ml_cursor_persistLedgerErrors",
    "pulsar_ml_cursor_persistZookeeperSucceed",
    "pulsar_ml_cursor_persistZookeeperErrors",
    "pulsar_ml_cursor_nonContiguousDeletedMessagesRange",
    "pulsar_ml_cursor_writeLedgerSize",
    "pulsar_ml_cursor_writeLedgerLogicalSize",
    "pulsar_ml_cursor_readLedgerSize",
)


class LedgerSums:
    """Sums over the managed ledgers of one namespace and domain."""

    def __init__(self) -> None:
        self.values: list[float] = [0.0] * len(LEDGER_NAMES)
        self.latency_counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self.size_counts = [0] * (len(ENTRY_SIZE_BOUNDS_BYTES) + 1)

    def add(self, ledger: ManagedLedger, rates: TopicRates, backlog_entries: float) -> None:
        own = (
            rates.bytes_in.per_second,
            rates.bytes_in.per_second * ledger.copy_count,
            rates.entries_in.per_second,
            rates.entries_in.count,
            rates.publish_errors.count,
            rates.bytes_read.per_second,
            rates.entries_read.per_second,
            rates.entries_read.count,
            rates.read_errors.count,
            rates.store_entries_read.per_second,
            rates.mark_deletes.per_second,
            backlog_entries,
            ledger.size_bytes * ledger.copy_count,
        )
        self.values = [a + b for a, b in zip(self.values, own, strict=True)]
        if not rates.publish_latency_ms.count and not rates.entry_size_bytes.count:
            return
        latencies, sizes = rates.publish_latency_ms.counts, rates.entry_size_bytes.counts
        self.latency_counts = [a + b for a, b in zip(self.latency_counts, latencies, strict=True)]
        self.size_counts = [a + b for a, b in zip(self.size_counts, sizes, strict=True)]

    def buckets(self, name: str, window_s: float) -> dict[str, float]:
        """Return the samples per second of each histogram bucket of metric `name`. A key contains both bounds of the
        bucket, or is OVERFLOW for larger samples.
        """
        counts = self.size_counts if name == ENTRY_SIZES else self.latency_counts
        if name == LEDGER_SWITCHES:
            counts = [0] * len(counts)
        bounds = (0, *BUCKETS[name])
        names = [f"{float(lower)}_{float(upper)}" for lower, upper in pairwise(bounds)]
        return {key: count / window_s for key, count in zip((*names, OVERFLOW), counts, strict=True)}


def ledger_lines(samples: Samples, sums: dict[str, LedgerSums], window_s: float) -> Iterator[str]:
    """Yield the metric lines by namespace and domain. Buckets are not cumulative."""
    if not sums:
        return
    for index, name in enumerate(LEDGER_NAMES):
        yield from samples.gauges(
            f"pulsar_ml_{name}", "namespace", {key: each.values[index] for key, each in sums.items()}
        )
    for name in BUCKETS:
        by_namespace = {key: each.buckets(name, window_s) for key, each in sums.items()}
        yield type_line(f"pulsar_ml_{name}")
        for key, buckets in by_namespace.items():
            for bounds, value in buckets.items():
                if bounds != OVERFLOW:
                    labels = samples.labels(namespace=key, quantile=bounds)
                    yield f"pulsar_ml_{name}{labels} {number_text(value)}\n"
        above = {key: buckets[OVERFLOW] for key, buckets in by_namespace.items()}
        yield from samples.gauges(f"pulsar_ml_{name}_{OVERFLOW}", "namespace", above)


def cursor_values(cursor: ManagedCursor) -> tuple[int, ...]:
    """Return the values of one cursor in the order of CURSOR_NAMES. The metrics of cursor writes to ZooKeeper and of
    cursor reads are always 0.
    """
    written_bytes = cursor.written_bytes
    return (
        cursor.writes,
        cursor.failed_writes,
        0,
        0,
        cursor.state.deleted_range_count,
        written_bytes,
        written_bytes,
        0,
    )


def cursor_labels(samples: Samples, topic: TopicName, cursor: ManagedCursor) -> str:
    return samples.labels(namespace=str(topic.namespace), ledger_name=topic.storage_path, cursor_name=cursor.name)
