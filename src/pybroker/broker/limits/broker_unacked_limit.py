"""Limit of unacknowledged messages over all subscriptions of the broker (`maxUnackedMessagesPerBroker`). Pure.

At the limit, subscriptions above their share are blocked. A blocked subscription resumes at half of its share, and all
resume when the total falls to half of the limit.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import nlargest
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class BrokerUnackedLimit(Generic[K]):
    """Counts unacknowledged messages and decides which subscriptions are blocked."""

    def __init__(self, max_messages: int, share: float) -> None:
        """`share`: fraction of the limit, between 0 and 1, that each subscription may always use."""
        assert max_messages > 0
        self.total = 0
        self.max_messages = max_messages
        self.max_share = max(1, int(max_messages * share))
        self._held: dict[K, int] = {}
        self._stopped: dict[K, None] = {}
        self._is_exceeded = False

    def is_stopped(self, subscription: K) -> bool:
        return subscription in self._stopped

    def most(self, count: int) -> list[tuple[K, int]]:
        return nlargest(count, self._held.items(), key=lambda each: each[1])

    def report(self, subscription: K, unacked_messages: int) -> list[K]:
        """Set the number of unacknowledged messages of `subscription`. Return the blocked subscriptions that may
        resume.
        """
        before = self._held.pop(subscription, 0)
        if unacked_messages:
            self._held[subscription] = unacked_messages
        self.total += unacked_messages - before
        if not self._is_exceeded:
            if self.total >= self.max_messages:
                self._is_exceeded = True
                self._stopped = dict.fromkeys(each for each, held in self._held.items() if held > self.max_share)
            return []
        if self.total <= self.max_messages // 2:
            self._is_exceeded = False
            released = list(self._stopped)
            self._stopped = {}
            return released
        if unacked_messages > self.max_share:
            self._stopped[subscription] = None
        elif subscription in self._stopped and unacked_messages <= self.max_share // 2:
            del self._stopped[subscription]
            return [subscription]
        return []
