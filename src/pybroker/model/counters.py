"""Counters that topics, producers, consumers and the broker maintain, for statistics and metrics.

Counters only increase while their object exists. They are plain ints; one addition counts a whole run of messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from pybroker.model.request_refusals import Refusals

LATENCY_BOUNDS_MS: tuple[float, ...] = (0.5, 1, 5, 10, 20, 50, 100, 200, 1000)
ENTRY_SIZE_BOUNDS_BYTES: tuple[int, ...] = (128, 512, 1024, 2048, 4096, 16384, 102400, 1048576)
# For operations that may be slow: a lookup of a name, the load of a topic.
DURATION_BOUNDS_MS: tuple[float, ...] = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 60_000)
GC_PAUSE_BOUNDS_MS: tuple[float, ...] = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
LOOP_LAG_BOUNDS_MS: tuple[float, ...] = (0.5, 1, 2, 5, 10, 20, 50, 100, 500)


class Buckets:
    """A histogram: the number of samples for each upper bound, not cumulative. The last bucket has the samples above
    all bounds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def add_to_both(self, other: Buckets, value: float, count: int) -> None:
        """Add `count` samples of `value` to this histogram and to `other`, which has the same bounds."""
        index = bisect_left(self.bounds, value)
        self.counts[index] += count
        other.counts[index] += count
        total = value * count
        self.total += total
        other.total += total

    def add_sizes(self, payloads: list[bytes], size_bytes: int) -> None:
        """Count each payload by its size in bytes. `size_bytes` is the sum."""
        smallest = bisect_left(self.bounds, min(map(len, payloads)))
        largest = bisect_left(self.bounds, max(map(len, payloads)))
        if smallest == largest:
            self.counts[smallest] += len(payloads)
        else:
            for payload in payloads:
                self.counts[bisect_left(self.bounds, len(payload))] += 1
        self.total += size_bytes


