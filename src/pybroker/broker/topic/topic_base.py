"""What all loaded topics have in common, whether they store messages or not: producers, policies and limits, fencing.

This is one of the three fault boundaries: a broken invariant closes the topic, whose clients look it up again and get a fresh one.
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
    """Owned by the broker service, under its canonical name, from load to close."""

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
        """`start_unload` closes it in the background, and is told why.

        `tasks` end before the topic's storage is closed; `epoch` is the last one stored."""
        self.shared = TopicContext(broker_context, name, own_policies, tasks, lambda reason: start_unload(self, reason))
        self.broker_context = broker_context
        self.runtime = broker_context.runtime
        self.name = name
        self.tasks = tasks
        self.counters = self.shared.counters
        self.producer_registry = ProducerRegistry(
            self.shared, epoch, self.require_admissible, self.store_epoch, self.settled
        )
        self.producers: Mapping[str, Producer] = self.producer_registry.attached
        self.is_silent = False
        """What producers send is dropped without an answer: they are about to be closed, and send it again."""
        self.loaded_ms = self.runtime.clock.wall_ms()
        self._subscribe_limit: SubscribeRateLimit | None = None
        self.publish_throttle: PublishThrottle | None = None
        self.held_publishers: WaitingPublishers | None = None
        """Where publishers wait while nothing is taken; None, as a rule, when they need not."""

    # --- policies ----------------------------------------------------------------------------------------------------

    @property
    def policies(self) -> EffectivePolicies:
        """What is in force for this topic now."""
        return self.shared.policies

    def own_policies_changed(self, policies: TopicPolicies) -> None:
        """`policies` are set for this topic alone, or for all partitions of its partitioned topic, now."""
        self.shared.set_own_policies(policies)
        self.policies_changed()

    def policies_changed(self) -> None:
        """Act on what is in force now."""
        self._renew_limits()
        for producer in list(self.producers.values()):
            if self.shared.is_encryption_required and not producer.is_encrypted:
                producer.close_from_broker()
        for subscription in self.subscriptions.values():
            subscription.filters_changed()
        disconnect_revoked(
            self.name, self.producer_registry, self.subscriptions.values(), self.broker_context.authorization
        )

    def _renew_limits(self) -> None:
        self.renew_publish_throttle()
        self._publish_checks = publish_checks(self.policies, is_encryption_required=self.shared.is_encryption_required)

    def renew_publish_throttle(self) -> None:
        """Apply the rates that are in force now; who waits for one that does not hold any more goes on."""
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

    # --- the same as its parts see it --------------------------------------------------------------------------------

    @property
    def is_fenced(self) -> bool:
        """It takes nobody and nothing more."""
        return self.shared.is_fenced

    @property
    def last_used_ms(self) -> float:
        """When somebody was known to use it last."""
        return self.shared.last_used_ms

    def require_open(self) -> None:
        """Raises TopicFenced."""
        self.shared.require_open()

    @property
    @abstractmethod
    def ledger_counters(self) -> LedgerCounters:
        """What its managed ledger counts; zeros when there is none."""

    # --- producers and publishing ------------------------------------------------------------------------------------

    def require_admissible(self, producer: Producer) -> None:
        """Raises ServiceNotReady, MetadataError for one that does not encrypt where it must, and AuthorizationError."""
        self.require_open()
        # Its right may have been revoked since the client asked: it waited for the topic, or for its turn.
        self.broker_context.authorization.require_produce(self.name, producer.peer.role)
        producer_admission.require_encryption(self.shared, producer)

    @abstractmethod
    async def store_epoch(self, epoch: int) -> None:
        """Somebody takes over, with that epoch; durable when it returns, where anything is. Raises StoreError."""

    def disconnect_producers(self, refusal: BrokerError) -> None:
        """Tell all producers to look the topic up again, and `refusal` to those that wait for their turn."""
        self.producer_registry.close_all(refusal)

    async def settled(self, producer_name: str) -> None:
        """Wait until `last_sequence_id` of this producer is sure. Raises ServiceNotReady when the topic is closed."""
        self.require_open()

    async def drained(self) -> None:
        """Wait until everything that the attached producers have published is answered."""
        for producer in list(self.producers.values()):
            await producer.drained()

    async def disconnect_silently(self, refusal: BrokerError, ending: Awaitable[T]) -> T:
        """`ending`, and then, whatever comes of it, tell all producers to look the topic up again.

        What they send from now on is dropped; what they sent before is answered before they are told: a client sends everything
        again that it has no answer for by then, and it would be stored twice.
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
        """What a producer of this name has published last; -1 when nothing is known of it."""
        return -1

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Take a run of messages; the producer's peer is answered for each, now or later."""
        if producer.is_closed and producer.refusal is not None:
            # Fenced out while this waited here, which its client does not know: dropped, it would never be answered.
            self._refuse(producer, run, producer.refusal)
            return
        if self.shared.is_fenced or producer.is_closed or self.is_silent:
            # Not refused: at an error C++ clients drop their connection, and Go clients what they cannot send any more.
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
    def _accept(self, producer: Producer, run: SendRun) -> None:
        """Take a run that nothing speaks against."""

    def _refuse(self, producer: Producer, run: SendRun, error: BrokerError) -> None:
        self.shared.refused(producer.name, producer.peer.address, run, error)
        producer.peer.send_errors(run.producer_id, run.sequence_ids, error, run.size_bytes)

    # --- consumers ---------------------------------------------------------------------------------------------------

    def admit_subscribe(self, consumer: Hashable) -> None:
        """Raises NotAllowedError when this consumer subscribes more often than the policies let it."""
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
        """Those that will be listed soon: limits count them already."""
        return 0

    @abstractmethod
    def turn(self, subscription: str, doing: str) -> AbstractAsyncContextManager[None]:
        """Make, delete or move that subscription, or attach consumers to it, while nobody else does; all is looked up within.

        `doing` is what others are told that they wait for. Raises TopicFenced, and then nothing has been done, and
        TooManyRequests.
        """

    @abstractmethod
    async def delete_subscription(self, subscription: SubscriptionBase) -> None:
        """Forget it for good, in its turn; its consumers are told to go. Raises StoreError."""

    def attach(self, subscription: SubscriptionBase, consumer: Consumer, kind: str) -> None:
        """Add `consumer` to `subscription`, in its turn. Raises ConsumerBusy, AuthorizationError."""
        self.require_open()
        self.broker_context.authorization.require_consume(self.name, subscription.name, consumer.peer.role)
        consumer_admission.require_room_for_consumer(self.shared, self.subscriptions.values(), consumer.peer)
        subscription.add_consumer(consumer, kind)

    # --- life --------------------------------------------------------------------------------------------------------

    def in_use(self) -> None:
        """Somebody uses the topic now, or did until now."""
        self.shared.in_use()

    def fail(self, bug: Exception) -> None:
        """A broken invariant in here: close the topic; its clients look it up again and get a fresh one."""
        self.shared.fail(bug)

    def fence(self) -> None:
        """Take nobody and nothing more, and tell the clients to look the topic up again."""
        self.shared.is_fenced = True
        self.disconnect_producers(ServiceNotReady(f"topic {self.name} is being unloaded, try again"))
        if self.publish_throttle is not None:
            self.publish_throttle.close(None)  # Its producers are gone: who waits for it goes on.
        for subscription in list(self.subscriptions.values()):
            subscription.is_closed = True
            subscription.close_consumers()
