"""Limit of requests per second and client address (`httpRequestsLimitEnabled`).

At most MAX_CLIENTS addresses are tracked; the least recently active address is removed first.
"""

from __future__ import annotations

from pybroker.errors import AdminError
from pybroker.waiting.token_bucket import TokenBucket

MAX_CLIENTS = 10_000


class RequestLimit:
    """Token buckets by client address. Times are monotonic milliseconds."""

    def __init__(self, max_per_second: float) -> None:
        assert max_per_second > 0
        self._max_per_second = max_per_second
        # Integer units and milliseconds: 0.5 requests per second are one in two seconds.
        self._units = max(1, int(max_per_second))
        self._period_ms = max(1, round(1000 * self._units / max_per_second))
        self._buckets: dict[str, TokenBucket] = {}

    def take(self, address: str, now_ms: float) -> None:
        """Count one request of `address`. Raises AdminError 429 above the limit."""
        # Reinsert, so that the dictionary is ordered by last request.
        bucket = self._buckets.pop(address, None) or TokenBucket(self._units, self._period_ms, now_ms)
        if len(self._buckets) >= MAX_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[address] = bucket
        if bucket.available(now_ms) < 1:
            raise AdminError(
                429,
                (
                    f"More than {self._max_per_second:g} HTTP requests arrived in this second "
                    "(httpRequestsMaxPerSecond): send the request again later"
                ),
            )
        bucket.spend(1)
