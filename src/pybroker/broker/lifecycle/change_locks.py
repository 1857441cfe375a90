"""Locks of objects that are changed as a whole: partitioned topics that are created, extended, or deleted, and namespaces that are
deleted.

A task that changes such an object holds its lock. A task that creates or loads a topic checks the lock first and waits. Invariant:
the holder of a lock never waits for a task that waits for this lock.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from pybroker.broker.context.waiting_requests import WaitingRequests
from pybroker.model.names import NamespaceName, TopicName
from pybroker.waiting.keyed_lock import KeyedLock


class ChangeLocks:
    """Owned by the broker service. Waiting for a lock raises TooManyRequests."""

    def __init__(self, waiting: WaitingRequests) -> None:
        def wait_context(name: TopicName | NamespaceName) -> AbstractAsyncContextManager[None]:
            return waiting.wait(f"{name} is being changed")

        self.partitioned: KeyedLock[TopicName] = KeyedLock(wait_context)
        """By the name of the partitioned topic. Also held while a topic, or one partition, is created on demand."""
        self.namespaces: KeyedLock[NamespaceName] = KeyedLock(wait_context)
        """Those that are being deleted."""

    async def passed(self, name: TopicName) -> None:
        """Wait, within the caller's deadline and in order of arrival, until no task changes the namespace of `name` or its
        partitioned topic.
        """
        await self.namespaces.passed(name.namespace)
        await self.partitioned.passed(name.partitioned_name)
