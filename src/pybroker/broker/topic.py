"""One loaded persistent topic: its producers, its subscriptions, its managed ledger.

This is one of the three fault boundaries: a broken invariant closes the topic, whose clients look it up again and get a fresh one.

Invariants: nothing is dispatched before it is durable; receipts leave in the order of the appends.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.broker import backlog, publish_throttle, throttle, topic_limits
from pybroker.broker.backlog_quota import UNKNOWN_AGE_S
from pybroker.broker.consumer import Consumer
from pybroker.broker.dispatch_limit import DispatchLimit
from pybroker.broker.producer import Producer
from pybroker.broker.publish_checks import publish_checks
from pybroker.broker.publish_throttle import PublishThrottle
from pybroker.broker.subscribe_limit import SubscribeLimit
from pybroker.broker.subscription import Subscription
from pybroker.errors import (
    BrokerError,
    LedgerTerminated,
    NotAllowedError,
    PersistenceError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ServiceNotReady,
    StorageFull,
    StoreError,
    SubscriptionNotFound,
    TopicTerminatedError,
)
from pybroker.managed_ledger.backlog import count_backlog
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerListener
from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.events import SendRun
from pybroker.model.names import TopicName
from pybroker.model.policies import NamespacePolicies, TopicPolicies
from pybroker.model.position import EARLIEST, LATEST, Position
from pybroker.model.stats import TopicCounters
from pybroker.model.system_topics import is_system_topic
from pybroker.storage.ledger_store import AppendRun
from pybroker.tasks import TaskOwner
from pybroker.wire.entry_metadata import is_batch

if TYPE_CHECKING:
    from pybroker.broker.internal_producer import InternalProducer
    from pybroker.broker.service import BrokerService


class Publish:
    """What a topic remembers of a run of messages while it is being stored."""

    __slots__ = ("producer", "run", "started_ms")

    def __init__(self, producer: Producer, run: SendRun, started_ms: float) -> None:
        self.producer = producer
        self.run = run
        self.started_ms = started_ms


class Topic(ManagedLedgerListener):
    """Owned by the broker service, under its canonical name, from load to close."""

    def __init__(
        self, service: BrokerService, name: TopicName, ledger: ManagedLedger, own_policies: TopicPolicies
    ) -> None:
        self.service = service
        self.name = name
        self.ledger = ledger
        self._own_policies = own_policies
        self._policies: EffectivePolicies | None = None
        self._policies_of: tuple[NamespacePolicies | None, EffectivePolicies | None] = (None, None)
        self.backlog_age_s = UNKNOWN_AGE_S
        """Age of the oldest unread message when the backlog quotas were checked last."""
        self.backlog_age_subscription = ""
        """Which subscription has not read that one; empty when the age is unknown."""
        self.producers: dict[str, Producer] = {}
        self.internal_producer: InternalProducer | None = None
        """Of what the broker itself publishes here, once it has."""
        self._refused_producers: set[str] = set()  # messages of these were refused because there is no space
        self.subscriptions: dict[str, Subscription] = {}
        self.counters = TopicCounters()
        self.is_fenced = False
        self.offload_error = ""
        """Why the last offload that was asked for did not happen."""
        self._end_when_loaded = ledger.ledgers.last_position
        self.loaded_ms = service.clock.wall_ms()
        self.tasks = TaskOwner(f"topic {name}")
        self._creating: set[str] = set()
        self._subscribe_limit: SubscribeLimit | None = None
        self.dispatch_limit: DispatchLimit | None = None
        """What limits the dispatch of all subscriptions together."""
        self.publish_throttle: PublishThrottle | None = None
        ledger.listen(self)
        for cursor in ledger.cursors.values():
            self.subscriptions[cursor.name] = Subscription(self, cursor.name, cursor)
        ledger.retention = backlog.retention_limits(self.policies.retention)
        self._renew_limits()

    @property
    def policies(self) -> EffectivePolicies:
        """What is in force for this topic now; made anew only when what it is made of was replaced."""
        namespace, defaults = self.service.resources.namespace(self.name.namespace), self.service.default_policies
        if self._policies is None or self._policies_of[0] is not namespace or self._policies_of[1] is not defaults:
            self._policies = self.service.effective_policies(self.name.namespace, self._own_policies)
            self._policies_of = (namespace, defaults)
        return self._policies

    def own_policies_changed(self, policies: TopicPolicies) -> None:
        """`policies` are set for this topic alone, or for all partitions of its partitioned topic, now."""
        self._own_policies = policies
        self._policies = None
        self.policies_changed()

    def policies_changed(self) -> None:
        """Act on what is in force now. Expiry and quotas look it up with every check."""
        limits = backlog.retention_limits(self.policies.retention)
        if limits != self.ledger.retention:
            self.ledger.retention = limits
            self.ledger.trim_soon()
        self._renew_limits()
        for subscription in self.subscriptions.values():
            subscription.delayed.policies_changed()
            subscription.limit_unacked()
        for producer in list(self.producers.values()):
            if self.is_encryption_required and not producer.is_encrypted:
                producer.close_from_broker()

    def _renew_limits(self) -> None:
        throttle.renew(self)
        publish_throttle.renew(self)
        self._publish_checks = publish_checks(self.policies, is_encryption_required=self.is_encryption_required)

    @property
    def is_encryption_required(self) -> bool:
        """Whether every message must be encrypted; the broker's own need not be."""
        return self.policies.encryption_required and not is_system_topic(self.name)

    def may_hold_chunks(self, position: Position) -> bool:
        """Whether an entry from `position` on may be part of a larger message: such were published, or it is from before."""
        return self.counters.chunks_in > 0 or position <= self._end_when_loaded

    def _require_open(self) -> None:
        if self.is_fenced:
            raise ServiceNotReady(f"topic {self.name} is being closed, try again")

    # --- producers and publishing ------------------------------------------------------------------------------------

    def add_producer(self, producer: Producer) -> None:
        """Attach `producer` under its name. Raises ProducerBusy, TopicTerminatedError, MetadataError for one that does not encrypt
        where it must, and, without space on disk, ProducerBlockedQuotaExceededException."""
        self._require_open()
        if self.ledger.is_terminated:
            raise TopicTerminatedError(f"Topic {self.name} was already terminated")
        topic_limits.require_encryption(self, producer)
        self._require_space(producer)
        present = self.producers.get(producer.name)
        if present is not None:
            is_successor = present.peer is producer.peer and producer.epoch > present.epoch
            if not is_successor or present.has_user_provided_name != producer.has_user_provided_name:
                raise ProducerBusy(f"Producer with name '{producer.name}' is already connected to topic")
            present.close_from_broker()
        topic_limits.require_room_for_producer(self, producer)
        self.producers[producer.name] = producer

    def _require_space(self, producer: Producer) -> None:
        """Refuse a producer while the disk is full: at that answer a client fails at once all that it has not sent yet.

        A producer that comes back after a refused message is refused once and taken the next time: each refusal makes the
        client wait twice as long before it tries again, and so it would go on late when there is space, and fail late before.
        """
        refusal = self.service.ledgers.store.refusal()
        if refusal is None:
            self._refused_producers.clear()
        elif producer.epoch == 0 or producer.name in self._refused_producers:
            self._refused_producers.discard(producer.name)
            raise ProducerBlockedQuotaExceededException(refusal)

    def remove_producer(self, producer: Producer) -> None:
        """`producer` is gone."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]

    def disconnect_producers(self) -> None:
        """Tell all producers to look the topic up again."""
        for producer in list(self.producers.values()):
            producer.close_from_broker()

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Store a run of messages; the producer's peer is answered for each, now or later."""
        if self.is_fenced or producer.is_closed:
            self._refuse(producer, run, PersistenceError(f"producer {producer.name} is being closed"))
            return
        if self._publish_checks is not None:
            run, refused = self._publish_checks.split(run)
            for part, error in refused:
                self._refuse(producer, part, error)
            if not run.payloads:
                return
        publish = Publish(producer, run, self.service.clock.monotonic_ms())
        producer.pending += len(run.payloads)
        try:
            self.ledger.append(run.payloads, run.message_counts, run.size_bytes, publish)
        except StoreError as error:
            producer.completed(len(run.payloads))
            self._refuse(producer, run, self._publish_failure(error, producer))

    def _refuse(self, producer: Producer, run: SendRun, error: BrokerError) -> None:
        self.counters.publish_errors += len(run.payloads)
        producer.peer.send_errors(run.producer_id, run.sequence_ids, error, run.size_bytes)

    def entries_added(self, runs: list[AppendRun]) -> None:
        clock = self.service.clock
        now_ms = clock.monotonic_ms()
        counters = self.counters
        for appended in runs:
            publish = appended.context
            assert isinstance(publish, Publish)
            producer = publish.producer
            run = publish.run
            entries = len(run.payloads)
            messages = appended.message_count
            counters.messages_in += messages
            counters.entries_in += entries
            counters.bytes_in += run.size_bytes
            counters.entry_size_bytes.add_sizes(run.payloads, run.size_bytes)
            latency_ms = now_ms - publish.started_ms
            counters.publish_latency_ms.add(latency_ms, entries)
            self.service.stats.publish_latency_ms.add(latency_ms, entries)
            producer.counters.messages_in += messages
            producer.counters.bytes_in += run.size_bytes
            if run.chunk_count:
                counters.chunks_in += run.chunk_count
                producer.counters.chunks_in += run.chunk_count
            producer.completed(entries)
            producer.peer.send_receipts(
                run.producer_id,
                run.sequence_ids,
                run.highest_sequence_ids,
                appended.ledger_id,
                appended.first_entry_id,
                run.size_bytes,
            )
        counters.last_publish_ms = clock.wall_ms()
        for subscription in self.subscriptions.values():
            subscription.wake()

    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        for appended in runs:
            publish = appended.context
            assert isinstance(publish, Publish)
            producer = publish.producer
            producer.completed(len(publish.run.payloads))
            self._refuse(producer, publish.run, self._publish_failure(error, producer))

    def _publish_failure(self, error: StoreError, producer: Producer) -> BrokerError:
        if isinstance(error, StorageFull):
            self._refused_producers.add(producer.name)
        if isinstance(error, LedgerTerminated):
            return TopicTerminatedError(f"Topic {self.name} was already terminated")
        return PersistenceError(str(error))

    # --- subscriptions -----------------------------------------------------------------------------------------------

    async def subscription(
        self, name: str, is_earliest: bool, may_create: bool, properties: Mapping[str, str]
    ) -> Subscription:
        """The durable subscription `name`, made at the topic's beginning or end when missing.

        Raises SubscriptionNotFound when it may not be made, NotAllowedError when a reader has that name.
        """
        self._require_open()
        present = self.subscriptions.get(name)
        if present is not None:
            if not present.is_durable:
                raise NotAllowedError(f"NonDurable subscription with the same name already exists: {name}")
            return present
        if name in self._creating:
            raise ServiceNotReady(f"subscription {name} is being made, try again")
        if not may_create:
            raise SubscriptionNotFound(
                f"Subscription {name} does not exist on {self.name}, and is not made automatically"
            )
        return await self.create_subscription(name, EARLIEST if is_earliest else LATEST, properties)

    async def create_subscription(self, name: str, first: Position, properties: Mapping[str, str]) -> Subscription:
        """A durable subscription, of a name that there is none of, whose first entry is the one at `first` or behind it."""
        self._require_open()
        if name in self._creating or name in self.subscriptions:
            raise ServiceNotReady(f"subscription {name} is being made, try again")
        topic_limits.require_room_for_subscription(self)
        self._creating.add(name)
        try:
            ledgers = self.ledger.ledgers
            is_behind_all = first > ledgers.last_position
            start = ledgers.last_position if is_behind_all else ledgers.previous_position(ledgers.normalize(first))
            cursor = await self.service.ledgers.create_cursor(self.ledger, name, start, properties)
        finally:
            self._creating.discard(name)
        self._require_open()
        subscription = self.subscriptions[name] = Subscription(self, name, cursor)
        logs.info("subscription.created", topic=self.name, subscription=name, position=cursor.mark_delete_position)
        return subscription

    def non_durable_subscription(self, name: str, mark_delete: Position) -> Subscription:
        """A reader's subscription, whose next entry is the one behind `mark_delete`."""
        self._require_open()
        present = self.subscriptions.get(name)
        if present is not None:
            if present.is_durable:
                raise NotAllowedError(f"Durable subscription with the same name already exists: {name}")
            return present
        topic_limits.require_room_for_subscription(self)
        cursor = self.service.ledgers.create_non_durable_cursor(self.ledger, name, mark_delete)
        subscription = self.subscriptions[name] = Subscription(self, name, cursor)
        return subscription

    def admit_subscribe(self, consumer: Hashable) -> None:
        """Raises NotAllowedError when this consumer subscribes more often than the policies let it."""
        rate = self.policies.subscribe_rate
        if rate.subscribeThrottlingRatePerConsumer <= 0:
            self._subscribe_limit = None
            return
        if self._subscribe_limit is None or self._subscribe_limit.rate != rate:
            self._subscribe_limit = SubscribeLimit(rate)
        if not self._subscribe_limit.admits(consumer, self.service.clock.monotonic_ms()):
            raise NotAllowedError("Subscribe limited by subscribe rate limit per consumer.")

    def attach(self, subscription: Subscription, consumer: Consumer, kind: str) -> None:
        """Add `consumer` to `subscription`. Raises ConsumerBusy."""
        self._require_open()
        topic_limits.require_room_for_consumer(self, consumer.peer)
        subscription.add_consumer(consumer, kind)

    async def delete_subscription(self, subscription: Subscription) -> None:
        """Forget a subscription and its cursor; its consumers are told to go."""
        subscription.is_closed = True
        subscription.close_consumers()
        self._remove(subscription)
        subscription.delayed.drop()
        await self.service.ledgers.delete_cursor(self.ledger, subscription.cursor)
        logs.info("subscription.deleted", topic=self.name, subscription=subscription.name)

    def drop_non_durable(self, subscription: Subscription) -> None:
        """The last reader of a non-durable subscription left."""
        if not subscription.is_closed:
            subscription.is_closed = True
            subscription.delayed.drop()
            self._remove(subscription)
            self.ledger.cursors.pop(subscription.name, None)

    def _remove(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            self.counters.messages_out_of_removed += subscription.counters.messages_out
            self.counters.bytes_out_of_removed += subscription.counters.bytes_out

    # --- life --------------------------------------------------------------------------------------------------------

    def fail(self, bug: Exception) -> None:
        """A broken invariant in here: close the topic; its clients look it up again and get a fresh one."""
        self.service.stats.bugs += 1
        if not self.is_fenced:
            self.is_fenced = True
            self.service.start_unload(self, f"{type(bug).__name__}: {bug}")

    async def terminate(self) -> Position:
        """Take no more messages, for ever; the position of the last one. Raises StoreError."""
        last = await self.ledger.terminate()
        logs.info("topic.terminated", topic=self.name, position=last)
        self.disconnect_producers()
        for subscription in self.subscriptions.values():
            subscription.tell_if_at_end()
        return last

    async def truncate(self) -> None:
        """Drop what is stored, but for what is in the ledger that is written to: that is only skipped. Raises StoreError."""
        await self.ledger.truncate()
        for subscription in self.subscriptions.values():
            subscription.moved_up()

    async def last_message(self) -> tuple[Position, int]:
        """Where the last entry is, and in a batch the index of its last message, else -1; (-1, -1) and -1 without any entry.

        Raises StoreError.
        """
        ledger = self.ledger
        run = None
        # It may be trimmed meanwhile: then the last one is another, or there is none.
        while run is None and ledger.ledgers.has_entry(last := ledger.last_confirmed):
            run = await ledger.read_if_there(last, 1, 1)
        if run is None:
            return EARLIEST, -1
        return last, run.message_counts[0] - 1 if is_batch(run.payloads[0]) else -1

    async def bytes_behind(self, position: Position) -> int:
        """Payload bytes of the entries behind `position`, which need not exist. Raises StoreError."""
        ledgers = self.ledger.ledgers
        behind = await count_backlog(ledgers, self.service.ledgers.store, CursorState(ledgers, position))
        return behind.size_bytes

    def fence(self) -> None:
        """Take nobody and nothing more, and tell the clients to look the topic up again."""
        self.is_fenced = True
        self.disconnect_producers()
        publish_throttle.release(self)
        for subscription in list(self.subscriptions.values()):
            subscription.is_closed = True
            subscription.close_consumers()

    async def close(self) -> None:
        """Fence, write what is left, release. Raises StoreError when that fails."""
        self.fence()
        await self.tasks.close()
        try:
            for subscription in self.subscriptions.values():
                await subscription.delayed.close()
        finally:
            await self.ledger.close()

    async def delete(self) -> None:
        """Fence and drop everything that is stored."""
        self.fence()
        await self.tasks.close()
        for subscription in self.subscriptions.values():
            subscription.delayed.drop()
        # First: a topic of that name that is made later must not inherit what is set for this one.
        await self.service.resources.forget_topic(self.name)
        await self.service.ledgers.delete(self.ledger)
