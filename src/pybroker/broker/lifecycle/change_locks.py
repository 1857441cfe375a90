"""Locks for operations on a whole partitioned topic (creation, extension, deletion) or namespace (deletion).

A task that creates or loads a topic waits for these locks. The holder of a lock never waits for such a task.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from pybroker.broker.context.waiting_requests import WaitingRequests
from pybroker.model.names import NamespaceName, TopicName
from pybroker.waiting.keyed_lock import KeyedLock


class ChangeLocks:
    """Locks of partitioned topics and namespaces. Waiting for a lock may raise TooManyRequests."""

    def __init__(self, waiting: WaitingRequests) -> None:
        def wait_context(name: TopicName | NamespaceName) -> AbstractAsyncContextManager[None]:
            return waiting.wait(f"{name} is being changed")

        self.partitioned: KeyedLock[TopicName] = KeyedLock(wait_context)
        """Also held while a topic, or one partition, is created on demand."""
        self.namespaces: KeyedLock[NamespaceName] = KeyedLock(wait_context)

    async def passed(self, name: TopicName) -> None:
        await self.namespaces.passed(name.namespace)
        await self.partitioned.passed(name.partitioned_name)
