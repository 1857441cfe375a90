"""A broker without storage or dispatch, for tests of the HTTP server: real metadata and permissions, topics that count
calls.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pybroker.admin.server import HttpServer
from pybroker.auth.authentication import AuthenticationService
from pybroker.auth.authorization import AuthorizationService
from pybroker.auth.refused_accesses import RefusedAccesses
from pybroker.broker.context.default_policies import default_policies
from pybroker.broker.context.presence import Presence
from pybroker.broker.context.read_leases import ReadLeases
from pybroker.broker.context.waiting_requests import WaitingRequests
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.lifecycle.cluster_lookups import LookupAnswer
from pybroker.broker.lifecycle.loaded_topics import LoadedTopics
from pybroker.broker.maintenance.inactive_topics import InactiveTopics
from pybroker.broker.maintenance.periodic_maintenance import Maintenance
from pybroker.broker.service import BrokerService
from pybroker.broker.topic.topic import Topic
from pybroker.broker.topic.topic_compaction import CompactionCounters
from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.cluster.advertised_addresses import AdvertisedAddresses, BoundPorts
from pybroker.cluster.cluster_documents import ClusterDocuments
from pybroker.cluster.dynamic_configuration import DynamicConfiguration
from pybroker.config import BrokerConfig
from pybroker.errors import AdminError, BrokerError, TopicNotFound
from pybroker.ledgers.memory_store import MemoryLedgerStore
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.state_size_limit import StateSizeLimit
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.partitioned_topics import PartitionedTopics
from pybroker.metadata.resource_groups import ResourceGroups
from pybroker.metadata.resources import Resources
from pybroker.model.counters import DeliveryCounters, LedgerCounters, ProducerCounters, TopicCounters
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import BacklogQuota, BacklogQuotaPolicy
from pybroker.model.position import EARLIEST, Position
from pybroker.process.file_descriptors import Descriptors
from pybroker.runtime.clock import Clock
from pybroker.runtime.runtime import Runtime
from pybroker.schema.schema_registry import SchemaRegistry
from pybroker.transactions.coordinator import Coordinator

Names = list[str]


class FakeClock(Clock):
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms


@dataclass
class FakeLedger:
    ledgers: LedgerList = field(default_factory=LedgerList)
    counters: LedgerCounters = field(default_factory=LedgerCounters)
    compacted: CompactedInfo | None = None
    created_ms: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    pending_entries: int = 0
    copy_count: int = 1

    @property
    def size_bytes(self) -> int:
        return self.ledgers.size_bytes


@dataclass
class FakeFactory:
    cache: EntryCache = field(default_factory=lambda: EntryCache(1 << 20))
    store: MemoryLedgerStore = field(default_factory=MemoryLedgerStore)
    counters: LedgerCounters = field(default_factory=LedgerCounters)


@dataclass
class FakeCursorState:
    deleted_range_count: int = 0


@dataclass
class FakeOldest:
    age_s: int = -1

    def known_age_s(self) -> int:
        return self.age_s


@dataclass
class FakeCursor:
    ledger: FakeLedger
    name: str
    is_durable: bool = True
    backlog_entries: int = 0
    mark_delete_position: Position = EARLIEST
    state: FakeCursorState = field(default_factory=FakeCursorState)
    writes: int = 0
    failed_writes: int = 0
    written_bytes: int = 0
    oldest: FakeOldest = field(default_factory=FakeOldest)
    size_limit: StateSizeLimit = field(default_factory=StateSizeLimit)


@dataclass
class FakeDispatcher:
    unacked_messages: int = 0
    replay_entry_count: int = 0
    blocked: bool = False
    look_ahead_size_bytes: int = 0
    key_order: None = None
    chunk_order: None = None
    active_consumer: None = None
    redelivery_entry_count: int = 0
    kind: str = "Shared"


@dataclass
class FakeDelayed:
    entry_count: int = 0
    index_size_bytes: int = 0


@dataclass
class FakeConsumerState:
    unacked_messages: int = 0
    blocked: bool = False
    permits: int = 0
    max_unacked_messages: int = 0
    writable: bool = True
    messages_per_entry: float = 0.0
    draining_hashes_cleared_total: int = 0


@dataclass(eq=False)
class FakePeer:
    address: str = "/127.0.0.1:1"
    client_version: str = ""
    role: None = None


@dataclass(eq=False)
class FakeConsumer:
    name: str = "c"
    consumer_id: int = 1
    peer: FakePeer = field(default_factory=FakePeer)
    properties: dict[str, str] = field(default_factory=dict)
    connected_since_ms: int = 0
    counters: DeliveryCounters = field(default_factory=DeliveryCounters)
    state: FakeConsumerState = field(default_factory=FakeConsumerState)


@dataclass(eq=False)
class FakeProducer:
    name: str = "p"
    producer_id: int = 1
    counters: ProducerCounters = field(default_factory=ProducerCounters)


@dataclass(eq=False)
class FakeSubscription:
    name: str
    topic: FakeTopic
    cursor: FakeCursor
    counters: DeliveryCounters = field(default_factory=DeliveryCounters)
    is_durable: bool = True
    dispatcher: FakeDispatcher | None = None
    consumers: list[FakeConsumer] = field(default_factory=list)
    delayed: FakeDelayed = field(default_factory=FakeDelayed)
    is_replicated: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    draining_hashes_cleared_total: int = 0
    transactions: None = None

    @property
    def is_blocked(self) -> bool:
        return self.dispatcher is not None and self.dispatcher.blocked


NO_QUOTA = BacklogQuota(BacklogQuotaPolicy.HOLD, limitSize=-1, limitTime=-1)
NO_LIMITS = replace(default_policies(BrokerConfig()), size_quota=NO_QUOTA, age_quota=NO_QUOTA)


@dataclass(eq=False)
class FakeCompaction:
    counters: CompactionCounters = field(default_factory=CompactionCounters)


@dataclass(eq=False)
class FakeProducerRegistry:
    waiting_count: int = 0
    epoch: int | None = None


@dataclass(eq=False)
class FakeDeduplication:
    status: str = "Disabled"


@dataclass(eq=False)
class FakeTopicTransactions:
    buffer: TransactionBuffer | None = None


@dataclass(eq=False)
class FakeTopic:
    name: TopicName
    ledger: FakeLedger = field(default_factory=FakeLedger)
    counters: TopicCounters = field(default_factory=TopicCounters)
    producers: dict[str, FakeProducer] = field(default_factory=dict)
    subscriptions: dict[str, FakeSubscription] = field(default_factory=dict)
    policies: EffectivePolicies = NO_LIMITS
    backlog_age_s: int = -1
    backlog_age_subscription: str = ""
    compaction: FakeCompaction = field(default_factory=FakeCompaction)
    producer_registry: FakeProducerRegistry = field(default_factory=FakeProducerRegistry)
    deduplication: FakeDeduplication = field(default_factory=FakeDeduplication)
    transactions: FakeTopicTransactions = field(default_factory=FakeTopicTransactions)

    @property
    def ledger_counters(self) -> LedgerCounters:
        return self.ledger.counters

    def subscribe(self, name: str) -> FakeSubscription:
        self.subscriptions[name] = FakeSubscription(name, self, FakeCursor(self.ledger, name))
        return self.subscriptions[name]


# Accepted as topics that store their messages.
Topic.register(FakeTopic)
Subscription.register(FakeSubscription)


class FakeDirectory:
    """The topics of a fake broker; none of them is a system topic."""

    def __init__(self, topics: dict[str, FakeTopic]) -> None:
        self._topics = topics

    async def exists(self, name: TopicName) -> bool:
        return str(name) in self._topics

    async def list(self, namespace: NamespaceName, domain: str | None, *, include_system: bool = False) -> Names:
        names = [topic.name for topic in self._topics.values() if topic.name.namespace == namespace]
        return sorted(str(name) for name in names if domain in {None, name.domain})

    def expected_bytes(self, namespace: NamespaceName) -> int:
        return 1


class FakeTopics:
    loading_count = 0


class FakeNamespaceDeletion:
    def __init__(self, config: BrokerConfig, resources: Resources, topics: dict[str, FakeTopic]) -> None:
        self._config = config
        self._resources = resources
        self._topics = topics

    async def settled(self, namespace: NamespaceName) -> None:
        pass

    async def delete(self, namespace: NamespaceName, force: bool) -> None:
        if self._resources.namespace(namespace) is None:
            raise AdminError(404, f"Namespace {namespace} does not exist")
        if force and not self._config.force_delete_namespace_allowed:
            raise AdminError(405, "not allowed (forceDeleteNamespaceAllowed)")
        names = [name for name, topic in self._topics.items() if topic.name.namespace == namespace]
        if names and not force:
            raise AdminError(409, f"Namespace {namespace} is not empty")
        for name in names:
            del self._topics[name]
        await self._resources.delete_namespace(namespace)


class FakeTransactions:
    """Coordinators without transactions."""

    def running(self) -> list[Coordinator]:
        return []


class FakeBroker:
    """The methods of BrokerService that the HTTP server calls."""

    def __init__(self, config: BrokerConfig, clock: Clock | None = None) -> None:
        self.runtime = Runtime(config, clock or FakeClock())
        metadata = self.metadata_store = MemoryMetadataStore()
        self.schemas = SchemaRegistry(metadata, self.runtime.clock)
        self.broker_context = self
        self.resource_groups = ResourceGroups(metadata)
        self.resources = Resources(metadata)
        self.dynamic = DynamicConfiguration(config, metadata)
        self.cluster_documents = ClusterDocuments(metadata)
        self.request_stop = None
        self.identity = None
        self.ownership = None
        self.other_brokers = None
        self.membership = None
        self.authentication = AuthenticationService(config)
        self.refused_accesses = RefusedAccesses(self.runtime)
        self.authorization = AuthorizationService(config, self.resources)
        self.presence = Presence()
        self.presence.ready = True
        self.presence.addresses = AdvertisedAddresses(config, BoundPorts(6650, None, 8080, None), "broker.example")
        self.loaded = LoadedTopics()
        self.topics = FakeTopics()
        topics = cast("dict[str, FakeTopic]", self.loaded.persistent)
        self.directory = FakeDirectory(topics)
        self.namespace_deletion = FakeNamespaceDeletion(self.runtime.config, self.resources, topics)
        self.partitioned = PartitionedTopics(MemoryMetadataStore())
        self.descriptors = Descriptors.of_process(config.file_descriptors_reserve, config.max_http_server_connections)
        self.ledgers = FakeFactory()
        self.pumps: list[FakeSubscription] = []
        self.waiting = WaitingRequests(config)
        self.read_leases = ReadLeases(64, 1000)
        self.data_directory = None
        self.maintenance = Maintenance(
            self.runtime, cast(ManagedLedgerFactory, self.ledgers), self.loaded, cast(InactiveTopics, None)
        )
        self.pending_metadata_requests = 0
        self.transactions = FakeTransactions()
        self.sickness: Exception | None = None
        self.created: list[str] = []

    def add_topic(self, text: str) -> FakeTopic:
        topic = FakeTopic(TopicName.parse(text))
        self.loaded.persistent[str(topic.name)] = cast(Topic, topic)
        return topic

    unready_reason = BrokerService.unready_reason

    async def health_check(self) -> None:
        if self.sickness is not None:
            raise self.sickness

    async def lookup(
        self, topic: TopicName, listener_name: str | None, *, is_authoritative: bool = False
    ) -> LookupAnswer:
        assert not is_authoritative
        self._require_namespace(topic.namespace)
        return LookupAnswer(self.presence.addresses.resolve(listener_name))

    async def partitioned_metadata(self, topic: TopicName, create: bool) -> int:
        self._require_namespace(topic.namespace)
        if str(topic) not in self.loaded.persistent:
            if not create:
                raise TopicNotFound(f"topic {topic} does not exist")
            self.created.append(str(topic))
        return 0

    def _require_namespace(self, namespace: NamespaceName) -> None:
        if self.resources.namespace(namespace) is None:
            raise TopicNotFound(f"namespace {namespace} does not exist")


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        assert self.headers["content-type"] == "application/json"
        text: str = self.json["reason"]
        return text


@dataclass
class Served:
    """A server on a free port, and its broker."""

    broker: FakeBroker
    server: HttpServer

    @property
    def port(self) -> int:
        return self.server.port or 0

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Answer:
        """Send one request over its own connection. A body other than bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return await asyncio.to_thread(self._call, method, path, data, headers or {}, tls)

    def _call(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], tls: ssl.SSLContext | None
    ) -> Answer:
        if tls is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        else:
            connection = http.client.HTTPSConnection("localhost", self.server.port_tls, timeout=10, context=tls)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Served]:
    """Start a fake broker behind a real HTTP server; `settings` are fields of BrokerConfig."""
    defaults: dict[str, Any] = {"web_service_port": 0, "bind_address": "127.0.0.1", "metrics_page_interval_ms": 0}
    broker = FakeBroker(BrokerConfig(**{**defaults, **settings}), Clock())
    await broker.resources.load()
    await broker.resources.bootstrap(broker.runtime.config.cluster_name)
    server = HttpServer(cast(BrokerService, broker), None, FakeClock())
    await server.start()
    try:
        yield Served(broker, server)
    finally:
        await server.close(deadline_s=1)


class Unwell(BrokerError):
    """A failure of the health check."""

    http_status = 503
