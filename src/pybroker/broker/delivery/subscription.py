"""One subscription of a persistent topic: moves entries from its cursor through its dispatcher to its consumers.

`pump` does this without awaiting, within a time budget per event loop iteration. If the entries are only in the store,
a task reads them and then schedules `pump`. At most one read is in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pybroker.broker.context.pumps import Pumped
from pybroker.broker.delivery import acknowledgement
from pybroker.broker.delivery.acknowledgement import Acknowledged
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.consumer_admission import require_room_on_subscription
from pybroker.broker.delivery.delayed_delivery import DelayedDelivery
from pybroker.broker.delivery.dispatch_stall import DispatchStall
from pybroker.broker.delivery.dispatch_throttle import throttle_of
from pybroker.broker.delivery.dispatchers import new_dispatcher
from pybroker.broker.delivery.filter_chain import FilterChain
from pybroker.broker.delivery.markers import Markers
from pybroker.broker.delivery.reads import failed_reads
from pybroker.broker.delivery.reads.compacted_reads import CompactedReads
from pybroker.broker.delivery.reads.entry_reads import AT_END, NO_MEMORY, STATE_TOO_LARGE, EntryReads
from pybroker.broker.delivery.reads.failed_reads import FailedReads
from pybroker.broker.delivery.stages import CHUNKS, KEY_HASHES, Stage
from pybroker.broker.delivery.subscription_base import SubscriptionBase
from pybroker.broker.delivery.subscription_transactions import SubscriptionTransactions
from pybroker.dispatch.blocked_reasons import BlockedReason, Stall
from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan, Redelivery
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.views import ChunkOrderView, IndividualView, InOrderView, KeyOrderView
from pybroker.errors import BrokerError, ConsumerBusy, DamagedEntries, StoreError
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model.position import Position
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.broker.delivery.entry_kinds import EntryKinds
    from pybroker.managed_ledger.managed_cursor import PersistDone
    from pybroker.memory.broker_memory import Memory
    from pybroker.model.events import Ack
    from pybroker.model.txn_id import TxnAction, TxnId


REPLICATED_PROPERTY = "pulsar.replicated.subscription"
"""Pulsar's cursor property for the replication flag. It is not reported among the application's properties."""


LOOK_AHEAD_STEP_BYTES = 1024
"""Smaller changes of the look-ahead are not reported to the memory budget."""


class Subscription(SubscriptionBase, Pumped):
    """Subscription of a persistent topic, with cursor, dispatcher and consumers."""

    def __init__(
        self,
        topic: TopicContext,
        name: str,
        cursor: ManagedCursor,
        kinds: EntryKinds,
        unused: Callable[[Subscription], None],
    ) -> None:
        """`kinds`: kinds of entries in the topic. `unused` is called when the last reader of a non-durable subscription
        has left.
        """
        super().__init__(topic, name)
        self.cursor = cursor
        self.kinds = kinds
        self._unused = unused
        self.dispatcher: Dispatcher | None = None
        self.last_active_ms = topic.runtime.clock.wall_ms()
        """Time of the last arrival or departure of a consumer; initially the time of the topic's load."""
        self._memory = topic.runtime.memory
        cursor.when_state_fits = self.wake
        self.delayed = DelayedDelivery(topic, name, cursor, self.wake)
        self._look_ahead = LookAheadShare(self._memory)
        self._redelivery_counts = RedeliveryCounts()
        self.reads = EntryReads(cursor, self.delayed)
        self._is_reading = False
        self.is_resetting = False
        self.failed_reads = FailedReads(topic, name)
        self._stall = DispatchStall(topic.runtime.clock.monotonic_ms())
        self._is_waking_soon = False
        self._draining_hashes_cleared_before = 0  # counted by earlier dispatchers
        self.throttle = throttle_of(self, cursor, None)
        self._markers = Markers(cursor.ledger.read_limit, self._pass_over)
        self.transactions = SubscriptionTransactions(
            topic, name, cursor, self.settle, lambda: self.dispatcher, self._apply, self.compose_stages
        )
        self.filters = self._filter_chain()
        self._stages: tuple[Stage, ...] = ()
        self._stages_of_earlier: tuple[Stage, ...] = ()  # of entries that were stored before the topic was loaded
        self.compose_stages()

    @property
    def type_name(self) -> str:
        return "None" if self.dispatcher is None else self.dispatcher.kind

    @property
    def is_durable(self) -> bool:
        return self.cursor.is_durable

    @property
    def backlog_entries(self) -> int:
        return self.cursor.backlog_entries

    def filters_changed(self) -> None:
        chain, before = self._filter_chain(), self.filters
        if (chain and chain.filters) != (before and before.filters):
            self.filters = chain
            self.compose_stages()
            self.wake()  # The new filters may accept entries that the previous filters deferred.

    def _filter_chain(self) -> FilterChain | None:
        filters = self.topic.entry_filters
        return FilterChain(self, filters, self.cursor, self._pass_over) if filters else None

    def compose_stages(self) -> None:
        """Choose the dispatch steps that entries must pass. Called when the first marker or the first chunk of a large
        message was published, at the first pending transaction ack, and after a change of the dispatcher or the
        filters.
        """
        kinds, dispatcher = self.kinds, self.dispatcher
        stages: list[Stage] = []
        if self.transactions.is_in_use:
            stages.append(self.transactions)
        if self.delayed.serves_several:
            stages.append(self.delayed)
        if self.filters is not None:
            stages.append(self.filters)
        if dispatcher is not None and dispatcher.needs_key_hashes:
            stages.append(KEY_HASHES)
        chunks = (CHUNKS,) if dispatcher is not None and dispatcher.keeps_chunks_together else ()
        self._stages_of_earlier = (self._markers, *stages, *chunks)
        self._stages = (
            *((self._markers,) if kinds.has_markers else ()),
            *stages,
            *(chunks if kinds.has_chunks else ()),
        )

    def rates_changed(self) -> None:
        self.throttle = throttle_of(self, self.cursor, self.throttle)
        self.wake()

    @property
    def is_replicated(self) -> bool:
        """Whether clients requested replicated subscription state. The flag is only stored and reported."""
        return REPLICATED_PROPERTY in self.cursor.properties

    @property
    def properties(self) -> dict[str, str]:
        return {key: value for key, value in self.cursor.properties.items() if key != REPLICATED_PROPERTY}

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        own = {REPLICATED_PROPERTY: "1"} if self.is_replicated else {}
        await self.cursor.set_properties({**properties, **own})

    async def set_replicated(self, is_replicated: bool) -> None:
        """Set the flag of replicated subscription state. Durable on return. Raises StoreError."""
        if self.is_durable and is_replicated != self.is_replicated:
            own = {REPLICATED_PROPERTY: "1"} if is_replicated else {}
            await self.cursor.set_properties({**self.properties, **own})

    @property
    def unacked_messages(self) -> int:
        """Number of unacknowledged messages; 0 for subscription types that do not track messages."""
        return 0 if self.dispatcher is None else self.dispatcher.unacked_messages

    @property
    def replay_entry_count(self) -> int:
        """Number of entries to redeliver, including entries that were read but could not be sent."""
        return 0 if self.dispatcher is None else self.dispatcher.replay_entry_count

    @property
    def in_order(self) -> InOrderView | None:
        return None if self.dispatcher is None else self.dispatcher.in_order

    @property
    def individual(self) -> IndividualView | None:
        return None if self.dispatcher is None else self.dispatcher.individual

    @property
    def chunk_order(self) -> ChunkOrderView | None:
        return None if self.dispatcher is None else self.dispatcher.chunk_order

    @property
    def key_order(self) -> KeyOrderView | None:
        return None if self.dispatcher is None else self.dispatcher.key_order

    @property
    def draining_hashes_cleared_total(self) -> int:
        cleared = 0 if (key_order := self.key_order) is None else key_order.draining.cleared_total
        return self._draining_hashes_cleared_before + cleared

    @property
    def is_reading(self) -> bool:
        return self._is_reading

    @property
    def is_blocked(self) -> bool:
        """Whether an unacknowledged message limit, of the subscription or of the broker, stops dispatch."""
        limit = self.broker_context.broker_unacked_limit
        if limit is not None and limit.is_stopped(self):
            return True
        return self.dispatcher is not None and self.dispatcher.blocked

    # --- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer, kind: str) -> None:
        assert not self.is_resetting, "the subscription's lock separates cursor moves from new consumers"
        require_room_on_subscription(self)
        dispatcher = self.dispatcher
        if dispatcher is None or not self.consumers:
            # Type and options depend on the connected consumers.
            max_unacked = self.topic.policies.max_unacked_per_subscription
            dispatcher = new_dispatcher(
                self.runtime.config, kind, self._redelivery_counts, self.topic.name, max(0, max_unacked)
            )
            self.reads.read_compacted(None)
            self.cursor.rewind()
        elif dispatcher.kind != kind:
            raise ConsumerBusy(
                f"Subscription is of different type. Active subscription type of '{dispatcher.kind}' is different than the "
                f"connecting consumer's type '{kind}'."
            )
        dispatcher.now_ms = self.runtime.clock.wall_ms()
        if dispatcher.follows_mark_delete:
            dispatcher.mark_delete_moved(self.cursor.first_unacked_position)
            consumer.state.read_position_when_joining = self.cursor.ledger.ledgers.normalize(self.cursor.read_position)
        try:
            redelivery = dispatcher.add_consumer(consumer.state)
        except BrokerError:
            self.drop_if_unused()  # It may have been created for this consumer.
            raise
        if dispatcher is not self.dispatcher:
            self._draining_hashes_cleared_before = self.draining_hashes_cleared_total
            self.dispatcher = dispatcher
            self.delayed.serves_several = dispatcher.individual is not None
            self.compose_stages()
        self.consumers.append(consumer)
        if self._stall.reason is BlockedReason.NO_CONSUMER:
            self._stopped_at(BlockedReason.CONSUMERS)  # It has no permits yet.
        self.cursor.reader = self.consumers[0].peer
        self.last_active_ms = dispatcher.now_ms
        self._apply(redelivery)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self.cursor.reader = self.consumers[0].peer if self.consumers else None
        self.last_active_ms = self.runtime.clock.wall_ms()
        self.topic.in_use()
        assert self.dispatcher is not None
        self._apply(self.dispatcher.remove_consumer(consumer.state))
        self._look_ahead.update(self.dispatcher)
        if not self.consumers:
            self._stopped_at(BlockedReason.NO_CONSUMER)
        self.drop_if_unused()

    def release_memory(self) -> None:
        self._look_ahead.release()
        self.delayed.release()

    def drop_if_unused(self) -> None:
        """Remove a non-durable subscription that has no consumers, because no client can reconnect to it."""
        if not self.is_durable and not self.consumers and not self.is_resetting:
            self._unused(self)

    def flow(self, consumer: Consumer, permits: int) -> None:
        self._count_flow(consumer)
        assert self.dispatcher is not None
        if self.dispatcher.flow(consumer.state, permits):
            self.wake()
        self.tell_if_at_end()

    def acknowledge(self, consumer: Consumer, ack: Ack) -> None:
        dispatcher = self.dispatcher
        assert dispatcher is not None
        refusal = acknowledgement.refusal(ack, dispatcher)
        if refusal is not None:
            acknowledgement.refuse(consumer, ack, refusal)
            return
        if ack.validation_error >= 0:
            acknowledgement.note_unreadable(consumer, ack)
        what = acknowledgement.decided(ack, self.cursor, self.runtime.config)
        if ack.txn is not None:
            self.transactions.acknowledge(consumer, ack, ack.txn, what)
            return
        unacked_before = dispatcher.unacked_messages
        entries = self.settle(what, acknowledgement.receipt(consumer, ack))
        messages = unacked_before - dispatcher.unacked_messages
        acknowledgement.count(consumer, messages, entries, self.runtime.clock.wall_ms())

    async def end_transaction(self, txn: TxnId, action: TxnAction, low_water_mark: int) -> None:
        self.topic.require_open()
        if not self.is_closed:  # A deleted subscription needs none of these messages.
            await self.transactions.end(txn, action, low_water_mark)

    def settle(self, what: Acknowledged, done: PersistDone | None = None) -> int:
        """Apply an acknowledgement of a client, transaction or administrator. Return the number of entries that became
        completely acknowledged. `done` is called when the acknowledgement is durable or has failed.
        """
        cursor, dispatcher = self.cursor, self.dispatcher
        before = cursor.mark_delete_position
        entries, can_move = acknowledgement.apply(what, cursor, dispatcher, self.delayed, self.reads.compacted)
        if cursor.mark_delete_position != before:
            self.counters.last_mark_delete_advanced_ms = self.runtime.clock.wall_ms()
            if dispatcher is not None and dispatcher.follows_mark_delete:
                can_move = dispatcher.mark_delete_moved(cursor.first_unacked_position) or can_move
        cursor.changed(done)
        if can_move:
            self.wake()
        if dispatcher is not None and dispatcher.has_unblocked:
            self.wake_soon()
        self.unacked_changed()
        self.tell_if_at_end()
        return entries

    def _pass_over(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        self.settle(Acknowledged(None, ((ledger_id, entry_ids),)))

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int) -> None:
        assert self.dispatcher is not None
        if self.dispatcher.active_consumer is not None:
            consumer.epoch = max(consumer.epoch, epoch)  # The client drops messages with an older epoch.
        before = consumer.state.redelivered_messages
        self._apply(self.dispatcher.redeliver(consumer.state, positions))
        redelivered = consumer.state.redelivered_messages - before
        consumer.counters.redelivered_messages += redelivered
        self.counters.redelivered_messages += redelivered

    def _apply(self, redelivery: Redelivery) -> None:
        dispatcher = self.dispatcher
        assert dispatcher is not None
        if redelivery.rewind:
            self._choose_reads(dispatcher)
            self.reads.rewind()
        if redelivery.start_later:
            delay_s = self.runtime.config.active_consumer_failover_delay_time_millis / 1000
            self.runtime.call_later(delay_s, lambda: self._start(dispatcher))
        for state, is_active in redelivery.notices:
            consumer = state.peer
            assert isinstance(consumer, Consumer)
            consumer.peer.active_consumer_changed(consumer.consumer_id, is_active)
        if (
            redelivery.wake or self._stall.reason is BlockedReason.AT_END
        ):  # The subscription is no longer at the end, whichever consumer can receive the entries.
            self.wake()
        if dispatcher.has_unblocked:
            self.wake_soon()
        self.unacked_changed()

    def _choose_reads(self, dispatcher: Dispatcher) -> None:
        active = dispatcher.active_consumer and dispatcher.active_consumer.peer
        if isinstance(active, Consumer) and active.reads_compacted:
            if self.reads.compacted is None:
                self.reads.read_compacted(
                    CompactedReads(self.cursor, self.broker_context.ledgers.store, self._pass_over)
                )
        else:
            self.reads.read_compacted(None)

    def limit_unacked(self) -> None:
        policies = self.topic.policies
        if self.dispatcher is not None and self.dispatcher.limit_unacked(
            max(0, policies.max_unacked_per_consumer), max(0, policies.max_unacked_per_subscription)
        ):
            self.wake()

    def unacked_changed(self) -> None:
        """Update the broker-wide count of unacknowledged messages, which limits delivery (`maxUnackedMessagesPerBroker`)."""
        limit = self.broker_context.broker_unacked_limit
        if limit is not None:
            for subscription in limit.report(self, self.unacked_messages):
                subscription.wake()

    def _start(self, dispatcher: Dispatcher) -> None:
        if dispatcher is self.dispatcher:
            self._apply(dispatcher.start())

    # --- the pump ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if not self.is_queued and not self._is_reading and self.consumers:
            self.broker_context.pumps.add(self)

    def wake_soon(self) -> None:
        """Resume dispatch after a short delay, so that entries which become deliverable one by one are sent together."""
        if not self._is_waking_soon:
            self._is_waking_soon = True
            self.runtime.call_later(self.runtime.config.key_shared_unblocking_interval_ms / 1000, self._wake_now)

    def _wake_now(self) -> None:
        self._is_waking_soon = False
        self.wake()

    def failed(self, bug: Exception) -> None:
        logs.error("dispatch.failed", topic=self.topic.name, subscription=self.name, exc_info=bug)
        self.topic.fail(bug)

    def pump(self, now_ms: float, deadline_ms: float) -> bool:
        """Dispatch until no entry can be sent or the deadline is reached. Return True if the deadline was reached.
        Times are of the monotonic clock.
        """
        blocked_reason = self._dispatch(deadline_ms)
        if self._look_ahead.told_bytes or (self.dispatcher is not None and self.dispatcher.looks_ahead):
            self._look_ahead.update(self.dispatcher)
        if blocked_reason is None:
            return True
        self._stall.stopped_at(blocked_reason, now_ms)
        return False

    def _stopped_at(self, blocked_reason: BlockedReason) -> None:
        self._stall.stopped_at(blocked_reason, self.runtime.clock.monotonic_ms())

    def _dispatch(self, deadline_ms: float) -> BlockedReason | None:
        dispatcher = self.dispatcher
        if not self.delayed.is_restored and not self.delayed.restore(deadline_ms):
            return None
        is_at_end = False
        while True:
            blocked_reason = self._blocked_reason()
            if blocked_reason is not None:
                return blocked_reason
            assert dispatcher is not None
            plan = dispatcher.next_read()
            if plan is None:
                return BlockedReason.CONSUMERS
            if is_at_end and plan.replay is None:
                return BlockedReason.AT_END
            blocked_reason = self._carry_out(plan, dispatcher)
            if blocked_reason is not None:
                return blocked_reason
            is_at_end = plan.replay is None and not dispatcher.looks_ahead and self.reads.is_at_end
            if not is_at_end and self.runtime.clock.monotonic_ms() >= deadline_ms:
                return None

    def _carry_out(self, plan: ReadPlan, dispatcher: Dispatcher) -> BlockedReason | None:
        if self.throttle is not None:
            self.throttle.cut(plan, dispatcher)
        if plan.replay is None and plan.scan is None:
            plan.max_bytes = min(plan.max_bytes, self._memory.delivery_bytes)
        runs = self.reads.cached(plan)
        if runs is None:
            return self._start_read(plan)
        if runs is AT_END or runs is NO_MEMORY or runs is STATE_TOO_LARGE:
            scan = dispatcher.next_scan()
            if scan is not None:
                return self._carry_out(scan, dispatcher)
            if runs is NO_MEMORY:
                return BlockedReason.MEMORY
            if runs is STATE_TOO_LARGE:
                return BlockedReason.CURSOR_STATE
            return BlockedReason.TRANSACTION if self.reads.waits_for_transaction else BlockedReason.AT_END
        for run in runs:
            self._assign_run(plan, run)
        if plan.scan is not None and not runs:
            dispatcher.scanned(plan, plan.scan, is_at_end=True)
        return None

    def _blocked_reason(self) -> BlockedReason | None:
        if self._is_reading:
            return BlockedReason.READING
        if self.is_closed:
            return BlockedReason.CLOSED
        if not self.consumers:
            return BlockedReason.NO_CONSUMER
        limit = self.broker_context.broker_unacked_limit
        if limit is not None and limit.is_stopped(self):
            return BlockedReason.UNACKED_BROKER
        if self.filters is not None and self.filters.is_waiting:
            return BlockedReason.FILTER
        if self.throttle is not None and not self.throttle.allows_read():
            return BlockedReason.RATE
        return None

    @property
    def stall(self) -> Stall | None:
        """Blocked reason and its start time; None while entries are dispatched."""
        if self.is_queued:
            return None
        blocked_reason = self._stall.reason
        if blocked_reason is BlockedReason.CONSUMERS and self.dispatcher is not None:
            blocked_reason = (
                self.dispatcher.blocked_reason()
            )  # Computed only on request, because there may be many consumers.
        memory_since_ms = self._waits_for_memory_since_ms(blocked_reason)
        if memory_since_ms is not None:
            return Stall(BlockedReason.MEMORY, memory_since_ms)
        return Stall(blocked_reason, self._stall.since_ms)

    def _waits_for_memory_since_ms(self, blocked_reason: BlockedReason) -> float | None:
        if blocked_reason is BlockedReason.READING:
            # Reads for one connection share a queue position; reads that no connection requested share one per topic.
            reads = self._memory.reads
            since = [reads.waits_since_ms(group) for group in (self.cursor.reader, self.cursor.ledger)]
        elif blocked_reason is BlockedReason.CONNECTION_FULL:
            since = [consumer.peer.memory_waits.outboxes_since_ms for consumer in self.consumers]
        else:
            return None
        return min((each for each in since if each is not None), default=None)

    def _start_read(self, plan: ReadPlan) -> BlockedReason:
        self._is_reading = True
        self.topic.tasks.start(self._read(plan), f"read {self.name}")
        return BlockedReason.READ_FAILED if self.failed_reads.count else BlockedReason.READING

    async def _read(self, plan: ReadPlan) -> None:
        dispatcher = self.dispatcher
        assert dispatcher is not None
        try:
            async for run in self.reads.stored(plan):
                if dispatcher is not self.dispatcher or dispatcher.is_void(plan):
                    break
                if run is None:
                    dispatcher.give_back(plan)
                else:
                    self._assign_run(plan, run)
            if dispatcher is not self.dispatcher or dispatcher.is_void(plan):
                self.reads.rewind()  # The dispatcher was rewound during the read, which has advanced the cursor.
            self.failed_reads.succeeded()
        except StoreError as error:
            dispatcher.give_back(plan)
            damage = failed_reads.lasting_damage(self.cursor, error)
            if damage is not None and self._go_behind(damage):
                self.failed_reads.succeeded()
            else:
                self._read_failed(error, is_lasting=damage is not None)
        finally:
            self._is_reading = False
        if not self.failed_reads.count:
            self.wake()

    def _go_behind(self, damage: DamagedEntries) -> bool:
        def skip(ledger_id: int, entry_ids: range) -> None:
            skipped = self.settle(Acknowledged(None, ((ledger_id, entry_ids),)))
            self.runtime.stats.skipped_damaged_entries += skipped
            failed_reads.log_skipped(self, ledger_id, entry_ids, skipped, damage)

        may_skip = self.runtime.config.auto_skip_non_recoverable_data
        return failed_reads.go_behind(self.cursor, damage, skip if may_skip else None)

    def _read_failed(self, error: StoreError, *, is_lasting: bool) -> None:
        self._stopped_at(BlockedReason.READ_FAILED)
        self.runtime.call_later(self.failed_reads.failed(error, is_lasting=is_lasting), self.wake)

    def _assign_run(self, plan: ReadPlan, run: EntryRun) -> None:
        entries = self.reads.undelivered(run)
        dispatcher = self.dispatcher
        assert dispatcher is not None
        is_earlier = (run.ledger_id, run.first_entry_id) <= self.kinds.end_when_loaded
        for stage in self._stages_of_earlier if is_earlier else self._stages:
            if not entries.entry_ids:
                break
            entries = stage.passed(plan, entries, dispatcher)
        if entries.entry_ids:
            self._assign(plan, entries)
        if plan.scan is not None:
            end = Position(run.ledger_id, run.first_entry_id + len(run.payloads))
            next_position = self.reads.next_to_scan(end)
            dispatcher.scanned(plan, next_position or end, is_at_end=next_position is None)

    def _assign(self, plan: ReadPlan, entries: AssignInput) -> None:
        dispatcher = self.dispatcher
        assert dispatcher is not None
        now_ms = dispatcher.now_ms = self.runtime.clock.wall_ms()
        deliveries = dispatcher.assign(plan, entries)
        if not deliveries:
            return
        self._stall.has_moved = True
        if self.throttle is not None:
            self.throttle.sent(deliveries)
        has_chunks = self.topic.counters.chunks_in > 0
        for delivery in deliveries:
            consumer = delivery.consumer.peer
            assert isinstance(consumer, Consumer)
            consumer.deliver(delivery, now_ms, has_chunks=has_chunks)
        if self.broker_context.broker_unacked_limit is not None:
            self.unacked_changed()

    # --- the end of a topic -----------------------------------------------------------------------------------------

    def moved_up(self) -> None:
        """Update dispatcher and delayed entries after the mark-delete position has advanced without an acknowledgement,
        such as by a skip.
        """
        self.counters.last_mark_delete_advanced_ms = self.runtime.clock.wall_ms()
        self.delayed.forget_up_to(self.cursor.mark_delete_position)
        dispatcher = self.dispatcher
        if dispatcher is not None:
            can_move = dispatcher.acked_up_to(self.cursor.mark_delete_position)
            if dispatcher.follows_mark_delete:
                can_move = dispatcher.mark_delete_moved(self.cursor.first_unacked_position) or can_move
            if can_move:
                self.wake()
            if dispatcher.has_unblocked:
                self.wake_soon()
            self.unacked_changed()
        self.tell_if_at_end()

    def tell_if_at_end(self) -> None:
        if self.cursor.ledger.is_terminated and not self.cursor.backlog_entries:
            for consumer in self.consumers:
                consumer.reached_end()


class LookAheadShare:
    """Memory budget of one subscription for its look-ahead buffer: entries that wait for one specific consumer, because
    of their key or their chunks.

    The limit is the configured one, or less if the broker's memory budget is exhausted.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.told_bytes = 0
        """The size that was last reported to the memory budget."""

    def update(self, dispatcher: Dispatcher | None) -> None:
        if dispatcher is not None:
            size_bytes = dispatcher.look_ahead_size_bytes
            if size_bytes or self.told_bytes:
                self._tell(size_bytes)
                dispatcher.limit_look_ahead(self._memory.look_aheads.allowed_bytes())
        elif self.told_bytes:
            self._tell(0)

    def release(self) -> None:
        self._tell(0)

    def _tell(self, size_bytes: int) -> None:
        if size_bytes == self.told_bytes or (size_bytes and abs(size_bytes - self.told_bytes) < LOOK_AHEAD_STEP_BYTES):
            return
        self.told_bytes = size_bytes
        self._memory.follow(self._memory.look_aheads.report(self, size_bytes))
