"""Common base of persistent and non-persistent topics: producers, policies, limits, and fencing.

A topic is a fault boundary: an unexpected exception closes only this topic, and its clients look it up again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeVar

from pybroker.broker.context.topic_context import TopicContext
from pybroker.broker.delivery import consumer_admission
from pybroker.broker.limits.publish_rate_limit import renewed_publish_limit
from pybroker.broker.limits.publish_throttle import PublishThrottle
from pybroker.broker.limits.subscribe_rate_limit import SubscribeRateLimit
from pybroker.broker.publishing import producer_admission
from pybroker.broker.publishing.producer_registry import ProducerRegistry
from pybroker.broker.publishing.publish_checks import publish_checks
from pybroker.broker.topic.revoked_rights import disconnect_revoked
from pybroker.errors import BrokerError, NotAllowedError, PersistenceError, ServiceNotReady
from pybroker.model.counters import LedgerCounters
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.system_topics import is_system_topic

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.limits.publish_rate_limit import WaitingPublishers
    from pybroker.broker.publishing.producer import Producer
    from pybroker.model.events import SendRun
    from pybroker.model.names import TopicName
    from pybroker.model.policies import TopicPolicies
    from pybroker.runtime.tasks import TaskOwner

T = TypeVar("T")


class TopicBase(ABC):
    """A loaded topic of either kind."""

    subscriptions: Mapping[str, SubscriptionBase]

    def __init__(
        self,
        broker_context: BrokerContext,
        name: TopicName,
        own_policies: TopicPolicies,
        tasks: TaskOwner,
        epoch: int | None,
        start_unload: Callable[[TopicBase, str], None],
    ) -> None:
        """`start_unload` closes the topic in the background and logs the given reason. `tasks` are cancelled and
        awaited before the topic's storage is closed. `epoch`: stored topic epoch of exclusive producers.
        """
        self.shared = TopicContext(broker_context, name, own_policies, tasks, lambda reason: start_unload(self, reason))
        self.broker_context = broker_context
        self.runtime = broker_context.runtime
        self.name = name
        self.tasks = tasks
        self.counters = self.shared.counters
        self.producer_registry = ProducerRegistry(self.shared, epoch, self)
        self.producers: Mapping[str, Producer] = self.producer_registry.attached
        self.is_silent = False
        """True while messages are dropped without a response, because their producers are about to be closed."""
        self.loaded_ms = self.runtime.clock.wall_ms()
        self._subscribe_limit: SubscribeRateLimit | None = None
        self.publish_throttle: PublishThrottle | None = None
        self.held_publishers: WaitingPublishers | None = None
        """Queue of publishers while the topic accepts no messages; None otherwise."""

    # --- policies ----------------------------------------------------------------------------------------------------

    @property
    def policies(self) -> EffectivePolicies:
        return self.shared.policies

    def own_policies_changed(self, policies: TopicPolicies) -> None:
        self.shared.set_own_policies(policies)
        self.policies_changed()

    def policies_changed(self) -> None:
        self._renew_limits()
        for producer in list(self.producers.values()):
            if self.shared.is_encryption_required and not producer.is_encrypted:
                producer.close_from_broker()
        for subscription in self.subscriptions.values():
            subscription.filters_changed()

    async def disconnect_revoked(self) -> None:
        """Disconnect producers and consumers whose role has lost its permission."""
        await disconnect_revoked(
            self.name, self.producer_registry, self.subscriptions.values(), self.broker_context.authorization
        )

    def _renew_limits(self) -> None:
        self.renew_publish_throttle()
        self._publish_checks = publish_checks(self.policies, is_encryption_required=self.shared.is_encryption_required)

    def renew_publish_throttle(self) -> None:
        """Replace the publish limits after a policy change. Publishers that wait for a removed limit continue."""
        if is_system_topic(self.name):
            return
        broker_context, policies, before = self.broker_context, self.policies, self.publish_throttle
        own = renewed_publish_limit(self.runtime, None if before is None else before.own, policies.publish_rate)
        group = broker_context.resource_group_rates.of(policies.resource_group)
        shared = [limit for limit in (broker_context.publish_rate_limit, group.publish_rate_limit) if limit is not None]
        held = self.held_publishers
        is_needed = shared or own is not None or held is not None
        clock, counters = self.runtime.clock, self.counters
        self.publish_throttle = PublishThrottle(clock, counters, own, shared, held) if is_needed else None
        if before is not None:
            before.close(self.publish_throttle)

    # --- interface for the parts of the topic ------------------------------------------------------------------------

    @property
    def is_fenced(self) -> bool:
        return self.shared.is_fenced

    @property
    def last_used_ms(self) -> float:
        return self.shared.last_used_ms

    def require_open(self) -> None:
        self.shared.require_open()

    @property
    @abstractmethod
    def ledger_counters(self) -> LedgerCounters:
        """Counters of the managed ledger; zeros for a topic without ledger."""

    # --- producers and publishing ------------------------------------------------------------------------------------

    async def require_permission(self, producer: Producer) -> None:
        """Check that `producer` still has the permission to publish, which may have been revoked while the request
        waited. Raises AuthorizationError, and ServiceNotReady if the authorization provider does not answer.
        """
        if producer.permission is None:
            authorization, principal = self.broker_context.authorization, producer.peer.principal
            producer.permission = authorization.permission(lambda: authorization.require_produce(self.name, principal))
        await producer.permission.require()

    def require_admissible(self, producer: Producer) -> None:
        """Check that the topic accepts `producer`. The caller has checked its permission. Raises TopicFenced if the
        topic is being closed, and MetadataError if required encryption is missing.
        """
        self.require_open()
        producer_admission.require_encryption(self.shared, producer)

    @abstractmethod
    async def store_epoch(self, epoch: int) -> None:
        """Store the topic epoch. Durable on return if the topic is persistent. Raises StoreError."""

    def disconnect_producers(self, refusal: BrokerError) -> None:
        self.producer_registry.close_all(refusal)

    async def settled(self, producer_name: str) -> None:
        """Wait until earlier messages of this producer are stored or have failed, so that its `last_sequence_id` is
        final. Raises ServiceNotReady if the topic is closed meanwhile.
        """
        self.require_open()

    async def drained(self) -> None:
        for producer in list(self.producers.values()):
            await producer.drained()

    async def disconnect_silently(self, refusal: BrokerError, ending: Awaitable[T]) -> T:
        """Await `ending`, which terminates this topic, then close all producers, even if `ending` fails. Producers that
        wait to be attached receive the error `refusal`.

        Messages that arrive after this call begins are dropped without a response. Earlier messages receive their
        receipts before the producers are closed; otherwise clients would resend them.
        """
        self.is_silent = True
        try:
            result = await ending
            await self.drained()
            return result
        finally:
            self.is_silent = False
            self.disconnect_producers(refusal)

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the producer's highest durable sequence id; -1 if unknown."""
        return -1

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Accept the messages `run` of a producer. Its connection receives receipts or errors, during this call or
        later.
        """
        if producer.is_closed and producer.refusal is not None:
            # The producer was fenced while this run waited. A dropped run would never get a response, because the client does not
            # know of the fencing.
            self._refuse(producer, run, producer.refusal)
            return
        if self.shared.is_fenced or producer.is_closed or self.is_silent:
            # Not refused: at an error, C++ clients close their connection, and Go clients drop messages.
            producer.peer.sends_dropped(run, PersistenceError(f"producer {producer.name} is being closed"))
            return
        if self._publish_checks is not None:
            run, refused = self._publish_checks.split(run)
            for part, error in refused:
                self._refuse(producer, part, error)
            if not run.payloads:
                return
        self._accept(producer, run)

    @abstractmethod
    def _accept(self, producer: Producer, run: SendRun) -> None: ...

    def _refuse(self, producer: Producer, run: SendRun, error: BrokerError) -> None:
        self.shared.refused(producer.name, producer.peer.address, run, error)
        producer.peer.send_errors(run.producer_id, run.sequence_ids, error, run.size_bytes)

    # --- consumers ---------------------------------------------------------------------------------------------------

    def admit_subscribe(self, consumer: Hashable) -> None:
        """Check the subscribe rate of `consumer`, and consume a token. Raises NotAllowedError if the rate is exceeded."""
        rate = self.policies.subscribe_rate
        if rate.subscribeThrottlingRatePerConsumer <= 0:
            self._subscribe_limit = None
            return
        if self._subscribe_limit is None or self._subscribe_limit.rate != rate:
            self._subscribe_limit = SubscribeRateLimit(rate)
        if not self._subscribe_limit.admits(consumer, self.runtime.clock.monotonic_ms()):
            raise NotAllowedError("Subscribe limited by subscribe rate limit per consumer.")

    @property
    def subscriptions_being_made(self) -> int:
        return 0

    @abstractmethod
    def subscription_lock(self, subscription: str, purpose: str) -> AbstractAsyncContextManager[None]: ...

    @abstractmethod
    async def delete_subscription(self, subscription: SubscriptionBase) -> None:
        """Delete the subscription permanently and close its consumers. The caller holds its lock. Raises StoreError."""

    def attach(self, subscription: SubscriptionBase, consumer: Consumer, kind: str) -> None:
        """Attach `consumer` to `subscription`. `kind`: the subscription type that the consumer requests. The caller has
        checked the consumer's permission and holds the subscription's lock.

        Raises ConsumerBusy if a consumer limit is reached, or if the subscription does not accept another consumer or
        this type.
        """
        self.require_open()
        consumer_admission.require_room_for_consumer(self.shared, self.subscriptions.values(), consumer.peer)
        subscription.add_consumer(consumer, kind)

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def in_use(self) -> None:
        self.shared.in_use()

    def fail(self, bug: Exception) -> None:
        self.shared.fail(bug)

    def fence(self) -> None:
        """Reject all further clients and requests, and close all producers and consumers."""
        self.shared.is_fenced = True
        self.disconnect_producers(ServiceNotReady(f"topic {self.name} is being unloaded, try again"))
        if self.publish_throttle is not None:
            self.publish_throttle.close(None)  # Its producers are gone, so no client must wait for it.
        for subscription in list(self.subscriptions.values()):
            subscription.is_closed = True
            subscription.close_consumers()
