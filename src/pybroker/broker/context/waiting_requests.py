"""Requests that wait for others: one at a time for each name, in order of arrival, so many at most, and until a
deadline.

A request is refused with TooManyRequests when its holder has its share of the `maxWaitingTopicRequests` that may wait
in the whole broker, or when it has waited for `topicLoadTimeoutSeconds`. All clients handle that error. Otherwise a
request that can be served later waits. After the wait, the caller must look up all objects again, because they may no
longer exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from pybroker.broker.context.subscription_locks import WaitingRoom
from pybroker.config import BrokerConfig
from pybroker.errors import TooManyRequests
from pybroker.runtime import logs
from pybroker.waiting.fair_shares import FairShares
from pybroker.waiting.request_holder import ASKING

Name = TypeVar("Name", bound=Hashable)


class WaitingRequests:
    """Owned by the broker service. Invariant: `count` requests are inside of `wait`."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.shares = FairShares()
        """The number of waiting requests of each holder."""
        self.late_total = 0
        """Those that waited until their deadline."""
        self.refused_total = 0
        """The number of requests that could not wait, because the limit was reached."""
        self.subscriptions = WaitingRoom()
        """The limit of requests of all topics that wait for the lock of a subscription."""

    @property
    def count(self) -> int:
        """Number of waiting requests."""
        return self.shares.used

    @asynccontextmanager
    async def wait(self, what: str) -> AsyncIterator[None]:
        """Count a request that only waits within this context. `what` is named in the refusal. Raises TooManyRequests."""
        limit, holder = self._config.max_waiting_topic_requests, ASKING.get()
        if not self.shares.may_take(holder, limit):
            self.refused_total += 1
            why = self.shares.refusal(holder, limit, "waiting requests", "maxWaitingTopicRequests")
            raise TooManyRequests(f"{what}, and the request cannot wait: {why}")
        timeout_s = self._config.topic_load_timeout_seconds
        self.shares.add(holder.name, 1)
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            self.late_total += 1
            logs.warning("topic.load_timeout", reason=what)
            raise TooManyRequests(f"{what} for {timeout_s} s (topicLoadTimeoutSeconds), try again") from None
        finally:
            self.shares.add(holder.name, -1)


class Turns(Generic[Name]):
    """Locks by name, with one holder at a time. Invariant: each listed task holds a lock or waits for one."""

    def __init__(self, waiting: WaitingRequests) -> None:
        self._waiting = waiting
        self._locks: dict[Name, asyncio.Lock] = {}
        self._users: dict[Name, int] = {}

    def is_taken(self, name: Name) -> bool:
        """Return whether the lock of `name` is held."""
        lock = self._locks.get(name)
        return lock is not None and lock.locked()

    @asynccontextmanager
    async def turn(self, name: Name) -> AsyncIterator[None]:
        """Hold the lock of `name`, after all earlier requests. Raises TooManyRequests."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            if self._users[name] > 1:
                async with self._waiting.wait(f"{name} is being changed"):
                    await lock.acquire()
            else:
                await lock.acquire()
            try:
                yield
            finally:
                lock.release()
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]

    async def passed(self, name: Name) -> None:
        """Wait, within the caller's deadline and in order of arrival, until the lock of `name` is free."""
        while (lock := self._locks.get(name)) is not None and lock.locked():
            self._users[name] += 1
            try:
                async with lock:
                    pass
            finally:
                self._users[name] -= 1
                if not self._users[name]:
                    del self._users[name], self._locks[name]
