"""Topics by name: lookup, loading, creation, closing, and deletion. Safe for concurrent tasks.

While the namespace or partitioned topic of a topic is changing, client requests wait; requests of the broker itself do
not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pybroker.broker.lifecycle.non_persistent_topics import NonPersistentTopics
from pybroker.broker.lifecycle.topic_loading import LoadUnderWay, TopicLoading
from pybroker.errors import AdminError, NotAllowedError, ServiceNotReady, TopicNotFound
from pybroker.metadata import metadata_paths
from pybroker.model.system_topics import is_system_topic
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.context.presence import Presence
    from pybroker.broker.lifecycle.loaded_topics import LoadedTopics
    from pybroker.broker.lifecycle.topic_closing import Ending, TopicClosing
    from pybroker.broker.lifecycle.topic_creation import TopicCreation
    from pybroker.broker.lifecycle.topic_directory import TopicDirectory
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.model.names import TopicName


class Topics:
    """All topics of the broker by name."""

    def __init__(
        self,
        broker_context: BrokerContext,
        presence: Presence,
        loaded: LoadedTopics,
        directory: TopicDirectory,
        closing: TopicClosing,
        creation: TopicCreation,
    ) -> None:
        self.loaded = loaded
        self._broker_context = broker_context
        self._presence = presence
        self._directory = directory
        self._closing = closing
        self._creation = creation
        self._loading = TopicLoading(broker_context, presence, loaded, directory, closing, creation)
        self._non_persistent = NonPersistentTopics(broker_context, loaded, directory, closing, creation)

    @property
    def loading_count(self) -> int:
        return len(self._loading)

    def loading(self) -> list[TopicName]:
        return self._loading.names()

    def load_of(self, name: TopicName) -> LoadUnderWay | None:
        return self._loading.under_way(name)

    def ending_of(self, name: TopicName) -> Ending | None:
        return self._closing.ending_of(str(name))

    def is_settled(self, name: TopicName) -> bool:
        return self._creation.is_settled(name)

    # --- for clients -------------------------------------------------------------------------------------------------

    async def get(self, name: TopicName, may_create: bool) -> Topic:
        """Return the persistent topic; load it if necessary. With `may_create`, create it if automatic creation is
        allowed.

        Waits in the load queue, while the topic is being closed, and while its namespace or partitioned topic is
        changing. Raises TopicNotFound, NotAllowedError, TooManyRequests after the maximum wait, and ServiceNotReady if
        the broker is stopping.
        """
        topic = self.loaded.persistent.get(str(name))
        if topic is not None and not topic.is_fenced and self._creation.is_settled(name):
            self._creation.require_loadable(name)
            return topic
        if not name.is_persistent:
            raise NotAllowedError(f"The operation is not possible on the non-persistent topic {name}")
        # System topics are exempt: with ledgers on BookKeeper, a topic's policies are in `__change_events`.
        if not self._broker_context.runtime.config.enable_persistent_topics and not is_system_topic(name):
            raise NotAllowedError("Broker is unable to load persistent topic (enablePersistentTopics)")

        async def load() -> Topic:
            self._require_admissible(name)
            async with self._broker_context.waiting.wait(f"topic {name} is being loaded"):
                return await self._loading.load(name, may_create, in_turn=True)

        return await self._creation.once_settled(name, load)

    async def any(self, name: TopicName, may_create: bool) -> TopicBase:
        if name.is_persistent:
            return await self.get(name, may_create)

        async def load() -> TopicBase:
            self._require_admissible(name)
            async with self._broker_context.waiting.wait(f"topic {name} is being loaded"):
                return await self._non_persistent.get(name, may_create)

        topic = self.loaded.non_persistent.get(str(name))
        if topic is not None and not topic.is_fenced and self._creation.is_settled(name):
            self._creation.require_loadable(name)
            return topic
        return await self._creation.once_settled(name, load)

    def _require_admissible(self, name: TopicName) -> None:
        self._creation.require_loadable(name)
        if not self._presence.takes_clients:
            raise ServiceNotReady("the broker is starting or stopping, try again")
        self._creation.require_open_namespace(name)

    # --- for the broker itself ---------------------------------------------------------------------------------------

    async def load(self, name: TopicName, may_create: bool) -> Topic:
        """Return the persistent topic for use by the broker itself, even while clients cannot use it. Load it if
        necessary; with `may_create`, create it if automatic creation is allowed.
        """
        return await self._loading.load(name, may_create, in_turn=False)

    async def make(self, name: TopicName, properties: Mapping[str, str]) -> bool:
        """Create the topic `name`. Return False if it exists. A persistent topic is not loaded. The caller has checked
        that its creation is allowed.
        """
        if name.is_persistent:
            return await self._loading.make(name, properties)
        return await self._non_persistent.make(name)

    async def settled(self, name: TopicName) -> None:
        await self._loading.settled(name)

    async def unload(self, topic: TopicBase) -> None:
        await self._closing.unload(topic)

    # --- delete ------------------------------------------------------------------------------------------------------

    async def delete(self, name: TopicName, *, force: bool = True) -> None:
        """Delete `name` with all stored data, and disconnect its clients. Without `force`, raise AdminError 412 if
        clients are connected.

        In a cluster, the owner of the topic deletes it. Also raises TopicNotFound, ServiceNotReady, StoreError.
        """
        if self._broker_context.elsewhere is not None and await self._broker_context.elsewhere.delete(
            name, force=force
        ):
            return
        if name.is_persistent:
            await self._delete_persistent(name, force=force)
            self._directory.deleted(name)
        else:
            loaded = self.loaded.non_persistent.get(str(name))
            if loaded is not None and not force:
                require_no_clients(loaded)
            await self._non_persistent.delete(name)
        logs.info("topic.deleted", topic=name)

    async def _delete_persistent(self, name: TopicName, *, force: bool) -> None:
        try:
            topic = await self.load(name, may_create=False)
        except TopicNotFound:
            if not await self._finish_deletion(name):
                raise
        else:
            if not force:
                require_no_clients(topic)
            await self._closing.end(topic, topic.delete(), is_deletion=True)

    async def _finish_deletion(self, name: TopicName) -> bool:
        await self.settled(name)
        with self._closing.ending(str(name), is_deletion=True):
            return await self._broker_context.ledgers.finish_deletion(metadata_paths.managed_ledger(name))


def require_no_clients(topic: TopicBase) -> None:
    producers = len(topic.producers)
    consumers = sum(len(subscription.consumers) for subscription in topic.subscriptions.values())
    if producers + consumers:
        clients = "client" if producers + consumers == 1 else "clients"
        raise AdminError(
            412,
            f"Topic has {producers + consumers} {clients} connected "
            f"Including {consumers} consumers, {producers} producers, and 0 replicators.",
        )
