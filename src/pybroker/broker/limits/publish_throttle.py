"""The publish rate limits of one topic: those of the broker, the resource group, and the topic.

A message over a limit is not refused: the broker stops reading from its client until the message may pass, which keeps the order.
It stops in the middle of a read: 64 KiB can contain a thousand small messages, minutes of a low rate, and their senders would time
out. A topic that cannot check its messages yet (`broker/publishing/topic_deduplication.py`) delays them in the same way. A topic
without a limit has no throttle.

Invariants: a waiter continues as soon as its limit permits the next message, and waiters of one limit continue in order; when a
limit is changed or its topic closes, no client waits for the old limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.broker.limits.publish_rate_limit import PublishRateLimit, PublishWaiter, WaitingPublishers
from pybroker.model.counters import TopicCounters
from pybroker.model.events import SendRun
from pybroker.runtime.clock import Clock


class PublishThrottle:
    """`own` is the limit of the topic alone, `held` the queue of all clients while the topic accepts nothing."""

    def __init__(
        self,
        clock: Clock,
        counters: TopicCounters,
        own: PublishRateLimit | None,
        shared: Sequence[PublishRateLimit],
        held: WaitingPublishers | None = None,
    ) -> None:
        self.own = own
        self.held = held
        self.limits = [*shared, *([] if own is None else [own])]
        self._clock = clock
        self._counters = counters

    def admit(self, run: SendRun) -> int:
        """Return how many of these messages may be published now, and count them."""
        if self.held is not None:
            return 0
        now_ms = self._clock.monotonic_ms()
        counts, payloads = run.message_counts, run.payloads
        passing = min(limit.buckets.passing(counts, payloads, run.size_bytes, now_ms) for limit in self.limits)
        if passing:
            messages, size_bytes = sum(counts[:passing]), sum(map(len, payloads[:passing]))
            for limit in self.limits:
                limit.buckets.spend(messages, size_bytes)
        return passing

    def wait(self, waiter: PublishWaiter) -> WaitingPublishers:
        """Make `waiter` wait for the limit with the longest wait. Return the queue."""
        if self.held is not None:
            self.held.wait(waiter)
            return self.held
        self._counters.publish_rate_limited += 1
        limit = max(self.limits, key=lambda each: each.buckets.wait_ms())
        limit.wait(waiter)
        return limit

    def close(self, after: PublishThrottle | None) -> None:
        """Replace the throttle by `after`. Clients that wait for a limit that no longer applies continue."""
        if self.held is not None and (after is None or after.held is not self.held):
            self.held.open()
        for limit in self.limits:
            if after is None or limit not in after.limits:
                limit.open()
