"""The subscriptions that have something to dispatch, worked off by one callback a turn within a time budget.

Chains of short callbacks would starve the journal's writer thread of the interpreter lock (design: a chained catch-up pump made a
commit take a second); one callback with a budget leaves the loop to everybody else in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.clock import Clock

if TYPE_CHECKING:
    from pybroker.broker.subscription import Subscription

TURN_BUDGET_MS = 0.4


class PumpList:
    """Owned by the broker service. Invariant: a callback is scheduled exactly while the list is not empty."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._queue: deque[Subscription] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, subscription: Subscription) -> None:
        """Pump `subscription` in a coming turn; it is not queued yet."""
        assert not subscription.is_queued
        subscription.is_queued = True
        self._queue.append(subscription)
        if len(self._queue) == 1:
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        deadline_ms = self._clock.monotonic_ms() + TURN_BUDGET_MS
        queue = self._queue
        for _ in range(len(queue)):
            subscription = queue[0]
            has_more = False
            try:
                has_more = subscription.pump(deadline_ms)
            except Exception as bug:  # noqa: BLE001  (a fault boundary)
                # A broken invariant belongs to its topic: the others go on.
                logs.error(
                    "dispatch.failed", topic=subscription.topic.name, subscription=subscription.name, exc_info=bug
                )
                subscription.topic.fail(bug)
            queue.popleft()
            subscription.is_queued = False
            if has_more:
                subscription.is_queued = True
                queue.append(subscription)
            if self._clock.monotonic_ms() >= deadline_ms:
                break
        if queue:
            self._loop.call_soon(self._run)
