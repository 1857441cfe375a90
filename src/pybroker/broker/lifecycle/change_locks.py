"""What is being changed as a whole: partitioned topics that are made, grown or deleted, and namespaces that are deleted.

Whoever changes one takes its turn here; whoever makes or loads a topic looks here first, and waits. What must hold: nobody in a
turn waits for somebody who waits for that turn to pass.
"""

from __future__ import annotations

from pybroker.broker.context.waiting_requests import Turns, WaitingRequests
from pybroker.model.names import NamespaceName, TopicName


class ChangeLocks:
    """Owned by the broker service."""

    def __init__(self, waiting: WaitingRequests) -> None:
        self.partitioned: Turns[TopicName] = Turns(waiting)
        """By the partitioned topic's name; also held while a topic, or one partition, is made on demand."""
        self.namespaces: Turns[NamespaceName] = Turns(waiting)
        """Those that are being deleted."""

    async def passed(self, name: TopicName) -> None:
        """Wait, within the caller's deadline and in order of arrival, until nobody changes the namespace of `name`, nor the
        partitioned topic that it is or belongs to."""
        await self.namespaces.passed(name.namespace)
        await self.partitioned.passed(name.partitioned_name)
