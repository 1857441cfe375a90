"""Publish rate limits that apply to one topic: of the broker, the resource group, and the topic.

A message over a limit is not rejected. The broker stops reading from its client, even within received data, until the
limit permits the message; this preserves the order of messages. Messages also wait here while the topic restores its
deduplication state. Clients continue in order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.broker.limits.publish_rate_limit import PublishRateLimit, PublishWaiter, WaitingPublishers
from pybroker.model.counters import TopicCounters
from pybroker.model.events import SendRun
from pybroker.runtime.clock import Clock


class PublishThrottle:
    """Combined publish limits of one topic. `own`: the limit of this topic alone. `held`: queue of all clients while
    the topic accepts no messages.
    """

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
        """Return how many of a producer's messages (`run`) may be published now, and consume their tokens."""
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
        """Add the connection `waiter` to the queue of the limit that takes longest to permit messages. Return that
        queue.
        """
        if self.held is not None:
            self.held.wait(waiter)
            return self.held
        self._counters.publish_rate_limited += 1
        limit = max(self.limits, key=lambda each: each.buckets.wait_ms())
        limit.wait(waiter)
        return limit

    def close(self, after: PublishThrottle | None) -> None:
        """Replace these limits by the limits `after` (None: no limits). Clients that wait for a limit that no longer
        applies continue.
        """
        if self.held is not None and (after is None or after.held is not self.held):
            self.held.open()
        for limit in self.limits:
            if after is None or limit not in after.limits:
                limit.open()