class TopicCounters:
    """Counters since the topic was loaded."""

    __slots__ = (
        "age_evictions",
        "bytes_in",
        "bytes_out_of_removed",
        "chunks_in",
        "entries_in",
        "entry_size_bytes",
        "last_publish_ms",
        "messages_in",
        "messages_out_of_removed",
        "publish_errors",
        "publish_latency_ms",
        "publish_rate_limited",
        "size_evictions",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.entries_in = 0
        self.chunks_in = 0
        self.publish_errors = 0
        self.publish_rate_limited = 0
        """How often a publisher had to wait because of a limit."""
        self.last_publish_ms = 0
        # How often entries were skipped unread because the backlog was too large or too old.
        self.size_evictions = 0
        self.age_evictions = 0
        # Deliveries of removed subscriptions, so that the topic's totals never decrease.
        self.messages_out_of_removed = 0
        self.bytes_out_of_removed = 0
        self.publish_latency_ms = Buckets(LATENCY_BOUNDS_MS)
        self.entry_size_bytes = Buckets(ENTRY_SIZE_BOUNDS_BYTES)


class LedgerCounters:
    """Counters of one managed ledger since it was opened, or of all managed ledgers since the broker started."""

    __slots__ = ("bytes_read", "entries_read", "mark_deletes", "read_errors", "store_bytes_read", "store_entries_read")

    def __init__(self) -> None:
        self.entries_read = 0
        self.bytes_read = 0
        # the part of these entries that was not in memory
        self.store_entries_read = 0
        self.store_bytes_read = 0
        self.read_errors = 0
        self.mark_deletes = 0


class OperationCounters:
    """Durations of successful operations of one kind, and the number of failures."""

    __slots__ = ("failures", "took_ms")

    def __init__(self) -> None:
        self.failures = 0
        self.took_ms = Buckets(DURATION_BOUNDS_MS)


class SchemaCounters:
    """Schema operations of one namespace since the broker started."""

    __slots__ = ("compatible", "delete", "get", "incompatible", "put")

    def __init__(self) -> None:
        self.get = OperationCounters()
        self.put = OperationCounters()
        self.delete = OperationCounters()
        # Results of compatibility checks of new schemas.
        self.compatible = 0
        self.incompatible = 0


class ProducerCounters:
    """Counters of one attached producer."""

    __slots__ = ("bytes_in", "chunks_in", "dropped_messages", "messages_in")

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.chunks_in = 0
        self.dropped_messages = 0
        """Non-persistent topics: messages delivered to no consumer, because too many arrived at once."""


class DeliveryCounters:
    """Counters of one subscription or one attached consumer."""

    __slots__ = (
        "acked_messages",
        "bytes_out",
        "chunks_out",
        "dropped_messages",
        "entries_out",
        "expired_entries",
        "expired_last_run_entries",
        "filter_accepted",
        "filter_processed",
        "filter_rejected",
        "filter_rescheduled",
        "first_consumed_flow_ms",
        "first_consumed_ms",
        "last_acked_ms",
        "last_consumed_flow_ms",
        "last_consumed_ms",
        "last_expired_ms",
        "last_mark_delete_advanced_ms",
        "messages_out",
        "redelivered_messages",
        "throttled_events",
    )

    def __init__(self) -> None:
        self.messages_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        self.chunks_out = 0
        self.dropped_messages = 0
        """Non-persistent topics: messages that no consumer could take."""
        self.redelivered_messages = 0
        self.acked_messages = 0
        self.expired_entries = 0
        # How often dispatch waited for a rate, by ("Msg" or "Bytes", the level that sets the rate).
        self.throttled_events: Counter[tuple[str, str]] = Counter()
        # Decisions of entry filters, in messages.
        self.filter_processed = 0
        self.filter_accepted = 0
        self.filter_rejected = 0
        self.filter_rescheduled = 0
        self.expired_last_run_entries = 0
        self.first_consumed_ms = 0
        self.first_consumed_flow_ms = 0
        self.last_expired_ms = 0
        self.last_acked_ms = 0
        self.last_consumed_ms = 0
        self.last_consumed_flow_ms = 0
        self.last_mark_delete_advanced_ms = 0


class BrokerStats:
    """Counters of the whole broker process."""

    __slots__ = (
        "active_connections",
        "bugs",
        "certificate_expires_s",
        "connections_closed",
        "connections_created",
        "connections_displaced",
        "connections_failed",
        "connections_refused",
        "gc_full_collections",
        "gc_pauses_ms",
        "is_healthy",
        "lookup_failures",
        "lookup_ms",
        "lookup_redirects",
        "lookups",
        "loop_lag_max_ms",
        "loop_lag_ms",
        "loop_lags_ms",
        "loop_starved",
        "publish_latency_ms",
        "refusals",
        "refused_accesses",
        "skipped_damaged_entries",
        "throttled_connections",
        "throttled_since_ms",
        "topic_load_failures",
        "topic_load_ms",
        "topic_loads",
    )

    def __init__(self) -> None:
        self.active_connections = 0
        self.connections_created = 0
        self.connections_refused = 0
        self.connections_displaced = 0
        """Connections closed because they had not sent CONNECT in time, or while others arrived."""
        self.connections_failed = 0
        self.connections_closed = 0
        self.throttled_connections = 0
        self.throttled_since_ms = 0.0
        """Monotonic."""
        self.lookups = 0
        self.lookup_failures = 0
        self.lookup_redirects = 0
        self.topic_loads = 0
        self.topic_load_failures = 0
        self.loop_lag_ms = 0.0
        self.loop_lag_max_ms = 0.0
        self.loop_lags_ms = Buckets(LOOP_LAG_BOUNDS_MS)
        self.loop_starved = 0
        # Of Python's garbage collector; zero if the process is not the broker's own.
        self.gc_full_collections = 0
        self.gc_pauses_ms = Buckets(GC_PAUSE_BOUNDS_MS)
        self.lookup_ms = Buckets(DURATION_BOUNDS_MS)
        self.topic_load_ms = Buckets(DURATION_BOUNDS_MS)
        self.is_healthy: bool | None = None
        """The result of the last periodic check."""
        self.certificate_expires_s: float | None = None
        """End of the validity of the certificate for new TLS handshakes, in seconds since 1970; None without TLS."""
        self.bugs = 0
        self.skipped_damaged_entries = 0
        self.publish_latency_ms = Buckets(LATENCY_BOUNDS_MS)
        self.refusals = Refusals()
        self.refused_accesses: dict[tuple[str, str], int] = {}
        """Requests with wrong credentials or without the permission, by interface and cause."""
