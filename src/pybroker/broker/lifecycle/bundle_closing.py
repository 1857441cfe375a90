"""Closing of the topics of namespace bundles that this broker gives up or has lost.

First all clients are notified, which needs no storage; then the topics are closed, many at once.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Collection
from typing import TYPE_CHECKING

from pybroker.cluster.bundles import Bundle, hash_position

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.topic_closing import TopicClosing
    from pybroker.broker.lifecycle.topic_manager import Topics
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.cluster.ownership.namespace_bundle import NamespaceBundle
    from pybroker.model.names import NamespaceName, TopicName


class BundleClosing:
    """Owned by the broker service of a cluster."""

    def __init__(self, topics: Topics, closing: TopicClosing) -> None:
        self._topics = topics
        self._closing = closing

    async def fence(self, bundles: Collection[NamespaceBundle]) -> None:
        """Close the producers and consumers of all loaded topics of the bundles. Waits for no store and no client."""
        await self._closing.fence(self._loaded(_Ranges(bundles)))

    async def close(self, bundles: Collection[NamespaceBundle]) -> None:
        """Close all topics of the bundles, also those that are being loaded. The caller prevents further loads."""
        ranges = _Ranges(bundles)
        while True:
            loaded = self._loaded(ranges)
            await self._closing.close_topics(loaded)
            loading = [name for name in self._topics.loading() if ranges.contain(name)]
            for name in loading:
                await self._topics.settled(name)
            if not loaded and not loading:
                return
            await asyncio.sleep(0)

    def _loaded(self, ranges: _Ranges) -> list[TopicBase]:
        return [topic for topic in self._topics.loaded.all() if ranges.contain(topic.name)]


class _Ranges:
    """The hash ranges of bundles by namespace: a broker can have thousands of bundles and of topics."""

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
