"""One subscription: moves entries from its cursor through its dispatcher to its consumers, and applies what they acknowledge.

The pump never waits. What is in memory is read, assigned and sent within the time budget of the turn; for the rest one read runs
in the topic's tasks and wakes the pump when it is done.

Invariants: at most one read is under way; the subscription is on the broker's pump list at most once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.broker.consumer import Consumer
from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan, Redelivery
from pybroker.dispatch.replay import RedeliveryCounts
from pybroker.errors import (
    BrokerError,
    ConsumerBusy,
    DamagedEntries,
    NoSuchLedger,
    NotAllowedError,
    PersistenceError,
    ServiceNotReady,
    StoreError,
)
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model.ack_set import WORD_BITS
from pybroker.model.events import Ack, PartialAck
from pybroker.model.position import Position, from_wire
from pybroker.model.stats import DeliveryCounters
from pybroker.storage.ledger_store import EntryRun

if TYPE_CHECKING:
    from pybroker.broker.topic import Topic


class Subscription:
    """Owned by its topic, under its name."""

    def __init__(self, topic: Topic, name: str, cursor: ManagedCursor) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.consumers: list[Consumer] = []
        self.counters = DeliveryCounters()
        self.dispatcher: Dispatcher | None = None
        self.is_queued = False
        self.is_closed = False
        self._service = topic.service
        self._redelivery_counts = RedeliveryCounts()
        self._is_reading = False
        self._is_resetting = False
        self._read_failures = 0

    @property
    def type_name(self) -> str:
        """The type of the connected consumers; `None` when nobody has connected since the topic was loaded."""
        return "None" if self.dispatcher is None else self.dispatcher.kind

    @property
    def is_durable(self) -> bool:
        return self.cursor.is_durable

    @property
    def unacked_messages(self) -> int:
        """Delivered and not acknowledged; 0 for types that do not track them."""
        return 0 if self.dispatcher is None else self.dispatcher.unacked_messages

    @property
    def replay_entry_count(self) -> int:
        """Entries that wait to be sent again."""
        return 0 if self.dispatcher is None else self.dispatcher.replay_entry_count

    @property
    def is_reading(self) -> bool:
        """Whether entries are being read from the store for its consumers."""
        return self._is_reading

    @property
    def is_blocked(self) -> bool:
        """Whether dispatch is stopped by the subscription's limit of unacknowledged messages."""
        return self.dispatcher is not None and self.dispatcher.blocked

    # --- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer, kind: str) -> None:
        """Attach `consumer` as one of type `kind`. Raises ConsumerBusy, ServiceNotReady."""
        if self._is_resetting:
            raise ServiceNotReady(f"subscription {self.name} is being moved, try again")
        dispatcher = self.dispatcher
        if dispatcher is None or (not self.consumers and dispatcher.kind != kind):
            dispatcher = self.dispatcher = self._service.new_dispatcher(kind, self._redelivery_counts)
            self.cursor.rewind()
        elif dispatcher.kind != kind:
            raise ConsumerBusy(
                f"Subscription is of different type: it is {dispatcher.kind} while its consumers are connected"
            )
        limit = self._service.config.max_consumers_per_subscription
        if 0 < limit <= len(self.consumers):
            raise ConsumerBusy(f"Subscription reached its limit of {limit} consumers (maxConsumersPerSubscription)")
        redelivery = dispatcher.add_consumer(consumer.state)
        self.consumers.append(consumer)
        self._apply(redelivery)

    def remove_consumer(self, consumer: Consumer) -> None:
        """`consumer` is gone: what it did not acknowledge is delivered again."""
        self.consumers.remove(consumer)
        assert self.dispatcher is not None
        self._apply(self.dispatcher.remove_consumer(consumer.state))
        if not self.is_durable and not self.consumers and not self._is_resetting:
            self.topic.drop_non_durable(self)

    def close_consumers(self) -> None:
        """Tell all consumers to subscribe again."""
        for consumer in list(self.consumers):
            consumer.close_from_broker()

    async def is_blocked_by_the_dead(self) -> bool:
        """Whether a consumer of this subscription turned out to be dead when asked, and was removed."""
        dead = False
        for consumer in list(self.consumers):
            dead = not await consumer.peer.is_alive() or dead
        return dead

    def flow(self, consumer: Consumer, permits: int) -> None:
        """`consumer` has room for `permits` more messages."""
        now_ms = self._service.clock.wall_ms()
        consumer.counters.last_consumed_flow_ms = self.counters.last_consumed_flow_ms = now_ms
        assert self.dispatcher is not None
        if self.dispatcher.flow(consumer.state, permits):
            self.wake()
        self.tell_if_at_end()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int) -> None:
        """`consumer` asks for `positions` again, or for all that it has not acknowledged."""
        assert self.dispatcher is not None
        if epoch >= 0:
            if epoch <= consumer.epoch:
                return  # An older request of the same client, overtaken by a newer one.
            consumer.epoch = epoch
        before = consumer.state.redelivered_messages
        self._apply(self.dispatcher.redeliver(consumer.state, positions))
        redelivered = consumer.state.redelivered_messages - before
        consumer.counters.redelivered_messages += redelivered
        self.counters.redelivered_messages += redelivered

    def _apply(self, redelivery: Redelivery) -> None:
        if redelivery.rewind:
            self.cursor.rewind()
        if redelivery.wake:
            self.wake()

    # --- the pump ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to dispatch."""
        if not self.is_queued and not self._is_reading and self.consumers:
            self._service.pumps.add(self)

    def pump(self, deadline_ms: float) -> bool:
        """Dispatch until nothing can move or the time is up; True when there is more to do."""
        dispatcher = self.dispatcher
        clock = self._service.clock
        while not self._is_reading and not self.is_closed and dispatcher is not None and self.consumers:
            plan = dispatcher.next_read()
            if plan is None:
                return False
            if plan.replay is not None:
                if not self._replay_cached(plan):
                    self._start_read(plan)
                    return False
            else:
                if not self.cursor.has_more():
                    return False
                run = self.cursor.read_cached(plan.max_entries, plan.max_bytes)
                if run is None:
                    self._start_read(plan)
                    return False
                self._assign_run(plan, run)
            if clock.monotonic_ms() >= deadline_ms:
                return True
        return False

    def _start_read(self, plan: ReadPlan) -> None:
        self._is_reading = True
        self.topic.tasks.start(self._read(plan), f"read {self.name}")

    async def _read(self, plan: ReadPlan) -> None:
        """The part of the pump that needs the disk."""
        dispatcher = self.dispatcher
        assert dispatcher is not None
        try:
            if plan.replay is not None:
                await self._replay_from_store(plan)
            else:
                run = await self.cursor.read(plan.max_entries, plan.max_bytes)
                if dispatcher is not self.dispatcher or dispatcher.is_void(plan):
                    self.cursor.rewind()  # It went back while the read, which has advanced it, was under way.
                elif run is not None:
                    self._assign_run(plan, run)
            self._read_failures = 0
        except StoreError as error:
            dispatcher.give_back(plan)
            damage = self._damage(error)
            if damage is not None and self._pass_damage(damage):
                self._read_failures = 0
            else:
                self._read_failed(error, is_lasting=damage is not None)
        finally:
            self._is_reading = False
        if not self._read_failures:
            self.wake()

    def _read_failed(self, error: StoreError, *, is_lasting: bool) -> None:
        """Try again after a while, with consumers at it: what cannot be read is not passed over silently."""
        self._read_failures += 1
        if self._read_failures == 1:
            remedy = (
                "; autoSkipNonRecoverableData=true goes on behind it, so does skipping by hand" if is_lasting else ""
            )
            logs.error("read.failed", topic=self.topic.name, subscription=self.name, error=f"{error}{remedy}")
        self._service.call_later(self._service.read_retry_delay_s(self._read_failures), self.wake)

    def _damage(self, error: StoreError) -> DamagedEntries | None:
        """Which entries will never be read; None when the read may succeed later."""
        if isinstance(error, NoSuchLedger):
            position = self.cursor.ledger.ledgers.normalize(self.cursor.read_position)
            return self._whole_ledger(position.ledger_id, error)
        return error if isinstance(error, DamagedEntries) else None

    def _whole_ledger(self, ledger_id: int, error: NoSuchLedger) -> DamagedEntries:
        return DamagedEntries(ledger_id, 0, self.cursor.ledger.ledgers.entry_count_of(ledger_id) - 1, str(error))

    def _pass_damage(self, damage: DamagedEntries) -> bool:
        """Go on behind entries that cannot be read, if nobody waits for them or the configuration says so."""
        ledger_id, first = damage.ledger_id, damage.first_entry_id
        ledgers, cursor = self.cursor.ledger.ledgers, self.cursor
        end = min(damage.last_entry_id + 1, ledgers.entry_count_of(ledger_id))
        entry_ids = range(first, end)
        if not entry_ids:
            return False
        if cursor.state.undeleted_in(ledger_id, first, len(entry_ids)) != []:
            if not self._service.config.auto_skip_non_recoverable_data:
                return False
            self._skip_entries(ledger_id, entry_ids, damage)
        position = ledgers.normalize(cursor.read_position)
        if position.ledger_id == ledger_id and position.entry_id in entry_ids:
            cursor.read_position = Position(ledger_id, end)
        return True

    def _skip_entries(self, ledger_id: int, entry_ids: range, damage: DamagedEntries) -> None:
        assert self.dispatcher is not None
        skipped = self.cursor.state.acknowledge(ledger_id, entry_ids)
        self._service.stats.skipped_damaged_entries += skipped
        self.dispatcher.acked(ledger_id, entry_ids)
        self.cursor.changed(None)
        logs.warning(
            "entries.skipped",
            topic=self.topic.name,
            subscription=self.name,
            first=Position(ledger_id, entry_ids.start),
            last=Position(ledger_id, entry_ids.stop - 1),
            entries=skipped,
            reason=str(damage),
        )
        self.tell_if_at_end()

    def _assign_run(self, plan: ReadPlan, run: EntryRun) -> None:
        """Hand what was read from the cursor's position to the dispatcher, without what is acknowledged already."""
        state = self.cursor.state
        first = run.first_entry_id
        count = len(run.payloads)
        kept = state.undeleted_in(run.ledger_id, first, count)
        ack_sets = state.ack_sets_in(run.ledger_id, first, count)
        if kept is None:
            entries: AssignInput = AssignInput(
                run.ledger_id, range(first, first + count), run.payloads, run.message_counts, ack_sets
            )
        elif not kept:
            return
        else:
            indexes = [entry_id - first for entry_id in kept]
            entries = AssignInput(
                run.ledger_id,
                kept,
                [run.payloads[index] for index in indexes],
                [run.message_counts[index] for index in indexes],
                None if ack_sets is None else [ack_sets[index] for index in indexes],
            )
        self._assign(plan, entries)

    def _assign(self, plan: ReadPlan, entries: AssignInput) -> None:
        assert self.dispatcher is not None
        deliveries = self.dispatcher.assign(plan, entries)
        if not deliveries:
            return
        now_ms = self._service.clock.wall_ms()
        counters = self.counters
        for delivery in deliveries:
            consumer = delivery.consumer.peer
            assert isinstance(consumer, Consumer)
            size_bytes = sum(map(len, delivery.payloads))
            counters.entries_out += len(delivery.entry_ids)
            counters.messages_out += delivery.message_count
            counters.bytes_out += size_bytes
            consumer.deliver(delivery, delivery.message_count, size_bytes, now_ms)
        counters.last_consumed_ms = now_ms

    def _replay_cached(self, plan: ReadPlan) -> bool:
        """Send the plan's positions again if all are in memory; False when the store must be asked."""
        runs: list[EntryRun] = []
        for ledger_id, first, last in self._wanted(plan):
            run = self.topic.ledger.read_cached(Position(ledger_id, first), last - first + 1, plan.max_bytes)
            if run is None or len(run.payloads) <= last - first:
                return False
            runs.append(run)
        for run in runs:
            self._assign_run(plan, run)
        return True

    async def _replay_from_store(self, plan: ReadPlan) -> None:
        left_bytes = plan.max_bytes
        for ledger_id, entry_id, last in self._wanted(plan):
            first = entry_id
            while first <= last:
                if left_bytes <= 0:
                    assert self.dispatcher is not None
                    self.dispatcher.give_back(plan)
                    return
                try:
                    run = await self.topic.ledger.read(Position(ledger_id, first), last - first + 1, left_bytes)
                except NoSuchLedger as error:
                    raise self._whole_ledger(ledger_id, error) from error
                left_bytes -= sum(map(len, run.payloads))
                first += len(run.payloads)
                self._assign_run(plan, run)

    def _wanted(self, plan: ReadPlan) -> list[tuple[int, int, int]]:
        """The plan's positions that are still unacknowledged, as (ledger id, first, last) of consecutive entries."""
        spans: list[tuple[int, int, int]] = []
        state = self.cursor.state
        for ledger_id, entry_id in plan.replay or ():
            if state.is_deleted(ledger_id, entry_id):
                continue
            if spans and spans[-1][0] == ledger_id and spans[-1][2] == entry_id - 1:
                spans[-1] = (ledger_id, spans[-1][1], entry_id)
            else:
                spans.append((ledger_id, entry_id, entry_id))
        return spans

    # --- moving the cursor -------------------------------------------------------------------------------------------

    async def skip(self, entry_count: int) -> int:
        """Count the next `entry_count` entries as read; how many there were. Raises StoreError."""
        skipped = await self.cursor.skip(entry_count)
        self.moved_up()
        return skipped

    async def skip_all(self) -> None:
        """Count everything as read. Raises StoreError."""
        await self.cursor.skip_all()
        self.moved_up()

    async def expire(self, publish_time_ms: int) -> int:
        """Count what was published before then as read; the number of entries. Raises StoreError."""
        return self._expired(await self.cursor.expire(publish_time_ms))

    async def expire_to(self, position: Position) -> int:
        """Count what stands up to and including `position` as read; the number of entries. Raises StoreError."""
        return self._expired(await self.cursor.expire_to(position))

    def _expired(self, entry_count: int) -> int:
        self.counters.last_expired_ms = self._service.clock.wall_ms()
        if entry_count:
            self.counters.expired_entries += entry_count
            self.moved_up()
        return entry_count

    def moved_up(self) -> None:
        """The mark-delete position went on without acknowledgements: nobody waits for what is before it."""
        self.counters.last_mark_delete_advanced_ms = self._service.clock.wall_ms()
        if self.dispatcher is not None and self.dispatcher.acked_up_to(self.cursor.mark_delete_position):
            self.wake()
        self.tell_if_at_end()

    async def reset(self, position: Position) -> None:
        """Go on at `position`, or the first entry behind it. Consumers are disconnected first; they subscribe again.

        Raises ConsumerBusy while another reset is under way, and StoreError.
        """
        if self._is_resetting:
            raise ConsumerBusy(f"subscription {self.name} is being moved already")
        self._is_resetting = True
        try:
            self.close_consumers()
            await self.cursor.reset(position)
        finally:
            if self.dispatcher is not None:
                self.dispatcher.reset()
            self._is_resetting = False
        logs.info("cursor.reset", topic=self.topic.name, subscription=self.name, position=position)

    def tell_if_at_end(self) -> None:
        """Tell the consumers when everything is acknowledged that a terminated topic will ever hold."""
        if self.topic.ledger.is_terminated and not self.cursor.backlog_entries:
            for consumer in self.consumers:
                consumer.reached_end()

    # --- acknowledgement ---------------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, ack: Ack) -> None:
        """Apply an ACK of `consumer`; with a request id, answer once it is durable."""
        request_id = ack.request_id
        refusal = self._refusal(ack)
        if refusal is not None:
            if request_id >= 0:
                consumer.peer.send_ack_response(consumer.consumer_id, request_id, refusal)
            return
        before = self.cursor.mark_delete_position
        can_move = self._acknowledge_up_to(ack) if ack.is_cumulative else self._acknowledge_each(consumer, ack)
        now_ms = self._service.clock.wall_ms()
        consumer.counters.last_acked_ms = self.counters.last_acked_ms = now_ms
        if self.cursor.mark_delete_position != before:
            self.counters.last_mark_delete_advanced_ms = now_ms
        if request_id < 0:
            self.cursor.changed(None)
        else:
            self.cursor.changed(lambda error: self._ack_durable(consumer, request_id, error))
        if can_move:
            self.wake()
        self.tell_if_at_end()

    def _refusal(self, ack: Ack) -> BrokerError | None:
        assert self.dispatcher is not None
        if ack.has_transaction:
            return NotAllowedError("transactions are not supported yet")
        if ack.is_cumulative and self.dispatcher.active_consumer is None:
            return NotAllowedError(f"a {self.dispatcher.kind} subscription takes individual acknowledgements only")
        return None

    def _acknowledge_each(self, consumer: Consumer, ack: Ack) -> bool:
        assert self.dispatcher is not None
        state = self.cursor.state
        can_move = False
        acked = 0
        for ledger_id, entry_ids in ack.groups:
            acked += state.acknowledge(ledger_id, entry_ids)
            can_move = self.dispatcher.acked(ledger_id, entry_ids) or can_move
        for partial in ack.partials:
            can_move = self._acknowledge_part(partial) or can_move
        consumer.counters.acked_messages += acked
        self.counters.acked_messages += acked
        return can_move

    def _acknowledge_part(self, partial: PartialAck) -> bool:
        if not self._service.config.acknowledgment_at_batch_index_level_enabled:
            return False  # The client acknowledges the whole entry once all of it is done.
        assert self.dispatcher is not None
        position = from_wire(partial.ledger_id, partial.entry_id)
        # What the entry itself says counts; only for one that left memory the client is believed.
        words_bits = len(partial.ack_set) * WORD_BITS
        said_count = min(partial.batch_size, words_bits) or words_bits
        message_count = self.cursor.ledger.message_count_at_hand(position) or said_count
        left = self.cursor.state.acknowledge_batch(position, partial.ack_set, message_count)
        if left:
            return self.dispatcher.acked_partly(position.ledger_id, position.entry_id, left)
        return self.dispatcher.acked(position.ledger_id, [position.entry_id])

    def _acknowledge_up_to(self, ack: Ack) -> bool:
        assert self.dispatcher is not None
        state = self.cursor.state
        if ack.partials:
            partial = ack.partials[-1]
            position = from_wire(partial.ledger_id, partial.entry_id)
            state.mark_delete_to(self.cursor.ledger.ledgers.previous_position(position))
            self.dispatcher.acked_up_to(state.mark_delete_position)
            return self._acknowledge_part(partial)
        if not ack.groups:
            return False
        ledger_id, entry_ids = ack.groups[-1]
        state.mark_delete_to(from_wire(ledger_id, entry_ids[-1]))
        return self.dispatcher.acked_up_to(state.mark_delete_position)

    def _ack_durable(self, consumer: Consumer, request_id: int, error: StoreError | None) -> None:
        failure = None if error is None else PersistenceError(f"the acknowledgement is not stored: {error}")
        consumer.peer.send_ack_response(consumer.consumer_id, request_id, failure)
