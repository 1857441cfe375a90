"""A histogram of publish latencies, with the buckets of Pulsar's WebSocket statistics. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

BUCKETS_US = (500, 1_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 1_000_000)
_US_PER_MS = 1000


class PublishLatency:
    """Counts of messages by the time until their receipt."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_US) + 1)

    def add(self, latency_ms: float) -> None:
        self.counts[bisect_left(BUCKETS_US, latency_ms * _US_PER_MS)] += 1


def bucket_names() -> Iterator[str]:
    """Yield the names of the buckets: their upper bounds in microseconds, as Pulsar writes them."""
    yield from map(str, BUCKETS_US)
    yield f"{BUCKETS_US[-1]}_higher"
