"""The broker behind every edge: topics by name, their loading and closing, and what they share.

Owned by the app. Invariants: a topic is loaded at most once at a time; a name in `topics` is a loaded topic.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker import logs
from pybroker.auth.authentication import AuthenticationService
from pybroker.broker.change_events import ChangeEvents
from pybroker.broker.commons import Commons
from pybroker.broker.health_check import HealthCheck
from pybroker.broker.live_settings import LiveSettings
from pybroker.broker.maintenance import Maintenance
from pybroker.broker.namespace_deletion import NamespaceDeletion
from pybroker.broker.non_persistent.topic import NonPersistentTopic
from pybroker.broker.non_persistent.topics import NonPersistentTopics
from pybroker.broker.partitioned_topics import PartitionedTopicOperations, require_no_clients
from pybroker.broker.topic import Topic
from pybroker.broker.topic_base import TopicBase
from pybroker.broker.topic_closing import close_topics, tell_clients
from pybroker.broker.topic_creation import TopicCreation
from pybroker.broker.topic_directory import TopicDirectory
from pybroker.broker.topic_loading import TopicLoading
from pybroker.broker.topic_watchers import TopicWatchers
from pybroker.cluster.cluster_documents import ClusterDocuments
from pybroker.cluster.dynamic_configuration import DynamicConfiguration
from pybroker.cluster.lookup import AdvertisedAddresses, LookupResult
from pybroker.descriptors import Descriptors
from pybroker.errors import (
    NotAllowedError,
    ServiceNotReady,
    StoreError,
    TooManyRequests,
    TopicNotFound,
)
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.metadata import paths
from pybroker.metadata.partitioned_topics import PartitionedTopics
from pybroker.metadata.resource_groups import ResourceGroupListener
from pybroker.metadata.resources import PolicyListener, Resources
from pybroker.metadata.store import MetadataStore
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import (
    TopicPolicies,
)
from pybroker.surroundings import Surroundings

if TYPE_CHECKING:
    from pybroker.broker.consumer import Consumer
    from pybroker.model.rates import DeliveryRates

# Between two times that the loop may turn to others while policies are applied: about a millisecond of work.
TOPICS_PER_TURN = 64


class DataDirectoryName(NamedTuple):
    """What proves a directory to be this broker's: the id is in its file `run.id`, and another one with every start."""

    run_id: str
    path: str


