"""Rate limit of SUBSCRIBE commands per consumer on a topic. Pure; times are monotonic milliseconds."""

from __future__ import annotations

from collections.abc import Hashable

from pybroker.model.policies import SubscribeRate
from pybroker.waiting.token_bucket import TokenBucket

MAX_CONSUMERS = 10_000
"""Maximum number of tracked consumers. Above it, idle consumers are removed first, then the oldest."""


class SubscribeRateLimit:
    """Subscribe rate of one topic, with a token count for each consumer."""

    def __init__(self, rate: SubscribeRate) -> None:
        assert rate.subscribeThrottlingRatePerConsumer > 0
        self.rate = rate
        self._buckets: dict[Hashable, TokenBucket] = {}

    def admits(self, consumer: Hashable, now_ms: float) -> bool:
        """Return whether `consumer` may subscribe now. If so, consume a token."""
        bucket = self._buckets.get(consumer)
        if bucket is None:
            if len(self._buckets) >= MAX_CONSUMERS:
                self._forget(now_ms)
            period_ms = max(1, self.rate.ratePeriodInSecond) * 1000
            bucket = TokenBucket(self.rate.subscribeThrottlingRatePerConsumer, period_ms, now_ms)
            self._buckets[consumer] = bucket
        if bucket.available(now_ms) <= 0:
            return False
        bucket.spend(1)
        return True

    def _forget(self, now_ms: float) -> None:
        self._buckets = {
            consumer: bucket for consumer, bucket in self._buckets.items() if bucket.available(now_ms) < bucket.units
        }
        while len(self._buckets) >= MAX_CONSUMERS:
            del self._buckets[next(iter(self._buckets))]
