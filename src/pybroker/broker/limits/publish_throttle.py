"""What slows publishing down: the rates of broker, resource group and topic that are limited.

A message over a limit is not refused: who sent it is not read from until it may pass, nor is what else that client sends, since its
order counts. It stops in the middle of what was read: 64 KiB can hold a thousand small messages, minutes of a low rate, and their
senders would time out. A topic without any limit has no throttle, and pays nothing.

A topic whose messages cannot be judged yet (`broker/publishing/topic_deduplication.py`) holds them back in the same way.

What must hold: whoever waits goes on as soon as the limit lets the next message pass, those of one limit by turns; when a limit is
changed or its topic closes, nobody waits for what was before.
"""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.broker.limits.publish_rate_limit import PublishRateLimit, PublishWaiter, WaitingPublishers
from pybroker.model.counters import TopicCounters
from pybroker.model.events import SendRun
from pybroker.runtime.clock import Clock


class PublishThrottle:
    """What holds for one topic. Owned by it; `own` is the limit that it shares with nobody, `held` the row in which everybody
    waits while the topic takes nothing."""

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
        """How many of these messages may be published now, which counts as done."""
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
        """Make `waiter` wait for the limit that lets something pass last; where it waits."""
        if self.held is not None:
            self.held.wait(waiter)
            return self.held
        self._counters.publish_rate_limited += 1
        limit = max(self.limits, key=lambda each: each.buckets.wait_ms())
        limit.wait(waiter)
        return limit

    def close(self, after: PublishThrottle | None) -> None:
        """`after` holds from now on, None for nothing: who waits for a limit that does not hold any more goes on."""
        if self.held is not None and (after is None or after.held is not self.held):
            self.held.open()
        for limit in self.limits:
            if after is None or limit not in after.limits:
                limit.open()
