"""The broker behind every edge: topics by name, their loading and closing, and what they share.

Owned by the app. Invariants: a topic is loaded at most once at a time; a name in `topics` is a loaded topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from pybroker import logs
from pybroker.auth.authentication import AuthenticationService
from pybroker.auth.authorization import AuthorizationService
from pybroker.broker.dispatch_limit import DispatchLimit, is_limited
from pybroker.broker.entry_filters import load_filters
from pybroker.broker.maintenance import Maintenance
from pybroker.broker.pumps import PumpList
from pybroker.broker.topic import Topic
from pybroker.broker.unacked_budget import UnackedBudget
from pybroker.clock import Clock
from pybroker.cluster.lookup import AdvertisedAddresses, LookupResult
from pybroker.config import BrokerConfig
from pybroker.errors import (
    AdminError,
    MetadataError,
    NotAllowedError,
    ServiceNotReady,
    StoreError,
    TooManyRequests,
    TopicNotFound,
)
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.metadata import paths
from pybroker.metadata.resources import PolicyListener, Resources
from pybroker.metadata.store import MetadataStore
from pybroker.model.effective_policies import EffectivePolicies, effective_policies
from pybroker.model.names import DOMAINS, NamespaceName, TopicName
from pybroker.model.policies import (
    AutoSubscriptionCreationOverride,
    BacklogQuota,
    DelayedDeliveryPolicies,
    DispatchRate,
    NamespacePolicies,
    RetentionPolicies,
    SubscribeRate,
    TopicPolicies,
)
from pybroker.model.stats import BrokerStats
from pybroker.tasks import TaskOwner

if TYPE_CHECKING:
    from pybroker.broker.consumer import Consumer
    from pybroker.broker.subscription import Subscription
    from pybroker.model.rates import DeliveryRates

HEALTH_CHECK_TIMEOUT_S = 10.0
# Between two times that the loop may turn to others while policies are applied: about a millisecond of work.
TOPICS_PER_TURN = 64
_BYTES_PER_GB = 1024**3
_NOTHING_SET = NamespacePolicies()


class BrokerService(PolicyListener):
    """Everything that serves clients, without the sockets."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata_store: MetadataStore,
        resources: Resources,
        ledgers: ManagedLedgerFactory,
        clock: Clock,
    ) -> None:
        self.config = config
        self.metadata_store = metadata_store
        self.resources = resources
        self.ledgers = ledgers
        self.clock = clock
        self.authentication = AuthenticationService(config)
        self.authorization = AuthorizationService(config, resources)
        self.addresses: AdvertisedAddresses
        """Set by the app once the ports are bound, before anybody is served."""
        self.default_policies = _default_policies(config)
        self.topics: dict[str, Topic] = {}
        self.maintenance = Maintenance(self)
        self.stats = BrokerStats()
        self.consumer_rates: Callable[[Consumer], DeliveryRates] | None = None
        """What each consumer was sent lately; set by who measures it, if anybody does."""
        self.entry_filters = load_filters(config.entry_filter_names)
        self.dispatch_limit = _dispatch_limit(config, clock)
        self.unacked_budget = _unacked_budget(config)
        self.ready = False
        self.is_closing = False
        self.fatal_error = ""
        self._loop = asyncio.get_running_loop()
        self.pumps = PumpList(self._loop, clock)
        self.tasks = TaskOwner("broker")
        self._loading: dict[str, asyncio.Future[Topic]] = {}
        self._unloading: dict[str, asyncio.Event] = {}
        self._started_ms = clock.wall_ms()
        self._producer_serial = 0
        self._metadata_requests = 0
        resources.listen(self)

    # --- lookups -----------------------------------------------------------------------------------------------------

    async def lookup(self, topic: TopicName, listener_name: str | None) -> LookupResult:
        """Where `topic` is served. The topic need not exist, its namespace must. Raises TopicNotFound."""
        self.stats.lookups += 1
        try:
            self.require_namespace(topic.namespace)
            return self.addresses.resolve(listener_name)
        except Exception:
            self.stats.lookup_failures += 1
            raise

    async def partitioned_metadata(self, topic: TopicName, create: bool) -> int:
        """How many partitions `topic` has: 0 for a topic without partitions.

        Raises TopicNotFound when it does not exist and is not to be made. A topic without partitions is made by the first
        producer or consumer; asking makes nothing.
        """
        self.require_namespace(topic.namespace)
        if self._metadata_requests >= self.config.max_concurrent_lookup_request:
            raise TooManyRequests("too many lookups are under way (maxConcurrentLookupRequest), try again")
        self._metadata_requests += 1
        try:
            if not (create and self.config.allow_auto_topic_creation) and not await self.topic_exists(topic):
                raise TopicNotFound(f"Topic {topic} not found")
        finally:
            self._metadata_requests -= 1
        return 0

    def require_namespace(self, namespace: NamespaceName) -> None:
        """Raises TopicNotFound when the namespace does not exist."""
        if self.resources.namespace(namespace) is None:
            raise TopicNotFound(f"Namespace {namespace} does not exist: create it first")

    async def topic_exists(self, topic: TopicName) -> bool:
        """Whether `topic` is stored here."""
        return str(topic) in self.topics or await self.ledgers.exists(paths.managed_ledger(topic))

    async def list_topics(self, namespace: NamespaceName, domain: str | None) -> list[str]:
        """The full names of a namespace's topics, sorted; of one domain, or of both."""
        names: list[str] = []
        for each in DOMAINS if domain is None else (domain,):
            segments = await self.metadata_store.children(paths.managed_ledgers(namespace, each))
            names += [str(paths.topic_of_segment(namespace, each, segment)) for segment in segments]
        return sorted(names)

    # --- topics ------------------------------------------------------------------------------------------------------

    async def get_topic(self, name: TopicName, may_create: bool) -> Topic:
        """The loaded topic, loading or making it. Raises TopicNotFound, ServiceNotReady, NotAllowedError."""
        key = str(name)
        topic = self.topics.get(key)
        if topic is not None and not topic.is_fenced:
            return topic
        if self.is_closing or not self.ready:
            raise ServiceNotReady("the broker is starting or stopping, try again")
        if not name.is_persistent:
            raise NotAllowedError("non-persistent topics are not supported yet")
        if not self.config.enable_persistent_topics:
            raise NotAllowedError("Broker is unable to load persistent topic (enablePersistentTopics)")
        if self.resources.namespace(name.namespace) is None:
            raise ServiceNotReady(f"Namespace {name.namespace} is not served by this broker: it does not exist")
        loading = self._loading.get(key)
        if loading is None:
            if len(self._loading) >= self.config.max_concurrent_topic_load_request:
                raise TooManyRequests("too many topics are being loaded (maxConcurrentTopicLoadRequest), try again")
            loading = self._loading[key] = self._loop.create_future()
            self.tasks.start(self._load(name, may_create, loading), f"load {key}")
        return await asyncio.shield(loading)

    async def _load(self, name: TopicName, may_create: bool, loading: asyncio.Future[Topic]) -> None:
        key = str(name)
        started_ms = self.clock.monotonic_ms()
        try:
            async with asyncio.timeout(self.config.topic_load_timeout_seconds):
                unloading = self._unloading.get(key)
                if unloading is not None:
                    await unloading.wait()
                path = paths.managed_ledger(name)
                if not may_create and not await self.ledgers.exists(path):
                    raise TopicNotFound(f"Topic {name} not found")
                ledger = await self.ledgers.open(path)
                # Last, and the topic is registered in the same turn of the loop: no change in between gets lost.
                policies = await self.resources.topic_policies(name)
            topic = self.topics[key] = Topic(self, name, ledger, policies)
            self.stats.topic_loads += 1
            logs.info(
                "topic.loaded",
                topic=key,
                subscriptions=len(topic.subscriptions),
                took_ms=round(self.clock.monotonic_ms() - started_ms, 1),
            )
            loading.set_result(topic)
        except BaseException as error:
            self.stats.topic_load_failures += 1
            if isinstance(error, TimeoutError):
                loading.set_exception(ServiceNotReady(f"topic {name} could not be loaded in time, try again"))
            elif isinstance(error, asyncio.CancelledError):
                loading.cancel()
                raise
            else:
                loading.set_exception(error)
            loading.exception()  # retrieved: nobody may be waiting any more
        finally:
            del self._loading[key]

    def start_unload(self, topic: Topic, reason: str) -> None:
        """Close `topic` in the background; it is loaded again when a client comes."""
        logs.warning("topic.unloading", topic=topic.name, reason=reason)
        self.tasks.start(self.unload(topic), f"unload {topic.name}")

    async def unload(self, topic: Topic) -> None:
        """Close `topic`; its clients look it up again."""
        await self._end(topic, topic.close())

    async def delete_topic(self, name: TopicName) -> None:
        """Drop `name` with everything stored, its clients disconnected. Raises TopicNotFound."""
        if not await self.topic_exists(name):
            raise TopicNotFound(f"Topic {name} not found")
        topic = await self.get_topic(name, may_create=False)
        await self._end(topic, topic.delete())

    async def _end(self, topic: Topic, ending: Coroutine[Any, Any, None]) -> None:
        key = str(topic.name)
        ended = self._unloading[key] = asyncio.Event()
        try:
            await ending
        except StoreError as error:
            logs.error("topic.close_failed", topic=key, error=str(error))
        finally:
            if self.topics.get(key) is topic:
                del self.topics[key]
            del self._unloading[key]
            ended.set()

    async def delete_namespace(self, namespace: NamespaceName, force: bool) -> None:
        """Drop a namespace; with topics in it only when forced. Raises AdminError."""
        if self.resources.namespace(namespace) is None:
            raise AdminError(404, f"Namespace {namespace} does not exist")
        if force and not self.config.force_delete_namespace_allowed:
            raise AdminError(405, "Broker doesn't allow forced deletion of namespaces (forceDeleteNamespaceAllowed)")
        names = await self.list_topics(namespace, None)
        if names and not force:
            raise AdminError(409, f"Cannot delete non empty namespace: it has {len(names)} topics")
        for name in names:
            await self.delete_topic(TopicName.parse(name))
        await self.resources.delete_namespace(namespace)

    def new_producer_name(self) -> str:
        """A name that no producer had, in this run of the broker or an earlier one."""
        self._producer_serial += 1
        return f"{self.config.cluster_name}-{self._started_ms}-{self._producer_serial}"

    # --- policies ----------------------------------------------------------------------------------------------------

    def effective_policies(self, namespace: NamespaceName, topic: TopicPolicies) -> EffectivePolicies:
        """What holds for a topic of `namespace` that has `topic` set for itself."""
        if not self.config.topic_level_policies_enabled:
            topic = TopicPolicies()
        # A namespace that is being deleted has none; its topics go next.
        return effective_policies(
            topic,
            self.resources.namespace(namespace) or _NOTHING_SET,
            self.default_policies,
            self.config.cluster_name,
        )

    def namespace_changed(self, namespace: NamespaceName) -> None:
        self.tasks.start(self._apply_policies(namespace), f"apply policies of {namespace}")

    async def _apply_policies(self, namespace: NamespaceName) -> None:
        for index, topic in enumerate(list(self.topics.values())):
            if index % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if topic.name.namespace == namespace and not topic.is_fenced:
                topic.policies_changed()

    def topic_changed(self, topic: TopicName, policies: TopicPolicies) -> None:
        loaded = self.topics.get(str(topic))
        if loaded is not None and not loaded.is_fenced:
            loaded.own_policies_changed(policies)

    # --- what subscriptions share ------------------------------------------------------------------------------------

    def read_retry_delay_s(self, failures: int) -> float:
        """How long to wait after the n-th failed read in a row."""
        first_ms = self.config.dispatcher_read_failure_backoff_initial_time_in_ms
        most_ms = self.config.dispatcher_read_failure_backoff_max_time_in_ms
        return min(most_ms, first_ms << min(failures - 1, 16)) / 1000

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back on the loop after `delay_s`."""
        self._loop.call_later(delay_s, callback)

    # --- life --------------------------------------------------------------------------------------------------------

    async def health_check(self) -> None:
        """Prove that the broker can store something now. Raises ServiceNotReady or MetadataError."""
        if not self.ready or self.is_closing:
            raise ServiceNotReady("the broker is starting or stopping")
        try:
            async with asyncio.timeout(HEALTH_CHECK_TIMEOUT_S):
                await self.ledgers.store.flush()
                await self.metadata_store.get(paths.cluster(self.config.cluster_name))
        except (StoreError, TimeoutError) as error:
            raise MetadataError(f"the broker cannot store anything: {error or 'no answer in time'}") from error

    async def close(self) -> None:
        """Close all topics, telling their clients, then what they share. Cancelling it gives up on what is left."""
        self.is_closing = True
        for topic in list(self.topics.values()):
            topic.fence()
        for topic in list(self.topics.values()):
            await self.unload(topic)
        await self.tasks.close()
        await self.ledgers.close()


def _unacked_budget(config: BrokerConfig) -> UnackedBudget[Subscription] | None:
    """None when there is no limit."""
    limit = config.max_unacked_messages_per_broker
    share = config.max_unacked_messages_per_subscription_on_broker_blocked
    return UnackedBudget(limit, share) if limit > 0 else None


def _dispatch_limit(config: BrokerConfig, clock: Clock) -> DispatchLimit | None:
    """What limits all dispatch of the broker together."""
    rate = DispatchRate(config.dispatch_throttling_rate_in_msg, config.dispatch_throttling_rate_in_byte, False, 1)
    return DispatchLimit("Broker", rate, clock.monotonic_ms(), 0, 0) if is_limited(rate) else None


def _default_policies(config: BrokerConfig) -> EffectivePolicies:
    """What holds where neither topic nor namespace says anything."""
    limit_bytes = config.backlog_quota_default_limit_bytes
    if limit_bytes < 0 and config.backlog_quota_default_limit_gb > 0:
        limit_bytes = int(config.backlog_quota_default_limit_gb * _BYTES_PER_GB)
    quota = BacklogQuota(
        policy=config.backlog_quota_default_retention_policy,
        limitSize=limit_bytes,
        limitTime=config.backlog_quota_default_limit_second,
    )
    return EffectivePolicies(
        retention=RetentionPolicies(config.default_retention_time_in_minutes, config.default_retention_size_in_mb),
        message_ttl_s=config.ttl_duration_default_in_seconds,
        size_quota=quota,
        age_quota=quota,
        dispatch_rate=DispatchRate(
            config.dispatch_throttling_rate_per_topic_in_msg,
            config.dispatch_throttling_rate_per_topic_in_byte,
            config.dispatch_throttling_rate_relative_to_publish_rate,
            1,
        ),
        subscription_dispatch_rate=DispatchRate(
            config.dispatch_throttling_rate_per_subscription_in_msg,
            config.dispatch_throttling_rate_per_subscription_in_byte,
            config.dispatch_throttling_rate_relative_to_publish_rate,
            1,
        ),
        subscribe_rate=SubscribeRate(
            config.subscribe_throttling_rate_per_consumer, config.subscribe_rate_period_per_consumer_in_second
        ),
        subscription_expiration_minutes=config.subscription_expiration_time_minutes,
        delayed_delivery=DelayedDeliveryPolicies(
            config.delayed_delivery_enabled,
            config.delayed_delivery_tick_time_millis,
            config.delayed_delivery_max_delay_in_millis,
        ),
        auto_subscription_creation=AutoSubscriptionCreationOverride(config.allow_auto_subscription_creation),
    )
