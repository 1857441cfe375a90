"""Who waits for a limit on publishing, for how long, and in which order: in virtual time, without a broker around it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, cast

from pybroker.broker.limits.publish_rate_limit import PublishRateLimit, PublishWaiter, renewed_publish_limit
from pybroker.broker.limits.publish_throttle import PublishThrottle
from pybroker.model.counters import TopicCounters
from pybroker.model.events import SendRun
from pybroker.model.policies import PublishRate


class ManualRuntime:
    """A runtime whose clock jumps from one timer to the next, and the throttles that use it."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.counters = TopicCounters()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    @property
    def clock(self) -> ManualRuntime:
        return self

    @property
    def runtime(self) -> ManualRuntime:
        return self

    def monotonic_ms(self) -> float:
        return self.now_ms

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._timers, (self.now_ms + delay_s * 1000, self._serial, callback))

    def run_until(self, end_ms: float) -> None:
        """Let the time pass with all timers that are due."""
        while self._timers and self._timers[0][0] <= end_ms:
            self.now_ms, _, callback = heapq.heappop(self._timers)
            callback()
        self.now_ms = end_ms

    def blocked_reason(self, messages: int = -1, size_bytes: int = -1) -> PublishRateLimit:
        return PublishRateLimit(cast(Any, self), PublishRate(messages, size_bytes))

    def throttle(self, own: PublishRateLimit | None, shared: Sequence[PublishRateLimit] = ()) -> PublishThrottle:
        return PublishThrottle(cast(Any, self), self.counters, own, shared)


class Client(PublishWaiter):
    """Has `left` messages to publish and keeps the time of each that it might."""

    def __init__(self, runtime: ManualRuntime, throttle: PublishThrottle, left: int, size_bytes: int = 10) -> None:
        self.runtime = runtime
        self.throttle = throttle
        self.left = left
        self.size_bytes = size_bytes
        self.published_ms: list[float] = []
        self.blocked_reason: PublishRateLimit | None = None

    def publish_again(self) -> None:
        run = SendRun(1)
        run.payloads = [bytes(self.size_bytes)] * self.left
        run.message_counts = [1] * self.left
        run.size_bytes = self.size_bytes * self.left
        passing = self.throttle.admit(run)
        self.published_ms += [self.runtime.now_ms] * passing
        self.left -= passing
        if self.left:
            self.blocked_reason = self.throttle.wait(self)  # type: ignore[assignment]


def test_one_client_publishes_one_second_of_rate_at_once_then_evenly() -> None:
    runtime = ManualRuntime()
    client = Client(runtime, runtime.throttle(runtime.blocked_reason(5)), 20)
    client.publish_again()
    runtime.run_until(10_000)
    assert client.published_ms == [0.0] * 5 + [200.0 * each for each in range(1, 16)]
    assert runtime.counters.publish_rate_limited == 15


def test_waiting_clients_publish_round_robin() -> None:
    runtime = ManualRuntime()
    throttle = runtime.throttle(runtime.blocked_reason(10))
    clients = [Client(runtime, throttle, 1000) for _ in range(3)]
    for client in clients:
        client.publish_again()
    runtime.run_until(30_000)
    counts = [len(client.published_ms) for client in clients]
    assert sum(counts) == 10 + 300
    assert max(counts) - min(counts) <= 10


def test_message_above_one_second_of_rate_passes_and_next_waits() -> None:
    runtime = ManualRuntime()
    client = Client(runtime, runtime.throttle(runtime.blocked_reason(size_bytes=100)), 2, size_bytes=5000)
    client.publish_again()
    runtime.run_until(48_999)
    assert client.published_ms == [0.0]
    runtime.run_until(50_100)
    assert len(client.published_ms) == 2
    assert runtime.counters.publish_rate_limited == 1


def test_slower_of_two_limits_applies() -> None:
    runtime = ManualRuntime()
    own, shared = runtime.blocked_reason(10), runtime.blocked_reason(2)
    slow = Client(runtime, runtime.throttle(own, [shared]), 100)
    slow.publish_again()
    assert slow.blocked_reason is shared
    other = Client(runtime, runtime.throttle(runtime.blocked_reason(1000), [shared]), 100)
    other.publish_again()
    runtime.run_until(20_000)
    assert len(slow.published_ms) + len(other.published_ms) == 2 + 40
    assert abs(len(slow.published_ms) - len(other.published_ms)) <= 2


def test_opened_limit_wakes_all_waiters() -> None:
    runtime = ManualRuntime()
    blocked_reason = runtime.blocked_reason(1)
    clients = [Client(runtime, runtime.throttle(blocked_reason), 50) for _ in range(3)]
    for client in clients:
        client.publish_again()
    for client in clients[:2]:
        client.throttle = runtime.throttle(None, [runtime.blocked_reason(1000)])
    blocked_reason.open()
    assert [client.left for client in clients] == [0, 0, 50]
    runtime.run_until(2000)
    assert clients[2].left < 50, "who is still under the limit waits on"


def test_waiter_that_left_is_not_called() -> None:
    runtime = ManualRuntime()
    blocked_reason = runtime.blocked_reason(1)
    gone, stays = (Client(runtime, runtime.throttle(blocked_reason), 5) for _ in range(2))
    gone.publish_again()
    stays.publish_again()
    before = len(gone.published_ms)
    blocked_reason.leave(gone)
    runtime.run_until(10_000)
    assert len(gone.published_ms) == before
    assert stays.left == 0


def test_limit_is_kept_while_rate_is_unchanged() -> None:
    runtime = ManualRuntime()
    blocked_reason = runtime.blocked_reason(5)
    assert renewed_publish_limit(cast(Any, runtime), blocked_reason, PublishRate(5, -1)) is blocked_reason
    assert renewed_publish_limit(cast(Any, runtime), blocked_reason, PublishRate(6, -1)) is not blocked_reason
    assert renewed_publish_limit(cast(Any, runtime), blocked_reason, PublishRate(0, 0)) is None
