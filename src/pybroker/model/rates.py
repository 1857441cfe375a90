"""How fast counters rise, measured from one reading to the next.

Pure: whoever reads the counters passes the time, once a `statsUpdateFrequencyInSecs`. Between two readings everything
here stands still, so that all who ask within one window see the same figures.
"""

from __future__ import annotations

from pybroker.model.stats import Buckets, DeliveryCounters, ProducerCounters, TopicCounters


class Rate:
    """Events per second of one rising counter over its last window.

    Invariant: never negative, and 0 until the first window has ended.
    """

    __slots__ = ("_read_ms", "_total", "per_second")

    def __init__(self, now_ms: float, total: int = 0) -> None:
        self.per_second = 0.0
        self._total = total
        self._read_ms = now_ms

    def update(self, total: int, now_ms: float) -> None:
        """End the window: the counter stands at `total` now. `now_ms` is monotonic time."""
        assert total >= self._total, "a counter never falls"
        elapsed_ms = now_ms - self._read_ms
        if elapsed_ms <= 0:
            return  # No window has passed; the events stay for the next one.
        self.per_second = (total - self._total) * 1000 / elapsed_ms
        self._total = total
        self._read_ms = now_ms


class BucketsWindow:
    """The samples that fell into each bucket during the last window."""

    __slots__ = ("_counts", "_total", "counts", "total")

    def __init__(self, bucket_count: int) -> None:
        self.counts = [0] * bucket_count
        self.total: float = 0
        self._counts = self.counts
        self._total: float = 0

    def update(self, buckets: Buckets) -> None:
        """End the window: `buckets` is what was counted since the beginning."""
        counts = buckets.counts.copy()
        self.counts = [count - before for count, before in zip(counts, self._counts, strict=True)]
        self.total = buckets.total - self._total
        self._counts = counts
        self._total = buckets.total

    @property
    def count(self) -> int:
        return sum(self.counts)


class TopicRates:
    """What came into one topic during the last window."""

    __slots__ = ("bytes_in", "entries_in", "entry_size_bytes", "messages_in", "publish_latency_ms")

    def __init__(self, now_ms: float, counters: TopicCounters) -> None:
        """A window that begins at `now_ms`, when all counters stood at 0."""
        self.messages_in = Rate(now_ms)
        self.bytes_in = Rate(now_ms)
        self.entries_in = Rate(now_ms)
        self.publish_latency_ms = BucketsWindow(len(counters.publish_latency_ms.counts))
        self.entry_size_bytes = BucketsWindow(len(counters.entry_size_bytes.counts))

    def update(self, counters: TopicCounters, now_ms: float) -> None:
        self.messages_in.update(counters.messages_in, now_ms)
        self.bytes_in.update(counters.bytes_in, now_ms)
        self.entries_in.update(counters.entries_in, now_ms)
        self.publish_latency_ms.update(counters.publish_latency_ms)
        self.entry_size_bytes.update(counters.entry_size_bytes)


class ProducerRates:
    """What one producer sent during the last window."""

    __slots__ = ("bytes_in", "chunks_in", "messages_in")

    def __init__(self, now_ms: float) -> None:
        """A window that begins at `now_ms`, when all counters stood at 0."""
        self.messages_in = Rate(now_ms)
        self.bytes_in = Rate(now_ms)
        self.chunks_in = Rate(now_ms)

    def update(self, counters: ProducerCounters, now_ms: float) -> None:
        self.messages_in.update(counters.messages_in, now_ms)
        self.bytes_in.update(counters.bytes_in, now_ms)
        self.chunks_in.update(counters.chunks_in, now_ms)


class DeliveryRates:
    """What one subscription or consumer was sent, and acknowledged, during the last window."""

    __slots__ = (
        "acked_messages",
        "bytes_out",
        "chunks_out",
        "expired_entries",
        "messages_out",
        "redelivered_messages",
    )

    def __init__(self, now_ms: float) -> None:
        """A window that begins at `now_ms`, when all counters stood at 0."""
        self.messages_out = Rate(now_ms)
        self.bytes_out = Rate(now_ms)
        self.chunks_out = Rate(now_ms)
        self.redelivered_messages = Rate(now_ms)
        self.acked_messages = Rate(now_ms)
        self.expired_entries = Rate(now_ms)

    def update(self, counters: DeliveryCounters, now_ms: float) -> None:
        self.messages_out.update(counters.messages_out, now_ms)
        self.bytes_out.update(counters.bytes_out, now_ms)
        self.chunks_out.update(counters.chunks_out, now_ms)
        self.redelivered_messages.update(counters.redelivered_messages, now_ms)
        self.acked_messages.update(counters.acked_messages, now_ms)
        self.expired_entries.update(counters.expired_entries, now_ms)


def quantile(counts: list[int], bounds: tuple[float, ...], fraction: float) -> float:
    """The value below which `fraction` of the samples lie, linear within a bucket; NaN without samples.

    Above the last bound nothing is known: the answer is that bound.
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
