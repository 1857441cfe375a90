"""Loading, creation and deletion of non-persistent topics, which exist only while they are loaded.

Deleting a topic deletes its stored policies; closing a topic keeps them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.broker.topic.non_persistent_topic import NonPersistentTopic
from pybroker.errors import NotAllowedError, TopicNotFound
from pybroker.runtime import logs
from pybroker.waiting.keyed_lock import KeyedLock

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.lifecycle.loaded_topics import LoadedTopics
    from pybroker.broker.lifecycle.topic_closing import TopicClosing
    from pybroker.broker.lifecycle.topic_creation import TopicCreation
    from pybroker.broker.lifecycle.topic_directory import TopicDirectory
    from pybroker.model.names import TopicName


class NonPersistentTopics:
    """Operations on non-persistent topics by name."""

    def __init__(
        self,
        broker_context: BrokerContext,
        loaded: LoadedTopics,
        directory: TopicDirectory,
        closing: TopicClosing,
        creation: TopicCreation,
    ) -> None:
        self._broker_context = broker_context
        self._runtime = broker_context.runtime
        self._loaded = loaded.non_persistent
        self._directory = directory
        self._closing = closing
        self._creation = creation
        self._deleting: KeyedLock[str] = KeyedLock()

    async def get(self, name: TopicName, may_create: bool) -> NonPersistentTopic:
        """Return the loaded topic. With `may_create`, create it if automatic creation is allowed. Wait while it is
        being deleted.

        Raises TopicNotFound, NotAllowedError, TopicChanging.
        """
        while (topic := self._loaded.get(str(name))) is not None and topic.is_fenced:
            if self._deleting.is_held(str(name)):
                await self._deleting.passed(str(name))
            else:
                self._closing.forget(topic)  # It is inactive and about to be removed.
        if topic is None:
            self._require_servable(name)
            if not may_create:
                raise TopicNotFound(f"Topic {name} not found")
            self._creation.require_automatic(name)
            async with self._creation.room(name, 1):
                topic = await self._load(name)
        return topic

    async def make(self, name: TopicName) -> bool:
        """Create the topic `name`. Return False if it exists. The caller has checked that its creation is allowed.

        Raises NotAllowedError, TopicNotFound, TopicChanging.
        """
        if str(name) in self._loaded:
            return False
        await self._load(name)
        return True

    async def _load(self, name: TopicName) -> NonPersistentTopic:
        # Read last; the topic is registered in the same event loop iteration, so no policy change is lost.
        policies = await self._broker_context.resources.topic_policies_in_force(name.partitioned_name)
        self._require_servable(name)
        topic = self._loaded.get(str(name))
        if topic is None:
            topic = self._loaded[str(name)] = NonPersistentTopic(
                self._broker_context, name, policies, self._closing.start_unload
            )
            self._runtime.stats.topic_loads += 1
            logs.info("topic.loaded", topic=name)
            self._directory.created(name)
        return topic

    def _require_servable(self, name: TopicName) -> None:
        if not self._runtime.config.enable_non_persistent_topics:
            raise NotAllowedError("Broker is unable to load non-persistent topic (enableNonPersistentTopics)")
        self._creation.require_open_namespace(name)
        if self._broker_context.ownership is not None:
            self._broker_context.ownership.require_served(name)

    async def delete(self, name: TopicName) -> None:
        key = str(name)
        async with self._deleting.held(key):
            topic = self._loaded.get(key)
            if topic is None:
                await self._broker_context.resources.forget_topic(name)
                raise TopicNotFound(f"Topic {name} not found")
            topic.fence()
            try:
                # First, so that a later topic of that name does not inherit these policies.
                await self._broker_context.resources.forget_topic(name)
                await self._broker_context.schemas.drop(name)
            finally:
                self._closing.forget(topic)
