"""One loaded persistent topic: its managed ledger, its subscriptions, and the messages of its producers.

An entry is dispatched only after it is durable. Receipts are sent in the order of the appends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

from pybroker.broker.context.added_entry_metadata import EntryMetadata
from pybroker.broker.delivery import dispatch_throttle
from pybroker.broker.delivery.entry_kinds import EntryKinds
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.publishing.deduplication import Accepted
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.publishing.producer_registry import TOPIC_EPOCH_PROPERTY, stored_epoch
from pybroker.broker.publishing.publish_checks import rows
from pybroker.broker.publishing.topic_deduplication import DEDUPLICATION_CURSOR, TopicDeduplication
from pybroker.broker.topic import backlog_rules
from pybroker.broker.topic.backlog_rules import UNKNOWN_AGE_S
from pybroker.broker.topic.internal_producer import InternalProducer
from pybroker.broker.topic.subscription_registry import BEING_MADE, SubscriptionRegistry
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.broker.topic.topic_compaction import TopicCompaction
from pybroker.broker.transactions.topic_transactions import TopicTransactions
from pybroker.errors import (
    BrokerError,
    DamagedEntries,
    LedgerFenced,
    LedgerTerminated,
    NoSuchLedger,
    ProducerBlockedQuotaExceededException,
    StorageFull,
    StoreError,
    SubscriptionNotFound,
    TopicTerminatedError,
)
from pybroker.ledgers.ledger_store import AppendRun
from pybroker.managed_ledger.cursor_backlog import count_backlog
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR
from pybroker.managed_ledger.ledger_listener import ManagedLedgerListener
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.model.counters import LedgerCounters
from pybroker.model.events import SendRun
from pybroker.model.names import TopicName
from pybroker.model.policies import TopicPolicies
from pybroker.model.position import EARLIEST, Position
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.wire.entry_metadata import is_batch, is_marker

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.limits.publish_rate_limit import WaitingPublishers
    from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
    from pybroker.model.txn_id import TxnAction, TxnId


OWN_CURSORS = (DEDUPLICATION_CURSOR, TRANSACTIONS_CURSOR)
"""Cursors that do not belong to subscriptions."""


class Publish:
    """Messages of one producer that are being stored together, and that wait for their receipts."""

    __slots__ = ("accepted", "producer", "run", "started_ms")

    def __init__(self, producer: Producer, run: SendRun, started_ms: float, accepted: Accepted | None) -> None:
        """`accepted`: record of these messages in the deduplication state; None without deduplication. `started_ms`:
        monotonic start time.
        """
        self.producer = producer
        self.run = run
        self.started_ms = started_ms
        self.accepted = accepted


class Topic(TopicBase, ManagedLedgerListener):
    """Persistent topic, from load to close."""

    subscriptions: dict[str, Subscription]

    def __init__(
        self,
        broker_context: BrokerContext,
        name: TopicName,
        ledger: ManagedLedger,
        own_policies: TopicPolicies,
        start_unload: Callable[[TopicBase, str], None],
        buffer: TransactionBuffer | None = None,
    ) -> None:
        """`buffer`: transaction buffer that was recovered on load; None if the topic never had transactions.
        `start_unload` closes the topic in the background and logs the given reason.
        """
        tasks, epoch = TaskOwner(f"topic {name}"), stored_epoch(ledger.properties)
        super().__init__(broker_context, name, own_policies, tasks, epoch, start_unload)
        self.ledger = ledger
        self.backlog_age_s = UNKNOWN_AGE_S
        """Age of the backlog in seconds at the last check of the backlog quotas."""
        self.backlog_age_subscription = ""
        """Subscription with this backlog; empty if the age is unknown."""
        self._internal_producer: InternalProducer | None = None
        self._refused_producers: set[str] = set()  # producers whose messages were refused because the disk was full
        self.subscriptions = {}
        self.offload_error = ""
        self.entry_kinds = EntryKinds(ledger.ledgers.last_position, self._entry_kinds_changed)
        self.shared.has_entry_metadata = ledger.document.last_index is not None
        added = broker_context.added_metadata
        self._entry_metadata = None if added is None else EntryMetadata(added, ledger)
        self.registry = SubscriptionRegistry(self.shared, ledger, self.subscriptions, self.entry_kinds)
        self.compaction = TopicCompaction(self.shared, ledger, self.registry)
        ledger.listen(self)
        for cursor in ledger.cursors.values():
            if cursor.name not in OWN_CURSORS:
                self.registry.restore(cursor)
        self._holds: dict[str, WaitingPublishers] = {}  # by the part that makes publishers wait
        self.deduplication = TopicDeduplication(
            self.shared, ledger, self.producers, self.append, partial(self.hold_publishers, "deduplication")
        )
        self.transactions = TopicTransactions(self.shared, ledger, buffer, self)
        ledger.held_from = self._held_from
        ledger.retention = backlog_rules.retention_limits(self.policies.retention)
        self._renew_limits()
        self.deduplication.renew()

    def _entry_kinds_changed(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.compose_stages()

    def _held_from(self) -> int | None:
        return self.broker_context.read_leases.held_from(str(self.name), self.runtime.clock.monotonic_ms())

    def policies_changed(self) -> None:
        """Apply changed policies to retention, deduplication, delayed delivery, and the limits of the topic and its
        subscriptions.
        """
        limits = backlog_rules.retention_limits(self.policies.retention)
        if limits != self.ledger.retention:
            self.ledger.retention = limits
            self.ledger.trim_soon()
        super().policies_changed()
        self.deduplication.renew()
        for subscription in self.subscriptions.values():
            subscription.delayed.policies_changed()
            subscription.limit_unacked()

    def _renew_limits(self) -> None:
        dispatch_throttle.renew_topic_limit(self.shared)
        for subscription in self.subscriptions.values():
            subscription.rates_changed()
        super()._renew_limits()

    @property
    def ledger_counters(self) -> LedgerCounters:
        return self.ledger.counters

    # --- producers and publishing ------------------------------------------------------------------------------------

    def require_admissible(self, producer: Producer) -> None:
        """Check that the topic accepts `producer`. Raises TopicTerminatedError, ProducerBlockedQuotaExceededException
        if the disk is full, and the errors of the base class.
        """
        super().require_admissible(producer)
        if self.ledger.is_terminated:
            raise self._terminated()
        self._require_space(producer)

    def _terminated(self) -> TopicTerminatedError:
        return TopicTerminatedError(f"Topic {self.name} was already terminated")

    async def store_epoch(self, epoch: int) -> None:
        await self.ledger.document.change_properties({TOPIC_EPOCH_PROPERTY: str(epoch)})

    def internal_producer(self) -> InternalProducer:
        if self._internal_producer is None:
            self._internal_producer = InternalProducer(self)
        return self._internal_producer

    def _require_space(self, producer: Producer) -> None:
        """Reject a producer while the disk is full. The client then fails all its unsent messages immediately.

        A producer is rejected only once, because each rejection doubles the client's reconnect backoff.
        """
        refusal = self.broker_context.ledgers.store.refusal()
        if refusal is None:
            self._refused_producers.clear()
        elif producer.epoch == 0 or producer.name in self._refused_producers:
            self._refused_producers.discard(producer.name)
            raise ProducerBlockedQuotaExceededException(refusal)

    def _accept(self, producer: Producer, run: SendRun) -> None:
        if run.txn is not None:
            if self.transactions.buffer is None:
                self.transactions.wait(producer, run)
                return
            run, refused = self.transactions.admit(producer, run)
        elif run.has_markers or self.transactions.buffer is not None:
            run, refused = self.transactions.admit_plain(run)
        else:
            refused = []
        for part, refusal in refused:
            self._refuse(producer, part, refusal)
        if not run.payloads:
            return
        known = self.deduplication.known
        if known is None:
            self.append(producer, run, None)
        else:
            self.deduplication.publish(known, producer, run)

    def append(self, producer: Producer, run: SendRun, accepted: Accepted | None) -> bool:
        """Pass messages of a producer to the ledger. If the ledger refuses them, send the error to the producer and
        return False. `accepted`: the deduplication record of the messages, or None.
        """
        now_ms = self.runtime.clock.monotonic_ms()
        publish = Publish(producer, run, now_ms, accepted)
        producer.pending += len(run.payloads)
        if run.has_markers or run.txn is not None:
            self.entry_kinds.markers_published()
        if run.txn is not None:
            self.transactions.offered(run)
        try:
            if self._entry_metadata is None:
                # The broker may have added the transaction id to the metadata of the messages.
                size_bytes = run.size_bytes if run.txn is None else sum(map(len, run.payloads))
                self.ledger.append(run.payloads, run.message_counts, size_bytes, publish, now_ms)
            else:
                self._append_with_metadata(self._entry_metadata, run, publish)
        except StoreError as error:
            producer.completed(len(run.payloads))
            self.transactions.failed(run)
            self._refuse(producer, run, self._publish_failure(error, producer))
            return False
        return True

    def _append_with_metadata(self, metadata: EntryMetadata, run: SendRun, publish: Publish) -> None:
        payloads = metadata.put_in_front(run.payloads, run.message_counts, self.runtime.clock.wall_ms())
        try:
            self.ledger.append(payloads, run.message_counts, sum(map(len, payloads)), publish)
        except StoreError:
            metadata.take_back(sum(run.message_counts))
            raise

    def entries_added(self, runs: list[AppendRun]) -> None:
        clock = self.runtime.clock
        now_ms = clock.monotonic_ms()
        counters = self.counters
        for appended in runs:
            publish = appended.context
            assert isinstance(publish, Publish)
            producer = publish.producer
            run = publish.run
            entries = len(run.payloads)
            messages = appended.message_count
            if self._entry_metadata is not None:
                self._entry_metadata.stored(messages)
            if (
                run.txn is None or not run.has_markers
            ):  # The marker at the end of a transaction is not a published message.
                counters.messages_in += messages
                counters.entries_in += entries
                counters.bytes_in += run.size_bytes
                counters.entry_size_bytes.add_sizes(run.payloads, run.size_bytes)
                latency_ms = now_ms - publish.started_ms
                counters.publish_latency_ms.add_to_both(self.runtime.stats.publish_latency_ms, latency_ms, entries)
                producer.counters.messages_in += messages
                producer.counters.bytes_in += run.size_bytes
                if run.chunk_count:
                    self.entry_kinds.chunks_published()
                    counters.chunks_in += run.chunk_count
                    producer.counters.chunks_in += run.chunk_count
            producer.completed(entries)
            if self.transactions.buffer is not None:
                self.transactions.stored(producer, run, Position(appended.ledger_id, appended.first_entry_id))
            producer.peer.send_receipts(run, appended.ledger_id, appended.first_entry_id)
            if publish.accepted is not None:
                self.deduplication.stored(producer, publish.accepted, entries)
        if self.deduplication.waiting:
            self.deduplication.landed()
        counters.last_publish_ms = clock.wall_ms()
        for subscription in self.subscriptions.values():  # `wake_subscriptions`, without its call
            subscription.wake()

    def wake_subscriptions(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.wake()

    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        for appended in runs:
            publish = appended.context
            assert isinstance(publish, Publish)
            producer = publish.producer
            if self._entry_metadata is not None:
                self._entry_metadata.take_back(appended.message_count)
            producer.completed(len(publish.run.payloads))
            self.transactions.failed(publish.run)
            self._refuse(producer, publish.run, self._publish_failure(error, producer))
            if publish.accepted is not None:
                self.deduplication.failed(producer, publish.accepted)
        self.deduplication.landed()

    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        assert isinstance(context, Publish)
        run = context.run
        head, tail = rows(run, range(entry_count)), rows(run, range(entry_count, len(run.payloads)))
        # Deduplication follows the last message of the run.
        return (
            Publish(context.producer, head, context.started_ms, None),
            Publish(context.producer, tail, context.started_ms, context.accepted),
        )

    def hold_publishers(self, part: str, queue: WaitingPublishers | None) -> None:
        """Make publishers wait in `queue`, because the component `part` of the topic, such as deduplication, blocks
        them. If `queue` is None, `part` no longer blocks them.
        """
        if queue is None:
            self._holds.pop(part, None)
        else:
            self._holds[part] = queue
        self.held_publishers = next(iter(self._holds.values()), None)
        self.renew_publish_throttle()

    async def settled(self, producer_name: str) -> None:
        await self.deduplication.settled(producer_name)

    def last_sequence_id(self, producer_name: str) -> int:
        return self.deduplication.last_sequence_id(producer_name)

    def _publish_failure(self, error: StoreError, producer: Producer) -> BrokerError:
        if isinstance(error, StorageFull):
            self._refused_producers.add(producer.name)
        if isinstance(error, LedgerTerminated):
            return self._terminated()
        return error.answer()

    # --- transactions ------------------------------------------------------------------------------------------------

    async def end_transaction(self, txn: TxnId, action: TxnAction, low_water_mark: int) -> None:
        self.require_open()
        await self.transactions.end(txn, action, low_water_mark)

    # --- subscriptions: operations on them are in the registry ---------------------------------------------------------

    @property
    def subscriptions_being_made(self) -> int:
        return self.registry.being_made

    def subscription_lock(self, subscription: str, purpose: str) -> AbstractAsyncContextManager[None]:
        return self.registry.lock(subscription, purpose)

    def attach(self, subscription: SubscriptionBase, consumer: Consumer, kind: str) -> None:
        """Attach `consumer` to `subscription`. Raises the errors of the base class, and SubscriptionNotFound if the
        subscription was deleted.
        """
        if self.subscriptions.get(subscription.name) is not subscription:
            self.require_open()
            raise SubscriptionNotFound(f"Subscription {subscription.name} was deleted during the request")
        super().attach(subscription, consumer, kind)

    async def delete_subscription(self, subscription: SubscriptionBase) -> None:
        assert isinstance(subscription, Subscription)
        await self.registry.delete(subscription)

    async def subscription(
        self, name: str, is_earliest: bool, may_create: bool, properties: Mapping[str, str]
    ) -> Subscription:
        async with self.subscription_lock(name, BEING_MADE):
            return await self.registry.durable(name, is_earliest, may_create, properties)

    async def create_subscription(
        self, name: str, first: Position, properties: Mapping[str, str]
    ) -> Subscription | None:
        return await self.registry.create_if_missing(name, first, properties)

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    async def terminate(self) -> Position:
        """Terminate the topic permanently, so that it accepts no more messages. Return the last position. Raises
        StoreError.
        """
        # Before any refusal: a Go client that receives TopicTerminatedError before its producer is closed drops the
        # producer, and every later message times out.
        last = await self.disconnect_silently(self._terminated(), self.ledger.terminate())
        logs.info("topic.terminated", topic=self.name, position=last)
        for subscription in self.subscriptions.values():
            subscription.tell_if_at_end()
        return last

    async def truncate(self) -> None:
        """Acknowledge all entries on all subscriptions, and delete all closed ledgers. Raises StoreError."""
        # A running compaction would restore the deleted entries in its view.
        async with self.compaction.dropped():
            # The deleted entries are needed to restore deduplication, so a snapshot replaces them.
            await self.deduplication.snapshot()
            await self.transactions.store()
            await self.ledger.truncate(kept_cursors=OWN_CURSORS)
        for subscription in self.subscriptions.values():
            subscription.moved_up()

    async def last_message(self) -> tuple[Position, int]:
        """Return the position of the last readable entry, and the index of its last message if the entry is a batch,
        else -1. Without a readable entry, return position (-1, -1) and index -1.

        Damaged entries are skipped, because a reader would wait forever for their messages. Raises StoreError.
        """
        ledger = self.ledger
        last = ledger.read_limit.last_visible(ledger.ledgers)
        while ledger.ledgers.has_entry(last):
            try:
                run = await ledger.read_if_there(last, 1, 1)
            except DamagedEntries as error:
                last = ledger.ledgers.previous_position(
                    Position(last.ledger_id, min(last.entry_id, error.first_entry_id))
                )
                last = ledger.read_limit.visible_up_to(last, ledger.ledgers)
                continue
            except NoSuchLedger:
                last = ledger.ledgers.previous_position(Position(last.ledger_id, 0))
                last = ledger.read_limit.visible_up_to(last, ledger.ledgers)
                continue
            if run is None:
                last = ledger.read_limit.last_visible(ledger.ledgers)  # The entry was trimmed.
            elif not is_marker(run.payloads[0]):
                return last, run.message_counts[0] - 1 if is_batch(run.payloads[0]) else -1
            else:
                # The entry is damaged.
                last = ledger.read_limit.visible_up_to(ledger.ledgers.previous_position(last), ledger.ledgers)
        return EARLIEST, -1

    async def bytes_behind(self, position: Position) -> int:
        """Return the size in bytes of all entries after `position`. No entry need exist at `position`. Raises
        StoreError.
        """
        ledgers = self.ledger.ledgers
        behind = await count_backlog(ledgers, self.broker_context.ledgers.store, CursorState(ledgers, position))
        return behind.size_bytes

    def fence(self) -> None:
        super().fence()
        self.deduplication.fenced()

    def fenced(self, error: LedgerFenced) -> None:
        """Close the topic, because another process has taken over its managed ledger. Appends in progress may still be
        stored; later messages are dropped without a response.
        """
        if not self.is_fenced:
            self.is_silent = True
            self.shared.start_unload(str(error))

    async def close(self) -> None:
        """Fence the topic, store pending state, and release the managed ledger. Raises StoreError."""
        if not self.is_fenced:
            self.shared.is_fenced = True
            await self.drained()
        self.fence()
        await self.tasks.close()
        await self.registry.ended()
        try:
            await self.deduplication.close()
            await self.transactions.close()
            for subscription in self.subscriptions.values():
                await subscription.delayed.close()
        finally:
            for subscription in self.subscriptions.values():
                subscription.release_memory()
            try:
                await self.ledger.close()
            finally:
                self.transactions.closed()

    async def delete(self) -> None:
        """Fence the topic and delete all stored data. After a StoreError, the topic is closed, and can be loaded again."""
        self.fence()
        await self.tasks.close()
        await self.registry.ended()
        for subscription in self.subscriptions.values():
            subscription.delayed.drop()
            subscription.release_memory()
        self.broker_context.refusals.forget(str(self.name))
        try:
            # First, so that a later topic of that name does not inherit these policies.
            await self.broker_context.resources.forget_topic(self.name)
            await self.broker_context.schemas.drop(self.name)
            await self.broker_context.ledgers.delete(self.ledger)
        finally:
            try:
                await self.ledger.close()
            finally:
                self.transactions.closed()
