"""The non-persistent topics that are loaded, by name: a topic exists as long as it is here, since nothing of it is stored.

Its policies are stored, as those of any topic; deleting the topic deletes them, closing it does not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.broker.non_persistent.topic import NonPersistentTopic
from pybroker.errors import NotAllowedError, TopicNotFound

if TYPE_CHECKING:
    from pybroker.broker.service import BrokerService
    from pybroker.model.names import TopicName


class NonPersistentTopics:
    """Owned by the broker service."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._surroundings = service.surroundings
        self.loaded: dict[str, NonPersistentTopic] = {}
        self._deleting: dict[str, asyncio.Event] = {}

    async def get(self, name: TopicName, may_create: bool) -> NonPersistentTopic:
        """The loaded topic; with `may_create` made, if automatic creation lets it be made.

        Waits while it is being deleted. Raises TopicNotFound, NotAllowedError, TopicChanging.
        """
        while (topic := self.loaded.get(str(name))) is not None and topic.is_fenced:
            if (deleting := self._deleting.get(str(name))) is not None:
                await deleting.wait()
            else:
                self.close(topic)  # It was about to be.
        if topic is None:
            self._require_servable(name)
            if not may_create:
                raise TopicNotFound(f"Topic {name} not found")
            self._service.creation.require_automatic(name)
            async with self._service.creation.room(name, 1):
                topic = await self._load(name)
        return topic

    async def make(self, name: TopicName) -> bool:
        """Make `name`, which may be made; False when it exists. Raises NotAllowedError, TopicNotFound, TopicChanging."""
        if str(name) in self.loaded:
            return False
        await self._load(name)
        return True

    async def _load(self, name: TopicName) -> NonPersistentTopic:
        # Last, and the topic is registered in the same turn of the loop: no change in between gets lost.
        policies = await self._service.resources.topic_policies(name.partitioned_name)
        self._require_servable(name)
        topic = self.loaded.get(str(name))
        if topic is None:
            topic = self.loaded[str(name)] = NonPersistentTopic(
                self._service.commons, name, policies, self._service.start_unload
            )
            self._surroundings.stats.topic_loads += 1
            logs.info("topic.loaded", topic=name)
            self._service.directory.created(name)
        return topic

    def _require_servable(self, name: TopicName) -> None:
        if not self._surroundings.config.enable_non_persistent_topics:
            raise NotAllowedError("Broker is unable to load non-persistent topic (enableNonPersistentTopics)")
        self._service.creation.require_open_namespace(name)

    def close(self, topic: NonPersistentTopic) -> None:
        """Forget `topic`; its clients look it up again, which makes a new one."""
        topic.fence()
        if self.loaded.get(str(topic.name)) is topic:
            del self.loaded[str(topic.name)]
            self._service.directory.deleted(topic.name)

    async def delete(self, name: TopicName) -> None:
        """Forget the topic with its policies. Raises TopicNotFound, StoreError."""
        key = str(name)
        while (deleting := self._deleting.get(key)) is not None:
            await deleting.wait()
        topic = self.loaded.get(key)
        if topic is None:
            await self._service.resources.forget_topic(name)
            raise TopicNotFound(f"Topic {name} not found")
        deleting = self._deleting[key] = asyncio.Event()
        topic.fence()
        try:
            # First: a topic of that name that is made later must not inherit what is set for this one.
            await self._service.resources.forget_topic(name)
            await self._service.schemas.drop(name)
        finally:
            del self._deleting[key]
            deleting.set()
            self.close(topic)
