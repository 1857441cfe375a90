"""A dispatch rate at work: how many messages and bytes may go out now.

Pure; the caller passes the time, monotonic milliseconds. What was read goes out whole, so a limit may be overdrawn: then
nothing goes until that is made up for, and over any longer time the rate holds.
"""

from __future__ import annotations

from math import inf

from pybroker.model.policies import DispatchRate
from pybroker.model.token_bucket import TokenBucket

_MS_PER_S = 1000


def is_limited(rate: DispatchRate) -> bool:
    """Whether the rate limits anything."""
    return rate.dispatchThrottlingRateInMsg > 0 or rate.dispatchThrottlingRateInByte > 0


class DispatchLimit:
    """Of a broker, a topic or a subscription, whoever owns it; all that are served under it share it."""

    __slots__ = ("_buckets", "_bytes", "_bytes_in", "_messages", "_messages_in", "rate", "scope")

    def __init__(self, scope: str, rate: DispatchRate, now_ms: float, messages_in: int, bytes_in: int) -> None:
        """`scope` is whose limit it is, as statistics name it. `messages_in` and `bytes_in` are what was published so far; they
        count in a rate relative to publishing.
        """
        assert is_limited(rate)
        self.scope = scope
        self.rate = rate
        period_ms = max(1, rate.ratePeriodInSecond) * _MS_PER_S
        messages, size_bytes = rate.dispatchThrottlingRateInMsg, rate.dispatchThrottlingRateInByte
        self._messages = TokenBucket(messages, period_ms, now_ms) if messages > 0 else None
        self._bytes = TokenBucket(size_bytes, period_ms, now_ms) if size_bytes > 0 else None
        self._buckets = [bucket for bucket in (self._messages, self._bytes) if bucket is not None]
        self._messages_in = messages_in
        self._bytes_in = bytes_in

    def published(self, messages_in: int, bytes_in: int) -> None:
        """So much was published in all: a relative rate lets as much more go out."""
        if self.rate.relativeToPublishRate:
            if self._messages is not None:
                self._messages.add(messages_in - self._messages_in)
            if self._bytes is not None:
                self._bytes.add(bytes_in - self._bytes_in)
            self._messages_in, self._bytes_in = messages_in, bytes_in

    def allowance(self, now_ms: float) -> tuple[float, float]:
        """How many messages and bytes may go out now; infinite where there is no limit."""
        messages = inf if self._messages is None else self._messages.available(now_ms)
        return messages, inf if self._bytes is None else self._bytes.available(now_ms)

    def spend(self, messages: int, size_bytes: int) -> None:
        """So much went out."""
        if self._messages is not None:
            self._messages.spend(messages)
        if self._bytes is not None:
            self._bytes.spend(size_bytes)

    def wait_ms(self) -> int:
        """How long after the last look at it something may go out again."""
        return max(bucket.wait_ms() for bucket in self._buckets)
