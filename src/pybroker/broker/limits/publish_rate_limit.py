"""One publish rate limit of a broker, resource group or topic, with its queue of waiting clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pybroker.broker.limits.rate_buckets import RateBuckets
from pybroker.model.policies import PublishRate
from pybroker.runtime.clock import Clock

if TYPE_CHECKING:
    from pybroker.runtime.runtime import Runtime

MAX_WAIT_MS = 1000
"""A long wait is split into steps, so that a limit that is no longer in use is released."""


class PublishWaiter(ABC):
    """A client connection that can wait for a publish rate."""

    @abstractmethod
    def publish_again(self) -> None: ...


class WaitingPublishers:
    """Queue of clients that wait to publish. If the queue belongs to no rate limit, clients wait until `open` is
    called.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[PublishWaiter, float] = {}  # monotonic start of each wait

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest_since_ms(self) -> float | None:
        """Start of the longest wait in milliseconds of the monotonic clock; None if the queue is empty."""
        return min(self._waiting.values(), default=None)

    def waits_since_ms(self, waiter: PublishWaiter) -> float | None:
        """Return the start of the client's wait in milliseconds of the monotonic clock; None if it does not wait."""
        return self._waiting.get(waiter)

    def wait(self, waiter: PublishWaiter) -> None:
        self._waiting[waiter] = self._clock.monotonic_ms()

    def leave(self, waiter: PublishWaiter) -> None:
        self._waiting.pop(waiter, None)

    def open(self) -> None:
        for waiter in list(self._waiting):
            self._let_go(waiter)

    def _let_go(self, waiter: PublishWaiter) -> None:
        since_ms = self._waiting.pop(waiter, None)
        if since_ms is not None:
            waiter.publish_again()
            if waiter in self._waiting:  # More messages followed than could pass; its wait continues.
                self._waiting[waiter] = since_ms


class PublishRateLimit(WaitingPublishers):
    """Publish rate, its remaining tokens and its queue, shared by all topics to which it applies."""

    def __init__(self, runtime: Runtime, rate: PublishRate) -> None:
        assert is_limited(rate)
        super().__init__(runtime.clock)
        self.rate = rate
        self.buckets = RateBuckets(
            rate.publishThrottlingRateInMsg, rate.publishThrottlingRateInByte, 1000, runtime.clock.monotonic_ms()
        )
        self._runtime = runtime
        self._is_timed = False

    def wait(self, waiter: PublishWaiter) -> None:
        super().wait(waiter)
        if not self._is_timed:
            self._is_timed = True
            self._runtime.call_later(min(MAX_WAIT_MS, max(1, self.buckets.wait_ms())) / 1000, self._time_passed)

    def _time_passed(self) -> None:
        self._is_timed = False
        while self._waiting and min(self.buckets.allowance(self._runtime.clock.monotonic_ms())) > 0:
            self._let_go(next(iter(self._waiting)))  # It moves to the end of the queue if it must wait again.
        if self._waiting:
            self.wait(next(iter(self._waiting)))


def is_limited(rate: PublishRate) -> bool:
    return rate.publishThrottlingRateInMsg > 0 or rate.publishThrottlingRateInByte > 0


def renewed_publish_limit(
    runtime: Runtime, before: PublishRateLimit | None, rate: PublishRate
) -> PublishRateLimit | None:
    """Return the limit for `rate`: the object `before` if the rate is unchanged, None for an unlimited rate."""
    if not is_limited(rate):
        return None
    return before if before is not None and before.rate == rate else PublishRateLimit(runtime, rate)