class BrokerService(PolicyListener, ResourceGroupListener):
    """Everything that serves clients, without the sockets."""

    data_directory: DataDirectoryName | None = None
    """Where ledgers are files; set by the app."""

    def __init__(
        self,
        surroundings: Surroundings,
        metadata_store: MetadataStore,
        resources: Resources,
        ledgers: ManagedLedgerFactory,
    ) -> None:
        config = surroundings.config
        self.surroundings = surroundings
        self.metadata_store = metadata_store
        self.resources = resources
        self.ledgers = ledgers
        self.authentication = AuthenticationService(config)
        self.commons = commons = Commons(surroundings, metadata_store, resources, ledgers)
        self.authorization = commons.authorization
        self.addresses: AdvertisedAddresses
        """Set by the app once the ports are bound, before anybody is served."""
        self.topics: dict[str, Topic] = {}
        """The persistent ones."""
        self.non_persistent = NonPersistentTopics(self)
        self.directory = TopicDirectory(metadata_store, ledgers, self.topics, self.non_persistent.loaded)
        self.topic_watchers = TopicWatchers(self)
        self.directory.listen(self.topic_watchers)
        self.change_events = ChangeEvents(self)
        self.health = HealthCheck(self)
        self.partitioned = PartitionedTopics(metadata_store)
        """Loaded by the app before anybody is served."""
        self.schemas = commons.schemas
        self.waiting = commons.waiting
        self.loading = TopicLoading(self)
        self.creation = TopicCreation(self)
        self.namespace_deletion = NamespaceDeletion(self)
        self.partitioned_operations = PartitionedTopicOperations(self)
        self.maintenance = Maintenance(self)
        self.consumer_rates: Callable[[Consumer], DeliveryRates] | None = None
        """What each consumer was sent lately; set by who measures it, if anybody does."""
        self.resource_groups = commons.resource_groups
        self.ready = False
        self.is_closing = False
        self.fatal_error = ""
        self.tasks = commons.tasks
        self._unloading: dict[str, asyncio.Event] = {}
        self._metadata_requests = 0
        resources.listen(self)
        self.resource_groups.listen(self)
        self.request_stop: Callable[[], None] | None = None
        """Ends the process in good order; set by the app, absent in a process that is not the broker's own."""
        self.dynamic = DynamicConfiguration(config, metadata_store)
        """Loaded by the app before anybody is served."""
        self.live_settings = LiveSettings(self)
        self.cluster_documents = ClusterDocuments(metadata_store)

    # --- lookups -----------------------------------------------------------------------------------------------------

    async def lookup(self, topic: TopicName, listener_name: str | None) -> LookupResult:
        """Where `topic` is served. The topic need not exist, its namespace must. Raises TopicNotFound."""
        self.surroundings.stats.lookups += 1
        started_ms = self.surroundings.clock.monotonic_ms()
        try:
            self.require_namespace(topic.namespace)
            return self.addresses.resolve(listener_name)
        except Exception:
            self.surroundings.stats.lookup_failures += 1
            raise
        finally:
            self.surroundings.stats.lookup_ms.add(self.surroundings.clock.monotonic_ms() - started_ms)

    async def partitioned_metadata(self, topic: TopicName, create: bool) -> int:
        """How many partitions `topic` has: 0 for a topic without partitions.

        Raises TopicNotFound when it does not exist and is not to be made, NotAllowedError. A topic without partitions is
        made by the first producer or consumer: asking makes only partitioned ones.
        """
        self.require_namespace(topic.namespace)
        if self._metadata_requests >= self.surroundings.config.max_concurrent_lookup_request:
            raise TooManyRequests("too many lookups are under way (maxConcurrentLookupRequest), try again")
        self._metadata_requests += 1
        try:
            return await self.creation.partition_count(topic, create)
        finally:
            self._metadata_requests -= 1

    @property
    def pending_metadata_requests(self) -> int:
        """Questions for the number of partitions that are not answered yet."""
        return self._metadata_requests

    @property
    def loading_topic_count(self) -> int:
        """Topics that are being loaded, or wait for that."""
        return len(self.loading)

    def require_namespace(self, namespace: NamespaceName) -> None:
        """Raises TopicNotFound when the namespace does not exist."""
        if self.resources.namespace(namespace) is None and not self.health.is_own(namespace):
            raise TopicNotFound("Namespace not found")

    # --- topics ------------------------------------------------------------------------------------------------------

    async def get_topic(self, name: TopicName, may_create: bool) -> Topic:
        """The loaded persistent topic, loading it; with `may_create` also making it, if automatic creation lets it be made.

        Waits while what it belongs to is being made or changed, while it is being closed, and for its turn to be loaded. Raises
        TopicNotFound, NotAllowedError, TooManyRequests after too long a wait, and ServiceNotReady while the broker stops.
        """
        topic = self.topics.get(str(name))
        if topic is not None and not topic.is_fenced and self.creation.is_settled(name):
            self.creation.require_loadable(name)
            return topic
        if not name.is_persistent:
            raise NotAllowedError(f"Not possible on a non-persistent topic: {name}")
        if not self.surroundings.config.enable_persistent_topics:
            raise NotAllowedError("Broker is unable to load persistent topic (enablePersistentTopics)")

        async def load() -> Topic:
            self._require_admissible(name)
            async with self.waiting.wait(f"topic {name} is being loaded"):
                return await self.loading.load(name, may_create, in_turn=True)

        return await self.creation.once_settled(name, load)

    async def any_topic(self, name: TopicName, may_create: bool) -> TopicBase:
        """As `get_topic`, whether the topic is persistent or not."""
        if name.is_persistent:
            return await self.get_topic(name, may_create)

        async def load() -> TopicBase:
            self._require_admissible(name)
            async with self.waiting.wait(f"topic {name} is being loaded"):
                return await self.non_persistent.get(name, may_create)

        topic = self.non_persistent.loaded.get(str(name))
        if topic is not None and not topic.is_fenced and self.creation.is_settled(name):
            self.creation.require_loadable(name)
            return topic
        return await self.creation.once_settled(name, load)

    def _require_admissible(self, name: TopicName) -> None:
        """Raises ServiceNotReady, TopicNotFound, NotAllowedError, and TopicChanging for what is to be waited for."""
        self.creation.require_loadable(name)
        if self.is_closing or not self.ready:
            raise ServiceNotReady("the broker is starting or stopping, try again")
        self.creation.require_open_namespace(name)

    @functools.cached_property
    def descriptors(self) -> Descriptors:
        """What connections may take of the process's file descriptors."""
        config = self.surroundings.config
        return Descriptors.of_process(config.file_descriptors_reserve, config.max_http_server_connections)

    def unready_reason(self) -> str | None:
        """Why new clients should be sent elsewhere now; None when they are welcome. A look, unlike `health_check`."""
        if self.is_closing or not self.ready:
            return "the broker is starting or stopping"
        limit = self.descriptors.max_clients
        if self.surroundings.stats.active_connections >= limit:
            return (
                f"there are as many connections as file descriptors allow ({limit}; fileDescriptorsReserve, ulimit -n)"
            )
        return self.ledgers.store.refusal()

    def loaded_topic(self, name: TopicName) -> TopicBase | None:
        """Whether persistent or not."""
        return (self.topics if name.is_persistent else self.non_persistent.loaded).get(str(name))

    def loaded_topics(self) -> list[TopicBase]:
        """All of them as they are now, the persistent ones first."""
        return [*self.topics.values(), *self.non_persistent.loaded.values()]

    async def load_topic(self, name: TopicName, may_create: bool) -> Topic:
        """As `get_topic`, for the broker itself: also what clients may not have now, or not yet."""
        return await self.loading.load(name, may_create, in_turn=False)

    def is_being_closed(self, key: str) -> bool:
        """Whether the persistent topic of that name is being closed or deleted."""
        return key in self._unloading

    async def closed(self, key: str) -> None:
        """Wait until the persistent topic of that name is neither being closed nor deleted."""
        while (unloading := self._unloading.get(key)) is not None:
            await unloading.wait()

    def start_unload(self, topic: TopicBase, reason: str) -> None:
        """Close `topic` in the background; it is loaded again when a client comes."""
        logs.warning("topic.unloading", topic=topic.name, reason=reason)
        self.tasks.start(self.unload(topic), f"unload {topic.name}")

    async def unload(self, topic: TopicBase) -> None:
        """Close `topic`; its clients look it up again. Returns once it is closed, whoever began that."""
        if isinstance(topic, NonPersistentTopic):
            self.non_persistent.close(topic)
            return
        assert isinstance(topic, Topic)
        ending = self._unloading.get(str(topic.name))
        if ending is not None:
            await ending.wait()
        else:
            try:
                await self._end(topic, topic.close())
            except StoreError as error:
                logs.error("topic.close_failed", topic=topic.name, error=str(error))

    async def delete_topic(self, name: TopicName, *, force: bool = True) -> None:
        """Drop `name` with everything stored; with clients on it, who are disconnected, only when forced.

        Raises TopicNotFound, AdminError 412, ServiceNotReady, StoreError.
        """
        if name.is_persistent:
            await self._delete_persistent(name, force=force)
            self.directory.deleted(name)
        else:
            loaded = self.non_persistent.loaded.get(str(name))
            if loaded is not None and not force:
                require_no_clients(loaded)
            await self.non_persistent.delete(name)
        logs.info("topic.deleted", topic=name)

    async def _delete_persistent(self, name: TopicName, *, force: bool) -> None:
        try:
            topic = await self.load_topic(name, may_create=False)
        except TopicNotFound:
            if not await self._finish_deletion(name):
                raise
        else:
            if not force:
                require_no_clients(topic)
            await self._end(topic, topic.delete())

    async def _finish_deletion(self, name: TopicName) -> bool:
        """Whether there was a deletion of `name` that a crash had cut off."""
        await self.loading.settled(name)
        ended = self._unloading[str(name)] = asyncio.Event()  # Until then nobody makes it anew.
        try:
            return await self.ledgers.finish_deletion(paths.managed_ledger(name))
        finally:
            del self._unloading[str(name)]
            ended.set()

    async def _end(self, topic: Topic, ending: Coroutine[Any, Any, None]) -> None:
        key = str(topic.name)
        ended = self._unloading[key] = asyncio.Event()
        try:
            await ending
        finally:
            if self.topics.get(key) is topic:
                del self.topics[key]
            del self._unloading[key]
            ended.set()

    async def delete_namespace(self, namespace: NamespaceName, force: bool) -> None:
        """Drop a namespace; with topics in it only when forced. Raises AdminError."""
        await self.namespace_deletion.delete(namespace, force)

    async def namespace_settled(self, namespace: NamespaceName) -> None:
        """Wait until `namespace` is not being deleted. Raises TooManyRequests."""
        if self.namespace_deletion.is_under_way(namespace):
            async with self.waiting.wait(f"namespace {namespace} is being deleted"):
                await self.namespace_deletion.passed(namespace)

    # --- policies ----------------------------------------------------------------------------------------------------

    async def namespace_changed(self, namespace: NamespaceName) -> None:
        await self._apply_policies(namespace)

    def defaults_changed(self) -> None:
        """Settings were changed at run time: apply what holds where neither topic nor namespace says anything."""
        self.commons.defaults_changed()
        self.tasks.start(self._apply_policies(None), "apply default policies")

    async def _apply_policies(self, namespace: NamespaceName | None) -> None:
        self.topic_watchers.close_who_may_not(namespace)
        for index, topic in enumerate(self.loaded_topics()):
            if index % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if namespace in {None, topic.name.namespace} and not topic.is_fenced:
                topic.policies_changed()

    def resource_group_changed(self, name: str) -> None:
        self.commons.group_limits.changed(name)
        for tenant in self.resources.tenants():
            for namespace in self.resources.namespaces(tenant):
                policies = self.resources.namespace(namespace)
                if policies is not None and policies.resource_group_name == name:
                    self.tasks.start(self._apply_policies(namespace), f"apply policies of {namespace}")

    def topic_changed(self, topic: TopicName, policies: TopicPolicies | None) -> None:
        """`policies` are those of the topic, or of all partitions of a partitioned one."""
        self.change_events.changed(topic, policies)
        partitioned = self.partitioned.get(topic)
        names = [topic] if partitioned is None else map(topic.partition, range(partitioned.partitions))
        for loaded in map(self.loaded_topic, names):
            if loaded is not None and not loaded.is_fenced:
                loaded.own_policies_changed(policies or TopicPolicies())

    # --- life --------------------------------------------------------------------------------------------------------

    async def health_check(self) -> None:
        """Prove that the broker works now. Raises BrokerError."""
        await self.health.run()

    async def tell_clients(self) -> None:
        """Take nothing more, tell the clients of all topics, and answer what they have sent; `close` is called next."""
        self.is_closing = True
        await tell_clients(self)

    async def close(self) -> None:
        """Tell all clients, then close all topics, then what they share. Cancelling it gives up on what is left."""
        self.is_closing = True
        await close_topics(self)
        await self.tasks.close()
        await close_topics(self)  # Those whose loading ended meanwhile.
        await self.ledgers.close()
