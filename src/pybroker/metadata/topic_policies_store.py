"""The interface for storing policies of single topics, and its implementation by documents in the metadata store.

With ledgers on BookKeeper, `broker/policies/system_topic_policies.py` implements it by the system topic that Java
brokers use too.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from pybroker.metadata import metadata_paths, stored_document
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.model.names import TopicName
from pybroker.model.policies import TopicPolicies

Change = Callable[[TopicPolicies], None]


class TopicPoliciesStore(ABC):
    """Stores policies of single topics. A partition has the policies of its partitioned topic: callers pass the name of
    the partitioned topic.

    All methods raise ServiceNotReady while the broker stops.
    """

    @abstractmethod
    async def get(self, topic: TopicName) -> TopicPolicies:
        """Return the policies that are set for `topic` in this cluster; the defaults if none are set. Raises
        StoreError.
        """

    @abstractmethod
    async def in_force(self, topic: TopicName) -> TopicPolicies:
        """Return the policies that are in force for `topic` in this cluster: each one as set for this cluster, or else
        as set for all clusters. Raises StoreError.
        """

    @abstractmethod
    async def update(self, topic: TopicName, change: Change) -> None:
        """Apply `change` to the policies of `topic`. The result is durable when the method returns. Raises StoreError,
        and AdminError if the policies cannot be changed.
        """

    @abstractmethod
    async def delete(self, topic: TopicName) -> None:
        """Delete the policies of `topic`, if there are any. Raises StoreError."""


class TopicPolicyDocuments(TopicPoliciesStore):
    """Stores one document for each topic. `notify` is called after each change that this broker makes."""

    def __init__(self, store: MetadataStore, notify: Callable[[TopicName, TopicPolicies | None], None]) -> None:
        self._store = store
        self._notify = notify
        # Reads, too, wait for it: a topic that reads its policies while they change receives them, or the notification.
        self._changing = asyncio.Lock()

    async def get(self, topic: TopicName) -> TopicPolicies:
        path = metadata_paths.topic_policies(topic)
        async with self._changing:
            return await stored_document.read(self._store, path, TopicPolicies) or TopicPolicies()

    async def in_force(self, topic: TopicName) -> TopicPolicies:
        return await self.get(topic)

    async def update(self, topic: TopicName, change: Change) -> None:
        def changed(policies: TopicPolicies) -> TopicPolicies:
            change(policies)
            return policies

        path, subject = metadata_paths.topic_policies(topic), f"The policies of {topic}"
        async with self._changing:
            policies = await stored_document.rewrite(self._store, path, TopicPolicies, changed, subject, TopicPolicies)
            assert policies is not None, "created if missing"
            self._notify(topic, policies)

    async def delete(self, topic: TopicName) -> None:
        async with self._changing:
            if await self._store.delete(metadata_paths.topic_policies(topic)):
                self._notify(topic, None)
