"""The broker without network servers: creates, connects and closes all parts. No part has a reference to this service."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from pybroker.auth.authentication import AuthenticationService
from pybroker.auth.authorization import AuthorizationService
from pybroker.auth.refused_accesses import RefusedAccesses
from pybroker.broker.cluster.java_transaction_snapshots import JavaTransactionSnapshots
from pybroker.broker.cluster.unattended_coordinators import UnattendedCoordinators
from pybroker.broker.context.added_entry_metadata import added_metadata
from pybroker.broker.context.broker_context import BrokerContext
from pybroker.broker.context.pending_transaction_ends import pending_end_at
from pybroker.broker.context.presence import Presence
from pybroker.broker.context.producer_names import ProducerNames
from pybroker.broker.context.publish_refusals import Refusals
from pybroker.broker.context.pumps import Pumped, PumpList
from pybroker.broker.context.read_leases import ReadLeases
from pybroker.broker.context.waiting_requests import WaitingRequests
from pybroker.broker.entry_filters import AvailableFilters
from pybroker.broker.lifecycle.bundle_closing import BundleClosing
from pybroker.broker.lifecycle.bundle_handover import BundleHandover
from pybroker.broker.lifecycle.change_locks import ChangeLocks
from pybroker.broker.lifecycle.cluster_lookups import ClusterLookups, LookupAnswer
from pybroker.broker.lifecycle.loaded_topics import LoadedTopics
from pybroker.broker.lifecycle.namespace_deletion import NamespaceDeletion
from pybroker.broker.lifecycle.on_demand_creation import OnDemandCreation
from pybroker.broker.lifecycle.other_brokers import OtherBrokers
from pybroker.broker.lifecycle.partitioned_topic_operations import PartitionedTopicOperations
from pybroker.broker.lifecycle.topic_closing import TopicClosing
from pybroker.broker.lifecycle.topic_creation import TopicCreation
from pybroker.broker.lifecycle.topic_directory import TopicDirectory
from pybroker.broker.lifecycle.topic_manager import Topics
from pybroker.broker.lifecycle.topic_watchers import TopicWatchers
from pybroker.broker.lifecycle.topics_elsewhere import OwnersTopics
from pybroker.broker.lifecycle.transaction_participants import TransactionParticipants
from pybroker.broker.limits.broker_unacked_limit import BrokerUnackedLimit
from pybroker.broker.limits.resource_group_rates import ResourceGroupRates
from pybroker.broker.maintenance.health_check import HealthCheck
from pybroker.broker.maintenance.inactive_topics import InactiveTopics
from pybroker.broker.maintenance.periodic_maintenance import Maintenance
from pybroker.broker.policies.change_events import ChangeEvents
from pybroker.broker.policies.live_settings import LiveSettings
from pybroker.broker.policies.permission_rechecks import PermissionRechecks
from pybroker.broker.policies.policies_in_force import PoliciesInForce
from pybroker.broker.policies.policy_changes import PolicyChanges
from pybroker.broker.transactions.participation import TakingPart
from pybroker.cluster.broker_client_access import broker_client_access
from pybroker.cluster.cluster_documents import ClusterDocuments
from pybroker.cluster.dynamic_configuration import DynamicConfiguration
from pybroker.cluster.ownership.broker_probes import BrokerProbes
from pybroker.cluster.ownership.bundle_ownership import BundleOwnership
from pybroker.errors import TooManyRequests, TopicNotFound
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.partitioned_topics import PartitionedTopics
from pybroker.metadata.resource_groups import ResourceGroups
from pybroker.metadata.resources import Resources
from pybroker.metadata.session_report import SessionState
from pybroker.model import system_topics
from pybroker.model.names import NamespaceName, TopicName
from pybroker.process.file_descriptors import Descriptors
from pybroker.runtime import logs
from pybroker.runtime.runtime import Runtime
from pybroker.schema.schema_registry import SchemaRegistry
from pybroker.schema.schema_storage import SchemaStorage
from pybroker.transactions.coordinators import ASSIGN, Coordinators

if TYPE_CHECKING:
    from pybroker.backup.data_snapshot import DataSnapshots
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.client.pulsar_client import PulsarClient
    from pybroker.cluster.broker_registry import BrokerRegistry
    from pybroker.cluster.membership.cluster_membership import ClusterMembership
    from pybroker.config import BrokerConfig
    from pybroker.metadata.broker_identity import BrokerIdentity
    from pybroker.metadata.cache_refresh import CacheRefresher
    from pybroker.model.rates import DeliveryRates


class DataDirectoryName(NamedTuple):
    """Path of a data directory, and the random id of one run of its broker, which is also in the file `run.id` of the
    directory. A process that reads the file detects whether this broker uses the directory.
    """

    run_id: str
    path: str


class BrokerService:
    """All parts of one broker, without network servers."""

    data_directory: DataDirectoryName | None = None
    """Identity of the data directory, for a store of local files; set by the app."""
    data_snapshots: DataSnapshots | None = None
    """Data snapshots for backups, if all data is in local files; set by the app."""
    identity: BrokerIdentity | None = None
    """This broker's claim of its id in a shared metadata store; set by the app, None without a shared store."""
    ownership: BundleOwnership | None = None
    """Bundle ownership of this broker; None for a standalone broker, which serves all topics."""
    other_brokers: OtherBrokers | None = None
    """REST client for other brokers of the cluster; None if `ownership` is None."""
    membership: ClusterMembership | None = None
    """Membership in a cluster; set by the app, None for a standalone broker."""
    request_stop: Callable[[], None] | None = None
    """Starts an orderly shutdown of the process; set by the app, None if the broker is embedded in another process."""
    handovers_per_s: int = 0
    """Bundles that are handed over per second when the broker stops; 0: as fast as possible."""
    cache_refresher: CacheRefresher | None = None
    """Keeps the caches of a shared metadata store current; set by `build`, closed by the service."""
    consumer_rates: Callable[[Consumer], DeliveryRates] | None = None
    """Returns the delivery rates of a consumer; None without statistics."""

    def __init__(
        self,
        runtime: Runtime,
        metadata_store: MetadataStore,
        resources: Resources,
        ledgers: ManagedLedgerFactory,
        schema_storage: SchemaStorage | None = None,
    ) -> None:
        self.runtime = runtime
        self.metadata_store = metadata_store
        self.resources = resources
        self.ledgers = ledgers
        self.broker_context = broker_context = new_broker_context(
            runtime, metadata_store, resources, ledgers, schema_storage
        )
        self.refused_accesses = RefusedAccesses(runtime)
        self.authentication = AuthenticationService(runtime.config, runtime.clock)
        self.dynamic = DynamicConfiguration(runtime.config, metadata_store)
        """Loaded by `build` before clients are served, like the partitioned topics and the broker context."""
        self.cluster_documents = ClusterDocuments(metadata_store)
        self.partitioned = partitioned = PartitionedTopics(metadata_store)
        self.presence = presence = Presence()

        changing = ChangeLocks(broker_context.waiting)
        self.loaded = loaded = LoadedTopics()
        self.directory = directory = TopicDirectory(metadata_store, ledgers, loaded)
        self.creation = creation = TopicCreation(
            runtime, resources, broker_context.waiting, presence, changing, partitioned, directory
        )
        self._closing = closing = TopicClosing(broker_context, loaded, directory)
        self.topics = topics = Topics(broker_context, presence, loaded, directory, closing, creation)

        self.partitioned_operations = operations = PartitionedTopicOperations(
            broker_context, changing, directory, creation, topics, partitioned
        )
        self.making = OnDemandCreation(runtime, changing, directory, creation, topics, partitioned, operations)
        self.namespace_deletion = NamespaceDeletion(
            broker_context, changing, directory, creation, topics, partitioned, operations
        )
        inactive_topics = InactiveTopics(runtime, topics, operations)
        self.maintenance = Maintenance(runtime, ledgers, loaded, inactive_topics)
        self.topic_watchers = TopicWatchers(broker_context, directory)
        directory.listen(self.topic_watchers)
        self.change_events = ChangeEvents(broker_context, topics)
        self.permission_rechecks = PermissionRechecks(broker_context, loaded)
        self.permission_rechecks.add(self.topic_watchers)
        self._policy_changes = policy_changes = PolicyChanges(
            broker_context, loaded, self.permission_rechecks, self.change_events, partitioned
        )
        self.policies_in_force = PoliciesInForce(broker_context, loaded, partitioned)
        LiveSettings(self.dynamic, broker_context, policy_changes)
        self._health = HealthCheck(runtime, metadata_store, presence, topics)
        self.cluster_lookups: ClusterLookups | None = None
        self._metadata_requests = 0
        self._cluster_client: PulsarClient | None = None

        self.participants = TransactionParticipants(runtime, topics, partitioned)
        self.transactions = Coordinators(runtime, metadata_store, ledgers, partitioned, self.participants.end)
        broker_context.taking_part = TakingPart(self.transactions, broker_context.authorization).refusal
        broker_context.pending_end_of = functools.partial(pending_end_at, self.transactions)
        self._unattended: UnattendedCoordinators | None = None
        self._java_snapshots: JavaTransactionSnapshots | None = None
        if ledgers.store.has_pulsar_layout:
            self._java_snapshots = JavaTransactionSnapshots(topics, ledgers)
            broker_context.announce_transactions = self._java_snapshots.announce
            broker_context.java_transactions_from = self._java_snapshots.start_of

    def keep_topic_policies_in_system_topics(self) -> None:
        """Store topic policies in `__change_events`, as Java brokers do. Call this before the first topic is loaded."""
        # Imported here: a broker with local ledgers does without the client.
        from pybroker.broker.policies.system_topic_policies import SystemTopicPolicies  # noqa: PLC0415

        changes = self._policy_changes
        policies = SystemTopicPolicies(self.broker_context, self.loaded, changes.topic_read_again, self.cluster_client)
        changes.system_topic_policies = policies
        self.resources.keep_topic_policies_in(policies)

    # --- lookups -----------------------------------------------------------------------------------------------------

    async def lookup(
        self,
        topic: TopicName,
        listener_name: str | None,
        *,
        is_authoritative: bool = False,
        parking: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> LookupAnswer:
        """Return the addresses of the broker that serves `topic`. The topic need not exist. Raises TopicNotFound if the
        namespace is missing.

        In a cluster, the result may be a redirect to another broker. If the bundle of the topic has no owner, this
        broker may acquire it; with `is_authoritative`, it does. `parking` returns a context manager, which is entered
        while the lookup waits for an unreachable owner. Also raises MetadataError, ServiceNotReady, StoreError.
        """
        self.runtime.stats.lookups += 1
        started_ms = self.runtime.clock.monotonic_ms()
        try:
            await self._read_missing(topic.namespace)
            if self.cluster_lookups is not None:
                answer = await self.cluster_lookups.answer(
                    topic, listener_name, parking, is_authoritative=is_authoritative
                )
                self.runtime.stats.lookup_redirects += answer.is_redirect
                return answer
            self.require_namespace(topic.namespace)
            return LookupAnswer(self.presence.addresses.resolve(listener_name))
        except Exception:
            self.runtime.stats.lookup_failures += 1
            raise
        finally:
            self.runtime.stats.lookup_ms.add(self.runtime.clock.monotonic_ms() - started_ms)

    async def partitioned_metadata(self, topic: TopicName, create: bool) -> int:
        """Return the partition count; 0 for a topic without partitions.

        If the topic is missing, raise TopicNotFound, unless `create` is set and automatic creation is permitted. In
        that case, create the topic if automatic creation makes it partitioned; otherwise return 0, and the first
        producer or consumer creates the topic. Also raises NotAllowedError, TooManyRequests, StoreError.
        """
        await self._read_missing(topic.namespace)
        self.require_namespace(topic.namespace)
        if topic == ASSIGN and self.transactions.is_enabled:
            return self.transactions.count  # also before the partitioned topic exists in the metadata
        if self._metadata_requests >= self.runtime.config.max_concurrent_lookup_request:
            raise TooManyRequests("the broker has too many concurrent lookups (maxConcurrentLookupRequest): try again")
        self._metadata_requests += 1
        try:
            return await self.making.partition_count(topic, create)
        finally:
            self._metadata_requests -= 1

    @property
    def pending_metadata_requests(self) -> int:
        return self._metadata_requests

    async def _read_missing(self, namespace: NamespaceName) -> None:
        if not system_topics.is_heartbeat_namespace(namespace):
            await self.resources.read_missing(namespace)

    def require_namespace(self, namespace: NamespaceName) -> None:
        if self.resources.namespace(namespace) is None and not self.presence.is_own(namespace):
            raise TopicNotFound("Namespace not found")

    @functools.cached_property
    def descriptors(self) -> Descriptors:
        config = self.runtime.config
        return Descriptors.of_process(config.file_descriptors_reserve, config.max_http_server_connections)

    def unready_reason(self) -> str | None:
        """Return why new clients should use another broker, or None. Does not test the storage, unlike `health_check`."""
        if not self.presence.takes_clients:
            return "the broker is starting or stopping"
        limit = self.descriptors.max_clients
        if self.runtime.stats.active_connections >= limit:
            return f"the broker has {limit} connections, the maximum for its file descriptors (fileDescriptorsReserve, ulimit -n)"
        session = self.metadata_store.session_report
        if session is not None and session.state is not SessionState.CONNECTED:
            return (
                f"the session with the metadata store {session.url} is {session.state.value}: {session.last_failure};"
                " policies may be outdated"
            )
        if self.identity is not None and self.identity.conflict:
            return self.identity.conflict
        if self.membership is not None and self.membership.conflict:
            return self.membership.conflict
        if self.ownership is not None and self.ownership.is_leaving:
            return "the broker is stopping and hands its bundles over"
        bookies = self.ledgers.store.bookies()
        if bookies is not None and bookies.refusal is not None:
            return bookies.refusal
        return self.ledgers.store.refusal()

    def cluster_client(self) -> PulsarClient:
        """Return the broker's own client of its cluster, with the current settings. Raises AccessRefused for invalid
        settings.

        If the settings have changed, the previous client is closed. Its users receive an error and must call this
        method again.
        """
        from pybroker.client.pulsar_client import PulsarClient  # noqa: PLC0415  (a standalone broker does not need it)

        access = broker_client_access(self.runtime.config, self.presence.addresses.resolve(None))
        client = self._cluster_client
        if client is not None and client.access != access:
            self.broker_context.tasks.start(client.close(), "close the former client of the cluster")
            client = None
        if client is None:
            client = self._cluster_client = PulsarClient(access)
        return client

    # --- cluster -----------------------------------------------------------------------------------------------------

    async def join(self, registry: BrokerRegistry) -> OtherBrokers:
        """Join the cluster: from now on, this broker serves only topics of bundles that it owns; the other brokers in
        `registry` serve the rest. Return the REST client for these brokers.

        Call this once, after the addresses of this broker are known. Raises StoreError.
        """
        from pybroker.broker.cluster.remote_participants import OwnersParticipants  # noqa: PLC0415  (only in a cluster)

        closing = BundleClosing(self.topics, self._closing, self.transactions, self.broker_context.tasks)
        self.other_brokers = others = OtherBrokers(self.runtime.config, self.presence)
        ownership = BundleOwnership(self.metadata_store, self.resources, registry, closing, self.runtime.random)
        self.ownership = self.broker_context.ownership = ownership
        probes = BrokerProbes(self.runtime.clock, self.broker_context.tasks)
        self.cluster_lookups = ClusterLookups(self.runtime, ownership, self.presence, probes)
        self.broker_context.elsewhere = OwnersTopics(ownership, others)
        self.broker_context.pumps.may_dispatch = ownership.holds_session
        self.transactions.ownership = ownership
        self.participants.elsewhere = OwnersParticipants(ownership, self.cluster_client)
        if self._java_snapshots is not None:
            self._java_snapshots.client = self.cluster_client
            self._java_snapshots.ownership = ownership
        await ownership.start()
        self._unattended = UnattendedCoordinators(self.runtime, ownership, self.transactions, others)
        self.broker_context.tasks.start(self._unattended.run(), "unattended transaction coordinators")
        return others

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def health_check(self) -> None:
        await self._health.run()

    async def hand_over(self) -> None:
        """Hand over all bundles to other brokers of the cluster before this broker stops, within
        `bundleHandoverPercentage` of `brokerShutdownTimeoutMs`. `close` releases the remaining bundles. Does nothing
        without a session with the metadata store.
        """
        if self.ownership is None or self.other_brokers is None:
            return
        if self.metadata_store.session_state is not SessionState.CONNECTED:
            return
        handover = BundleHandover(self.runtime, self.ownership, self.other_brokers, self.handovers_per_s)
        config = self.runtime.config
        timeout_ms = config.bundle_handover_percentage / 100 * config.broker_shutdown_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await handover.run()
        except TimeoutError:
            logs.warning("bundles.handover_timed_out", remaining=len(self.ownership.shared_bundles()))

    async def end_transactions(self) -> None:
        """Abort the open transactions if only Java brokers remain in the cluster after this broker stops. Call this
        before `tell_clients`.
        """
        if self._unattended is not None:
            await self._unattended.end_before_stop()

    async def tell_clients(self) -> None:
        """Reject new clients, close the producers and consumers of all topics (clients then repeat the lookup), and
        wait until received messages are stored and confirmed. The caller then calls `close`.
        """
        self.presence.is_closing = True
        await self._closing.tell_clients()

    async def close(self) -> None:
        """Close all producers and consumers, all topics, and then the shared parts. If the task is cancelled, the
        remaining steps are skipped.
        """
        self.presence.is_closing = True
        if self.cache_refresher is not None:
            await self.cache_refresher.close()
        await self.transactions.close()
        await self.authentication.close()
        if self._policy_changes.system_topic_policies is not None:
            await self._policy_changes.system_topic_policies.close()
        if self.ownership is not None:
            await self.ownership.release_all()
            await self.ownership.close()
        if self._cluster_client is not None:
            await self._cluster_client.close()
        await self._closing.close_all()
        await self.broker_context.tasks.close()
        await self._closing.close_all()  # topics whose load ended meanwhile
        await self.broker_context.authorization.close()
        await self.ledgers.close()
        self.refused_accesses.flush()
        self.runtime.cancel_timers()


def new_broker_context(
    runtime: Runtime,
    metadata_store: MetadataStore,
    resources: Resources,
    ledgers: ManagedLedgerFactory,
    schema_storage: SchemaStorage | None = None,
) -> BrokerContext:
    """Create the objects that all topics share. Requires a running event loop."""
    config = runtime.config
    resource_groups = ResourceGroups(metadata_store)
    return BrokerContext(
        runtime,
        metadata_store,
        resources,
        ledgers,
        authorization=AuthorizationService(config, resources, runtime.clock),
        schemas=SchemaRegistry(metadata_store, runtime.clock, schema_storage),
        waiting=WaitingRequests(config),
        producer_names=ProducerNames(config.cluster_name, metadata_store, runtime.clock),
        refusals=Refusals(),
        resource_groups=resource_groups,
        resource_group_rates=ResourceGroupRates(runtime, resource_groups),
        entry_filters=AvailableFilters(config.entry_filter_names),
        added_metadata=added_metadata(config.broker_entry_metadata_interceptors),
        broker_unacked_limit=_broker_unacked_limit(config),
        pumps=PumpList(asyncio.get_running_loop(), runtime.clock),
        read_leases=ReadLeases(config.max_read_leases_per_topic, config.max_read_leases),
    )


def _broker_unacked_limit(config: BrokerConfig) -> BrokerUnackedLimit[Pumped] | None:
    limit = config.max_unacked_messages_per_broker
    share = config.max_unacked_messages_per_subscription_on_broker_blocked
    return BrokerUnackedLimit(limit, share) if limit > 0 else None
