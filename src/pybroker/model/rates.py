"""Rates of counters between two readings. Pure.

The caller passes each reading with its time, every `statsUpdateFrequencyInSecs`. The rates do not change between
readings, so that all callers see the same values.
"""

from __future__ import annotations

from pybroker.model.counters import Buckets, DeliveryCounters, LedgerCounters, ProducerCounters, TopicCounters


class Rate:
    """The increase of one counter per second, in the last window between two readings.

    Invariant: never negative, and 0 until the first window has ended.
    """

    __slots__ = ("_read_ms", "_total", "count", "per_second")

    def __init__(self, now_ms: float, total: int = 0) -> None:
        self.per_second = 0.0
        self.count = 0
        """Events in the window."""
        self._total = total
        self._read_ms = now_ms

    def update(self, total: int, now_ms: float) -> None:
        """End the window with the counter value `total`. `now_ms` is a monotonic time."""
        assert total >= self._total, "a counter never falls"
        elapsed_ms = now_ms - self._read_ms
        if elapsed_ms <= 0:
            return  # the window is empty; its events count for the next one
        self.count = total - self._total
        self.per_second = self.count * 1000 / elapsed_ms
        self._total = total
        self._read_ms = now_ms


class BucketsWindow:
    """The samples in each bucket of a histogram in the last window."""

    __slots__ = ("_counts", "_total", "count", "counts", "total")

    def __init__(self, bucket_count: int) -> None:
        self.counts = [0] * bucket_count
        self.count = 0
        self.total: float = 0
        self._counts = self.counts
        self._total: float = 0

    def update(self, buckets: Buckets) -> None:
        """End the window. `buckets` is the histogram since the start of the broker."""
        counts = buckets.counts.copy()
        self.counts = [count - before for count, before in zip(counts, self._counts, strict=True)]
        self.count = sum(self.counts)
        self.total = buckets.total - self._total
        self._counts = counts
        self._total = buckets.total


class TopicRates:
    """Rates of one topic and its managed ledger in the last window."""

    __slots__ = (
        "bytes_in",
        "bytes_read",
        "entries_in",
        "entries_read",
        "entry_size_bytes",
        "mark_deletes",
        "messages_in",
        "publish_errors",
        "publish_latency_ms",
        "read_errors",
        "store_entries_read",
    )

    def __init__(self, now_ms: float, counters: TopicCounters) -> None:
        self.messages_in = Rate(now_ms)
        self.bytes_in = Rate(now_ms)
        self.entries_in = Rate(now_ms)
        self.publish_errors = Rate(now_ms)
        self.entries_read = Rate(now_ms)
        self.bytes_read = Rate(now_ms)
        self.store_entries_read = Rate(now_ms)
        self.read_errors = Rate(now_ms)
        self.mark_deletes = Rate(now_ms)
        self.publish_latency_ms = BucketsWindow(len(counters.publish_latency_ms.counts))
        self.entry_size_bytes = BucketsWindow(len(counters.entry_size_bytes.counts))

    def update(self, counters: TopicCounters, ledger: LedgerCounters, now_ms: float) -> None:
        self.messages_in.update(counters.messages_in, now_ms)
        self.bytes_in.update(counters.bytes_in, now_ms)
        self.entries_in.update(counters.entries_in, now_ms)
        self.publish_errors.update(counters.publish_errors, now_ms)
        self.entries_read.update(ledger.entries_read, now_ms)
        self.bytes_read.update(ledger.bytes_read, now_ms)
        self.store_entries_read.update(ledger.store_entries_read, now_ms)
        self.read_errors.update(ledger.read_errors, now_ms)
        self.mark_deletes.update(ledger.mark_deletes, now_ms)
        self.publish_latency_ms.update(counters.publish_latency_ms)
        self.entry_size_bytes.update(counters.entry_size_bytes)

    @property
    def average_message_bytes(self) -> float:
        return self.bytes_in.count / self.messages_in.count if self.messages_in.count else 0.0


class ProducerRates:
    """Rates of one producer in the last window."""

    __slots__ = ("bytes_in", "chunks_in", "dropped_messages", "messages_in")

    def __init__(self, now_ms: float) -> None:
        self.messages_in = Rate(now_ms)
        self.bytes_in = Rate(now_ms)
        self.chunks_in = Rate(now_ms)
        self.dropped_messages = Rate(now_ms)

    def update(self, counters: ProducerCounters, now_ms: float) -> None:
        self.messages_in.update(counters.messages_in, now_ms)
        self.bytes_in.update(counters.bytes_in, now_ms)
        self.chunks_in.update(counters.chunks_in, now_ms)
        self.dropped_messages.update(counters.dropped_messages, now_ms)

    @property
    def average_message_bytes(self) -> float:
        return self.bytes_in.count / self.messages_in.count if self.messages_in.count else 0.0


class DeliveryRates:
    """Rates of one subscription or consumer in the last window."""

    __slots__ = (
        "acked_messages",
        "bytes_out",
        "chunks_out",
        "dropped_messages",
        "expired_entries",
        "messages_out",
        "redelivered_messages",
    )

    def __init__(self, now_ms: float) -> None:
        self.messages_out = Rate(now_ms)
        self.bytes_out = Rate(now_ms)
        self.chunks_out = Rate(now_ms)
        self.dropped_messages = Rate(now_ms)
        self.redelivered_messages = Rate(now_ms)
        self.acked_messages = Rate(now_ms)
        self.expired_entries = Rate(now_ms)

    def update(self, counters: DeliveryCounters, now_ms: float) -> None:
        self.messages_out.update(counters.messages_out, now_ms)
        self.bytes_out.update(counters.bytes_out, now_ms)
        self.chunks_out.update(counters.chunks_out, now_ms)
        self.dropped_messages.update(counters.dropped_messages, now_ms)
        self.redelivered_messages.update(counters.redelivered_messages, now_ms)
        self.acked_messages.update(counters.acked_messages, now_ms)
        self.expired_entries.update(counters.expired_entries, now_ms)


def quantile(counts: list[int], bounds: tuple[float, ...], fraction: float) -> float:
    """Return the value below which a `fraction` (0 to 1) of all samples is, interpolated linearly within a bucket; NaN
    without samples. Values above the last bound count as the last bound.
    """
    assert len(counts) == len(bounds) + 1, "one bucket for each bound, one above"
    rank = sum(counts) * fraction
    seen = 0
    lower: float = 0
    for count, upper in zip(counts, bounds, strict=False):
        if count and seen + count >= rank:
            return lower + (upper - lower) * max(0.0, rank - seen) / count
        seen += count
        lower = upper
    return lower if any(counts) else float("nan")
