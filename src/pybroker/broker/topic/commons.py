"""What all topics of a broker share, persistent or not: surroundings, stores, rights, policies, and the limits that hold for all.

Handed down to topics, and by them to their subscriptions and producers, none of which know of the broker service. What is to be
replaced at run time is asked here each time and kept nowhere else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pybroker.auth.authorization import AuthorizationService
from pybroker.broker.delivery.pumps import Pumped, PumpList
from pybroker.broker.entry_filters import AvailableFilters
from pybroker.broker.lifecycle.waiting_requests import WaitingRequests
from pybroker.broker.limits.broker_unacked_limit import BrokerUnackedLimit
from pybroker.broker.limits.dispatch_rate_limit import DispatchRateLimit, is_limited
from pybroker.broker.limits.publish_rate_limit import renewed_publish_limit
from pybroker.broker.limits.resource_group_rates import ResourceGroupRates
from pybroker.broker.policies.default_policies import default_policies
from pybroker.broker.publishing.entry_metadata import added_metadata
from pybroker.broker.publishing.producer_names import ProducerNames
from pybroker.broker.publishing.refusals import Refusals
from pybroker.broker.topic.read_leases import ReadLeases
from pybroker.metadata.resource_groups import ResourceGroups
from pybroker.model.effective_policies import EffectivePolicies, effective_policies
from pybroker.model.policies import DispatchRate, NamespacePolicies, PublishRate, TopicPolicies
from pybroker.schema.registry import SchemaRegistry
from pybroker.tasks import TaskOwner

if TYPE_CHECKING:
    from collections.abc import Callable

    from pybroker.config import BrokerConfig
    from pybroker.errors import BrokerError
    from pybroker.managed_ledger.factory import ManagedLedgerFactory
    from pybroker.metadata.resources import Resources
    from pybroker.metadata.store import MetadataStore
    from pybroker.model.names import NamespaceName
    from pybroker.model.transactions import TxnId
    from pybroker.surroundings import Surroundings

_NOTHING_SET = NamespacePolicies()


class Commons:
    """Owned by the broker service; made on the running loop."""

    def __init__(
        self,
        surroundings: Surroundings,
        metadata_store: MetadataStore,
        resources: Resources,
        ledgers: ManagedLedgerFactory,
    ) -> None:
        config = surroundings.config
        self.surroundings = surroundings
        self.resources = resources
        self.ledgers = ledgers
        self.authorization = AuthorizationService(config, resources)
        self.schemas = SchemaRegistry(metadata_store, surroundings.clock)
        self.waiting = WaitingRequests(config)
        """Those that wait for a topic."""
        self.producer_names = ProducerNames(config.cluster_name, metadata_store, surroundings.clock)
        self.refusals = Refusals()
        """Producers that were not let in lately, and whose messages were refused."""
        self.resource_groups = ResourceGroups(metadata_store)
        self.default_policies = default_policies(config)
        self.entry_filters = AvailableFilters(config.entry_filter_names)
        self.added_metadata = added_metadata(config.broker_entry_metadata_interceptors)
        self.dispatch_rate_limit = _dispatch_rate_limit(surroundings)
        self.publish_rate_limit = renewed_publish_limit(surroundings, None, _publish_rate(config))
        """What limits all publishing to the broker together."""
        self.resource_group_rates = ResourceGroupRates(surroundings, self.resource_groups)
        self.broker_unacked_limit = _broker_unacked_limit(config)
        self.pumps = PumpList(asyncio.get_running_loop(), surroundings.clock)
        self.read_leases = ReadLeases(config.max_read_leases_per_topic, config.max_read_leases)
        """Of topics that are loaded or not: unloading ends none."""
        self.compaction_slot = asyncio.Semaphore(1)
        """Held while a topic is compacted: one after the other, so that what the keys of a topic take is taken once."""
        self.taking_part: Callable[[TxnId, str | None, str, str | None], BrokerError | None] = _anybody
        """Why nothing of a role is taken at a topic, or a subscription of it, in the name of a transaction, if it is not."""
        self.tasks = TaskOwner("broker")

    async def load(self) -> None:
        """Read what is kept in memory of the metadata. Raises StoreError."""
        await self.resource_groups.load()
        await self.producer_names.load()

    def effective_policies(self, namespace: NamespaceName, topic: TopicPolicies) -> EffectivePolicies:
        """What holds for a topic of `namespace` that has `topic` set for itself."""
        config = self.surroundings.config
        if not config.topic_level_policies_enabled:
            topic = TopicPolicies()
        # A namespace that is being deleted has none; its topics go next.
        policies = self.resources.namespace(namespace) or _NOTHING_SET
        return effective_policies(topic, policies, self.default_policies, config.cluster_name)

    def defaults_changed(self) -> None:
        """Settings were changed at run time: renew what is made of them. Limits that stay the same keep their count."""
        surroundings = self.surroundings
        self.default_policies = default_policies(surroundings.config)
        limit = _dispatch_rate_limit(surroundings)
        if (limit and limit.rate) != (self.dispatch_rate_limit and self.dispatch_rate_limit.rate):
            self.dispatch_rate_limit = limit
        self.publish_rate_limit = renewed_publish_limit(
            surroundings, self.publish_rate_limit, _publish_rate(surroundings.config)
        )

    def read_retry_delay_s(self, failures: int) -> float:
        """How long to wait after the n-th failed read in a row."""
        config = self.surroundings.config
        first_ms = config.dispatcher_read_failure_backoff_initial_time_in_ms
        most_ms = config.dispatcher_read_failure_backoff_max_time_in_ms
        return min(most_ms, first_ms << min(failures - 1, 16)) / 1000


def _anybody(_txn: TxnId, _role: str | None, _topic: str, _subscription: str | None) -> None:
    """As long as nobody says who takes part."""


def _broker_unacked_limit(config: BrokerConfig) -> BrokerUnackedLimit[Pumped] | None:
    """None when there is no limit."""
    limit = config.max_unacked_messages_per_broker
    share = config.max_unacked_messages_per_subscription_on_broker_blocked
    return BrokerUnackedLimit(limit, share) if limit > 0 else None


def _publish_rate(config: BrokerConfig) -> PublishRate:
    return PublishRate(
        config.broker_publisher_throttling_max_message_rate, config.broker_publisher_throttling_max_byte_rate
    )


def _dispatch_rate_limit(surroundings: Surroundings) -> DispatchRateLimit | None:
    """What limits all dispatch of the broker together."""
    config = surroundings.config
    rate = DispatchRate(config.dispatch_throttling_rate_in_msg, config.dispatch_throttling_rate_in_byte, False, 1)
    return DispatchRateLimit("Broker", rate, surroundings.clock.monotonic_ms(), 0, 0) if is_limited(rate) else None
