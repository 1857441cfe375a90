"""Closing of the topics of namespace bundles that this broker releases or has lost. Clients are notified first."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Collection
from typing import TYPE_CHECKING

from pybroker.cluster.bundles import Bundle, hash_position
from pybroker.errors import ServiceNotReady, StoreError
from pybroker.runtime import logs
from pybroker.transactions.coordinators import ASSIGN, partition_of

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.topic_closing import TopicClosing
    from pybroker.broker.lifecycle.topic_manager import Topics
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
    from pybroker.model.names import NamespaceName, TopicName
    from pybroker.runtime.tasks import TaskOwner
    from pybroker.transactions.coordinators import Coordinators


class BundleClosing:
    """Handler of acquired and lost bundles. Used only in a cluster."""

    def __init__(self, topics: Topics, closing: TopicClosing, coordinators: Coordinators, tasks: TaskOwner) -> None:
        self._topics = topics
        self._closing = closing
        self._coordinators = coordinators
        self._tasks = tasks

    def acquired(self, bundle: NamespaceBundle) -> None:
        """Start the transaction coordinators of the acquired `bundle` that have a log, so that transactions which the
        previous owner began can end.
        """
        if bundle.namespace == ASSIGN.namespace:
            self._tasks.start(self._recover_coordinators(), "recover transaction coordinators")

    async def _recover_coordinators(self) -> None:
        try:
            await self._coordinators.recover()
        except (StoreError, ServiceNotReady) as error:
            # They start when a client connects, or with the next round of the unattended coordinators.
            logs.warning("transaction_coordinators.not_recovered", error=str(error))

    async def fence(self, bundles: Collection[NamespaceBundle]) -> None:
        """Close all producers and consumers of the loaded topics in the bundles, without waiting for a store or a
        client.
        """
        await self._closing.fence(self._loaded(_Ranges(bundles)))

    async def close(self, bundles: Collection[NamespaceBundle]) -> None:
        """Close the topics in `bundles` that are loaded or being loaded at the time of the call. Topics that are loaded
        later stay open, because this broker may own the bundles again.
        """
        ranges = _Ranges(bundles)
        loaded = self._loaded(ranges)
        loading = [name for name in self._topics.loading() if ranges.contain(name)]
        running = [each.id for each in self._coordinators.running() if ranges.contain(partition_of(each.id))]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._coordinators.stop(running))
            await self._closing.close_topics(loaded)
            for name in loading:
                await self._topics.settled(name)
            names = {str(name) for name in loading}
            await self._closing.close_topics([topic for topic in self._loaded(ranges) if str(topic.name) in names])

    def _loaded(self, ranges: _Ranges) -> list[TopicBase]:
        return [topic for topic in self._topics.loaded.all() if ranges.contain(topic.name)]


class _Ranges:
    def __init__(self, bundles: Collection[NamespaceBundle]) -> None:
        self._by_namespace: dict[NamespaceName, list[Bundle]] = {}
        for bundle in sorted(bundles, key=lambda each: each.range):
            self._by_namespace.setdefault(bundle.namespace, []).append(bundle.range)

    def contain(self, topic: TopicName) -> bool:
        ranges = self._by_namespace.get(topic.namespace)
        if ranges is None:
            return False
        position = hash_position(topic)
        index = bisect_right(ranges, position, key=lambda each: each.lower) - 1
        return index >= 0 and position in ranges[index]
