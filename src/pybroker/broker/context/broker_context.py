"""State that all topics of a broker share: configuration, policies, limits, and registries.

Some attributes are replaced at run time, so callers must not cache them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pybroker.broker.context.default_policies import default_policies
from pybroker.broker.limits.dispatch_rate_limit import DispatchRateLimit, is_limited
from pybroker.broker.limits.publish_rate_limit import renewed_publish_limit
from pybroker.model.effective_policies import EffectivePolicies, effective_policies
from pybroker.model.policies import DispatchRate, NamespacePolicies, PublishRate, TopicPolicies
from pybroker.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pybroker.auth.authorization import AuthorizationService
    from pybroker.auth.proxied_role import Principal
    from pybroker.broker.context.added_entry_metadata import AddedMetadata
    from pybroker.broker.context.pending_transaction_ends import PendingEndOf
    from pybroker.broker.context.producer_names import ProducerNames
    from pybroker.broker.context.publish_refusals import Refusals
    from pybroker.broker.context.pumps import Pumped, PumpList
    from pybroker.broker.context.read_leases import ReadLeases
    from pybroker.broker.context.topic_ownership import TopicOwnership, TopicsElsewhere
    from pybroker.broker.context.waiting_requests import WaitingRequests
    from pybroker.broker.entry_filters import AvailableFilters
    from pybroker.broker.limits.broker_unacked_limit import BrokerUnackedLimit
    from pybroker.broker.limits.resource_group_rates import ResourceGroupRates
    from pybroker.config import BrokerConfig
    from pybroker.errors import BrokerError
    from pybroker.managed_ledger.factory import ManagedLedgerFactory
    from pybroker.metadata.metadata_store import MetadataStore
    from pybroker.metadata.resource_groups import ResourceGroups
    from pybroker.metadata.resources import Resources
    from pybroker.model.names import NamespaceName, TopicName
    from pybroker.model.position import Position
    from pybroker.model.txn_id import TxnId
    from pybroker.runtime.runtime import Runtime
    from pybroker.schema.schema_registry import SchemaRegistry

_NOTHING_SET = NamespacePolicies()


class BrokerContext:
    """Shared state of all topics. The broker service creates one instance."""

    def __init__(
        self,
        runtime: Runtime,
        metadata_store: MetadataStore,
        resources: Resources,
        ledgers: ManagedLedgerFactory,
        *,
        authorization: AuthorizationService,
        schemas: SchemaRegistry,
        waiting: WaitingRequests,
        producer_names: ProducerNames,
        refusals: Refusals,
        resource_groups: ResourceGroups,
        resource_group_rates: ResourceGroupRates,
        entry_filters: AvailableFilters,
        added_metadata: AddedMetadata | None,
        broker_unacked_limit: BrokerUnackedLimit[Pumped] | None,
        pumps: PumpList,
        read_leases: ReadLeases,
    ) -> None:
        config = runtime.config
        self.runtime = runtime
        self.metadata_store = metadata_store
        self.resources = resources
        self.ledgers = ledgers
        self.authorization = authorization
        self.schemas = schemas
        self.waiting = waiting
        self.producer_names = producer_names
        self.refusals = refusals
        self.resource_groups = resource_groups
        self.default_policies = default_policies(config)
        self.entry_filters = entry_filters
        self.added_metadata = added_metadata
        self.dispatch_rate_limit = _dispatch_rate_limit(runtime)
        self.publish_rate_limit = renewed_publish_limit(runtime, None, _publish_rate(config))
        self.resource_group_rates = resource_group_rates
        self.broker_unacked_limit = broker_unacked_limit
        self.pumps = pumps
        self.read_leases = read_leases
        """Read leases on loaded and unloaded topics. Unloading a topic ends no lease."""
        self.compaction_slot = asyncio.Semaphore(1)
        """Allows one compaction at a time, so that memory for keys is used by one compaction only."""
        self.taking_part: Callable[[TxnId, Principal, str, str | None], BrokerError | None] = _anybody
        """Returns the error if a client may not use a transaction on a topic or subscription, else None."""
        self.pending_end_of: PendingEndOf = _no_pending_end
        """Returns why a transaction may already be committed at its coordinator, else None."""
        self.ownership: TopicOwnership | None = None
        """Ownership of topics in the cluster; None for a standalone broker, which serves all topics."""
        self.elsewhere: TopicsElsewhere | None = None
        """Operations on topics of other brokers; None for a standalone broker."""
        self.announce_transactions: Callable[[TopicName, Position], Awaitable[None]] | None = None
        """Called before the first message of a transaction is stored in a topic that Java brokers may take over, with the last
        position. Raises StoreError."""
        self.java_transactions_from: Callable[[TopicName], Awaitable[Position | None]] | None = None
        """Returns the position behind which a topic may have messages of transactions that a Java broker has kept, or None. Raises
        StoreError."""
        self.tasks = TaskOwner("broker")

    async def load(self) -> None:
        """Load the resource group and namespace policies into memory. Raises StoreError."""
        await self.resource_groups.load()
        await self.producer_names.load()

    def effective_policies(self, namespace: NamespaceName, topic: TopicPolicies) -> EffectivePolicies:
        """Return the effective policies of a topic: its own policies (`topic`) override namespace policies, which
        override broker defaults.
        """
        config = self.runtime.config
        if not config.topic_level_policies_enabled:
            topic = TopicPolicies()
        # A namespace that is being deleted has none.
        policies = self.resources.namespace(namespace) or _NOTHING_SET
        return effective_policies(topic, policies, self.default_policies, config.cluster_name)

    def defaults_changed(self) -> None:
        """Apply changed configuration defaults. A rate limit that has not changed keeps its remaining tokens."""
        runtime = self.runtime
        self.default_policies = default_policies(runtime.config)
        limit = _dispatch_rate_limit(runtime)
        if (limit and limit.rate) != (self.dispatch_rate_limit and self.dispatch_rate_limit.rate):
            self.dispatch_rate_limit = limit
        self.publish_rate_limit = renewed_publish_limit(runtime, self.publish_rate_limit, _publish_rate(runtime.config))

    def read_retry_delay_s(self, failures: int) -> float:
        config = self.runtime.config
        first_ms = config.dispatcher_read_failure_backoff_initial_time_in_ms
        most_ms = config.dispatcher_read_failure_backoff_max_time_in_ms
        return min(most_ms, first_ms << min(failures - 1, 16)) / 1000


def _anybody(_txn: TxnId, _principal: Principal, _topic: str, _subscription: str | None) -> None: ...


def _no_pending_end(_txn: TxnId) -> None: ...


def _publish_rate(config: BrokerConfig) -> PublishRate:
    return PublishRate(
        config.broker_publisher_throttling_max_message_rate, config.broker_publisher_throttling_max_byte_rate
    )


def _dispatch_rate_limit(runtime: Runtime) -> DispatchRateLimit | None:
    config = runtime.config
    rate = DispatchRate(config.dispatch_throttling_rate_in_msg, config.dispatch_throttling_rate_in_byte, False, 1)
    return DispatchRateLimit("Broker", rate, runtime.clock.monotonic_ms(), 0, 0) if is_limited(rate) else None
