"""One dispatch rate limit: how many messages and bytes may be delivered now. Pure."""

from __future__ import annotations

from pybroker.broker.limits.rate_buckets import RateBuckets
from pybroker.model.policies import DispatchRate

_MS_PER_S = 1000


def is_limited(rate: DispatchRate) -> bool:
    return rate.dispatchThrottlingRateInMsg > 0 or rate.dispatchThrottlingRateInByte > 0


class DispatchRateLimit(RateBuckets):
    """Dispatch rate and its remaining tokens, shared by all subscriptions to which it applies."""

    __slots__ = ("_bytes_in", "_messages_in", "rate", "scope")

    def __init__(self, scope: str, rate: DispatchRate, now_ms: float, messages_in: int, bytes_in: int) -> None:
        """`scope`: level of the limit, for statistics. `messages_in`, `bytes_in`: published totals, for a rate relative
        to the publish rate.
        """
        period_ms = max(1, rate.ratePeriodInSecond) * _MS_PER_S
        super().__init__(rate.dispatchThrottlingRateInMsg, rate.dispatchThrottlingRateInByte, period_ms, now_ms)
        self.scope = scope
        self.rate = rate
        self._messages_in = messages_in
        self._bytes_in = bytes_in

    def published(self, messages_in: int, bytes_in: int) -> None:
        if self.rate.relativeToPublishRate:
            self.add(messages_in - self._messages_in, bytes_in - self._bytes_in)
            self._messages_in, self._bytes_in = messages_in, bytes_in
