"""One subscription: moves entries from its cursor through its dispatcher to its consumers.

What they acknowledge is applied by `acknowledgement`, what moves the cursor otherwise by `cursor_moves`.

The pump never waits. What is in memory is read, assigned and sent within the time budget of the turn; for the rest one read runs
in the topic's tasks and wakes the pump when it is done.

Invariants: at most one read is under way; the subscription is on the broker's pump list at most once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.broker.delivery import acknowledgement, damaged_entries, markers
from pybroker.broker.delivery.compacted_reads import CompactedReads, CompactedRun
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.delayed_delivery import DelayedDelivery
from pybroker.broker.delivery.dispatchers import new_dispatcher
from pybroker.broker.delivery.filter_chain import FilterChain
from pybroker.broker.delivery.pumps import Pumped
from pybroker.broker.delivery.second_reads import SecondReads
from pybroker.broker.delivery.subscription_base import SubscriptionBase
from pybroker.broker.limits.dispatch_throttle import DispatchThrottle, throttle_of
from pybroker.broker.topic.topic_admission import require_room_on_subscription
from pybroker.dispatch.delayed import Delayed
from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan, Redelivery
from pybroker.dispatch.key_shared import KeySharedDispatcher
from pybroker.dispatch.replay import RedeliveryCounts
from pybroker.errors import BrokerError, ConsumerBusy, NoSuchLedger, StoreError
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model.hashing import key_hash
from pybroker.model.position import Position
from pybroker.storage.ledger_store import EntryRun
from pybroker.wire.entry_metadata import chunk_of, sticky_key

if TYPE_CHECKING:
    from pybroker.broker.delivery.entry_kinds import EntryKinds
    from pybroker.broker.topic.topic_commons import TopicCommons
    from pybroker.model.events import Ack


REPLICATED_PROPERTY = "pulsar.replicated.subscription"
"""The cursor's property that says so, as Pulsar names it; it is no property of the application's."""


class Subscription(SubscriptionBase, Pumped):
    """Owned by its topic, under its name."""

    def __init__(
        self,
        topic: TopicCommons,
        name: str,
        cursor: ManagedCursor,
        kinds: EntryKinds,
        unused: Callable[[Subscription], None],
    ) -> None:
        """`kinds` says what may be among the topic's entries; `unused` is told when nobody will come back to it."""
        super().__init__(topic, name)
        self.cursor = cursor
        self._kinds = kinds
        self._unused = unused
        self.reads: ManagedCursor | CompactedReads = cursor
        """Where the pump reads: the cursor, unless the active consumer reads compacted."""
        self.compacted_reads: CompactedReads | None = None
        """The same, if it does."""
        self._second_reads = SecondReads(cursor)
        self.dispatcher: Dispatcher | None = None
        self.last_active_ms = topic.surroundings.clock.wall_ms()
        """When a consumer came or went last; when the topic was loaded if none did since."""
        self.delayed = DelayedDelivery(self)
        self._redelivery_counts = RedeliveryCounts()
        self._is_reading = False
        self.is_resetting = False
        self._read_failures = 0
        self.throttle: DispatchThrottle | None = None
        self._is_waking_soon = False
        self._draining_hashes_cleared_before = 0  # by dispatchers of before
        self.throttle = throttle_of(self)
        self._filters = self._filter_chain()

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
        chain, before = self._filter_chain(), self._filters
        if (chain and chain.filters) != (before and before.filters):
            self._filters = chain
            self.wake()  # What the ones before put off may go now.

    def _filter_chain(self) -> FilterChain | None:
        filters = self.topic.entry_filters
        return FilterChain(self, filters) if filters else None

    @property
    def is_replicated(self) -> bool:
        """Whether its state is wanted in other clusters as well: kept and shown, there is no replication yet."""
        return REPLICATED_PROPERTY in self.cursor.properties

    @property
    def properties(self) -> dict[str, str]:
        return {key: value for key, value in self.cursor.properties.items() if key != REPLICATED_PROPERTY}

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        own = {REPLICATED_PROPERTY: "1"} if self.is_replicated else {}
        await self.cursor.set_properties({**properties, **own})

    async def set_replicated(self, is_replicated: bool) -> None:
        """Say whether its state is wanted in other clusters; durable when it returns. Raises StoreError."""
        if self.is_durable and is_replicated != self.is_replicated:
            own = {REPLICATED_PROPERTY: "1"} if is_replicated else {}
            await self.cursor.set_properties({**self.properties, **own})

    @property
    def unacked_messages(self) -> int:
        """Delivered and not acknowledged; 0 for types that do not track them."""
        return 0 if self.dispatcher is None else self.dispatcher.unacked_messages

    @property
    def replay_entry_count(self) -> int:
        """Entries that wait to be sent again."""
        return 0 if self.dispatcher is None else self.dispatcher.replay_entry_count

    @property
    def draining_hashes_cleared_total(self) -> int:
        """Hashes that were drained since the topic was loaded, whoever drained them."""
        dispatcher = self.dispatcher
        cleared = dispatcher.draining.cleared_total if isinstance(dispatcher, KeySharedDispatcher) else 0
        return self._draining_hashes_cleared_before + cleared

    @property
    def is_reading(self) -> bool:
        """Whether entries are being read from the store for its consumers."""
        return self._is_reading

    @property
    def is_blocked(self) -> bool:
        """Whether dispatch is stopped by a limit of unacknowledged messages, the subscription's or the broker's."""
        limit = self.commons.broker_unacked_limit
        if limit is not None and limit.is_stopped(self):
            return True
        return self.dispatcher is not None and self.dispatcher.blocked

    # --- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer, kind: str) -> None:
        assert not self.is_resetting, "consumers come in their turn, and so do moves"
        require_room_on_subscription(self)
        dispatcher = self.dispatcher
        if dispatcher is None or not self.consumers:
            # The type and its options are the connected consumers'; only cursor and redelivery counts are the subscription's.
            max_unacked = self.topic.policies.max_unacked_per_subscription
            dispatcher = new_dispatcher(
                self.surroundings.config, kind, self._redelivery_counts, self.topic.name, max(0, max_unacked)
            )
            self.reads, self.compacted_reads = self.cursor, None
            self.cursor.rewind()
        elif dispatcher.kind != kind:
            raise ConsumerBusy(
                f"Subscription is of different type: it is {dispatcher.kind} while its consumers are connected"
            )
        if dispatcher.follows_mark_delete:
            dispatcher.mark_delete_moved(self.cursor.first_unacked_position)
            consumer.state.read_position_when_joining = self.cursor.ledger.ledgers.normalize(self.cursor.read_position)
        try:
            redelivery = dispatcher.add_consumer(consumer.state)
        except BrokerError:
            self.drop_if_unused()  # it may have been made for this one alone
            raise
        if dispatcher is not self.dispatcher:
            self._draining_hashes_cleared_before = self.draining_hashes_cleared_total
            self.dispatcher = dispatcher
        self.consumers.append(consumer)
        self.last_active_ms = self.surroundings.clock.wall_ms()
        self._apply(redelivery)

    def remove_consumer(self, consumer: Consumer) -> None:
        """`consumer` is gone: what it did not acknowledge is delivered again."""
        self.consumers.remove(consumer)
        self.last_active_ms = self.surroundings.clock.wall_ms()
        self.topic.in_use()
        assert self.dispatcher is not None
        self._apply(self.dispatcher.remove_consumer(consumer.state))
        self.drop_if_unused()

    def drop_if_unused(self) -> None:
        """Without a reader nobody will come back to a non-durable subscription."""
        if not self.is_durable and not self.consumers and not self.is_resetting:
            self._unused(self)

    def flow(self, consumer: Consumer, permits: int) -> None:
        self._count_flow(consumer)
        assert self.dispatcher is not None
        if self.dispatcher.flow(consumer.state, permits):
            self.wake()
        self.tell_if_at_end()

    def acknowledge(self, consumer: Consumer, ack: Ack) -> None:
        acknowledgement.acknowledge(self, consumer, ack)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int) -> None:
        assert self.dispatcher is not None
        if self.dispatcher.active_consumer is not None:
            consumer.epoch = max(consumer.epoch, epoch)  # The client drops what it is sent with an older one.
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
            delay_s = self.surroundings.config.active_consumer_failover_delay_time_millis / 1000
            self.surroundings.call_later(delay_s, lambda: self._start(dispatcher))
        for state, is_active in redelivery.notices:
            consumer = state.peer
            assert isinstance(consumer, Consumer)
            consumer.peer.active_consumer_changed(consumer.consumer_id, is_active)
        if redelivery.wake:
            self.wake()
        if dispatcher.has_unblocked:
            self.wake_soon()
        self.unacked_changed()

    def _choose_reads(self, dispatcher: Dispatcher) -> None:
        """Somebody else may be active now, who reads compacted or does not."""
        active = None if dispatcher.active_consumer is None else dispatcher.active_consumer.peer
        if isinstance(active, Consumer) and active.reads_compacted:
            if self.compacted_reads is None:
                self.reads = self.compacted_reads = CompactedReads(self)
        else:
            self.reads, self.compacted_reads = self.cursor, None

    def limit_unacked(self) -> None:
        """Other limits of unacknowledged messages may be in force: who is below them goes on."""
        policies = self.topic.policies
        if self.dispatcher is not None and self.dispatcher.limit_unacked(
            max(0, policies.max_unacked_per_consumer), max(0, policies.max_unacked_per_subscription)
        ):
            self.wake()

    def unacked_changed(self) -> None:
        """Something was delivered, acknowledged or taken back: the whole broker may have a limit on it."""
        limit = self.commons.broker_unacked_limit
        if limit is not None:
            for subscription in limit.report(self, self.unacked_messages):
                subscription.wake()

    def _start(self, dispatcher: Dispatcher) -> None:
        """The wait of a new active consumer is over, unless everybody left meanwhile."""
        if dispatcher is self.dispatcher:
            self._apply(dispatcher.start())

    # --- the pump ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if not self.is_queued and not self._is_reading and self.consumers:
            self.commons.pumps.add(self)

    def wake_soon(self) -> None:
        """What was held back can go: a little later, so that what is released one by one goes together."""
        if not self._is_waking_soon:
            self._is_waking_soon = True
            self.surroundings.call_later(
                self.surroundings.config.key_shared_unblocking_interval_ms / 1000, self._wake_now
            )

    def _wake_now(self) -> None:
        self._is_waking_soon = False
        self.wake()

    def failed(self, bug: Exception) -> None:
        """A broken invariant in here closes the topic."""
        logs.error("dispatch.failed", topic=self.topic.name, subscription=self.name, exc_info=bug)
        self.topic.fail(bug)

    def pump(self, deadline_ms: float) -> bool:
        """Dispatch until nothing can move or the time is up; True when there is more to do."""
        dispatcher = self.dispatcher
        clock = self.surroundings.clock
        limit = self.commons.broker_unacked_limit
        if not self.delayed.restore(deadline_ms):
            return True
        while not self._is_reading and not self.is_closed and dispatcher is not None and self.consumers:
            if limit is not None and limit.is_stopped(self):
                return False
            if self._filters is not None and self._filters.is_waiting:
                return False
            throttle = self.throttle
            if throttle is not None and not throttle.allows_read():
                return False
            plan = dispatcher.next_read()
            if plan is None or not self._carry_out(plan, dispatcher):
                return False
            if clock.monotonic_ms() >= deadline_ms:
                return True
        return False

    def _carry_out(self, plan: ReadPlan, dispatcher: Dispatcher) -> bool:
        """Whether what was planned is done; when not, there was nothing to read, or the store is being asked."""
        if self.throttle is not None:
            self.throttle.cut(plan, dispatcher)
        due: Sequence[Delayed] = ()
        if plan.replay is not None:
            is_done = self._replay_cached(plan)
        elif plan.scan is not None:
            is_done = self._scan_cached(plan)
        elif due := self.delayed.take_due(plan.max_entries):
            is_done = self.delayed.send_cached(plan, due)
        else:
            reads = self.reads
            reads.pass_over(self.delayed.held_back)
            if not reads.has_more():
                scan = dispatcher.next_scan()
                return scan is not None and self._carry_out(scan, dispatcher)
            run = reads.read_cached(plan.max_entries, plan.max_bytes)
            is_done = run is not None
            if run is not None:
                self.assign_run(plan, run)
        if not is_done:
            self._start_read(plan, due)
        return is_done

    def _start_read(self, plan: ReadPlan, due: Sequence[Delayed]) -> None:
        self._is_reading = True
        self.topic.tasks.start(self._read(plan, due), f"read {self.name}")

    async def _read(self, plan: ReadPlan, due: Sequence[Delayed]) -> None:
        """The part of the pump that needs the disk; with `due`, these entries are read in place of the cursor's."""
        dispatcher = self.dispatcher
        assert dispatcher is not None
        try:
            if plan.replay is not None:
                await self._replay_from_store(plan)
            elif plan.scan is not None:
                await self._scan_from_store(plan, plan.scan)
            elif due:
                await self.delayed.send_from_store(plan, due)
            else:
                run = await self.reads.read(plan.max_entries, plan.max_bytes)
                if dispatcher is not self.dispatcher or dispatcher.is_void(plan):
                    self.reads.rewind()  # It went back while the read, which has advanced it, was under way.
                elif run is not None:
                    self.assign_run(plan, run)
            self._read_failures = 0
        except StoreError as error:
            dispatcher.give_back(plan)
            damage = damaged_entries.lasting_damage(self, error)
            if damage is not None and damaged_entries.go_behind(self, damage):
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
        self.surroundings.call_later(self.commons.read_retry_delay_s(self._read_failures), self.wake)

    def assign_run(self, plan: ReadPlan, run: EntryRun) -> None:
        """Hand what was read from the cursor's position to the dispatcher, without what is acknowledged already."""
        first = run.first_entry_id
        entries = self._undelivered(run)
        if not entries.entry_ids:
            return
        if self._kinds.may_hold_markers(Position(run.ledger_id, first)):
            entries = markers.passed_over(self, entries)
            if not entries.entry_ids:
                return
        if plan.scan is not None or self.delayed.is_enabled:
            # What a scan comes by and is not in the index was due before.
            entries = self.delayed.hold_back(entries) if plan.scan is None else self.delayed.without_waiting(entries)
            if not entries.entry_ids:
                return
        if self._filters is not None:
            entries = self._filters.passed(plan, entries)
            if not entries.entry_ids:
                return
        dispatcher = self.dispatcher
        assert dispatcher is not None
        if dispatcher.needs_key_hashes:
            entries.key_hashes = [key_hash(sticky_key(payload)) for payload in entries.payloads]
        if dispatcher.keeps_chunks_together and self._kinds.may_hold_chunks(Position(run.ledger_id, first)):
            chunks = [chunk_of(payload) for payload in entries.payloads]
            if any(chunks):
                entries.chunks = chunks
        self._assign(plan, entries)

    def _undelivered(self, run: EntryRun) -> AssignInput:
        """The entries of `run` that are not acknowledged."""
        if isinstance(run, CompactedRun):
            assert self.compacted_reads is not None
            return self.compacted_reads.undelivered(run)
        state = self.cursor.state
        first, count = run.first_entry_id, len(run.payloads)
        kept = state.undeleted_in(run.ledger_id, first, count)
        ack_sets = state.ack_sets_in(run.ledger_id, first, count)
        entries = AssignInput(run.ledger_id, range(first, first + count), run.payloads, run.message_counts, ack_sets)
        return entries if kept is None else entries.rows([entry_id - first for entry_id in kept])

    def _assign(self, plan: ReadPlan, entries: AssignInput) -> None:
        assert self.dispatcher is not None
        deliveries = self.dispatcher.assign(plan, entries)
        if not deliveries:
            return
        if self.throttle is not None:
            self.throttle.sent(deliveries)
        now_ms = self.surroundings.clock.wall_ms()
        has_chunks = self.topic.counters.chunks_in > 0
        for delivery in deliveries:
            consumer = delivery.consumer.peer
            assert isinstance(consumer, Consumer)
            consumer.deliver(delivery, now_ms, has_chunks=has_chunks)
        self.unacked_changed()

    def _replay_cached(self, plan: ReadPlan) -> bool:
        """Send the plan's positions again if all are in memory; False when the store must be asked."""
        runs: list[EntryRun] = []
        for ledger_id, first, last in self._wanted(plan):
            run = self.cursor.ledger.read_cached(Position(ledger_id, first), last - first + 1, plan.max_bytes)
            if run is None or len(run.payloads) <= last - first:
                return False
            runs.append(run)
        for run in runs:
            self.assign_run(plan, run)
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
                    run = await self.cursor.ledger.read_if_there(
                        Position(ledger_id, first), last - first + 1, left_bytes
                    )
                except NoSuchLedger as error:
                    raise damaged_entries.whole_ledger(self, ledger_id, error) from error
                if run is None:
                    break  # acknowledged and trimmed meanwhile
                left_bytes -= sum(map(len, run.payloads))
                first += len(run.payloads)
                self.assign_run(plan, run)

    def _scan_cached(self, plan: ReadPlan) -> bool:
        """Look again at what the cursor has passed; False when the store must be asked."""
        assert plan.scan is not None
        assert self.dispatcher is not None
        position = self._second_reads.next_position(plan.scan, self.delayed.held_back)
        if position is None:
            self.dispatcher.scanned(plan, plan.scan, is_at_end=True)
            return True
        run = self._second_reads.read_cached(position, plan.max_entries, plan.max_bytes)
        if run is None:
            return False
        self._assign_scanned(plan, run)
        return True

    async def _scan_from_store(self, plan: ReadPlan, scan: Position) -> None:
        position = self._second_reads.next_position(scan, self.delayed.held_back)
        if position is None:
            return  # Acknowledged meanwhile: the next plan sees it.
        try:
            run = await self._second_reads.read(position, plan.max_entries, plan.max_bytes)
        except NoSuchLedger as error:
            raise damaged_entries.whole_ledger(self, position.ledger_id, error) from error
        if run is not None and self.dispatcher is not None and not self.dispatcher.is_void(plan):
            self._assign_scanned(plan, run)

    def _assign_scanned(self, plan: ReadPlan, run: EntryRun) -> None:
        assert self.dispatcher is not None
        self.assign_run(plan, run)
        end = Position(run.ledger_id, run.first_entry_id + len(run.payloads))
        next_position = self._second_reads.next_position(end, self.delayed.held_back)
        self.dispatcher.scanned(plan, next_position or end, is_at_end=next_position is None)

    def _wanted(self, plan: ReadPlan) -> list[tuple[int, int, int]]:
        """The plan's positions that are still there and unacknowledged, as (ledger id, first, last) of consecutive entries."""
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

    # --- the end of what there is to do ------------------------------------------------------------------------------

    def moved_up(self) -> None:
        """The mark-delete position went on without acknowledgements: nobody waits for what is before it."""
        self.counters.last_mark_delete_advanced_ms = self.surroundings.clock.wall_ms()
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
        """Tell the consumers when everything is acknowledged that a terminated topic will ever hold."""
        if self.cursor.ledger.is_terminated and not self.cursor.backlog_entries:
            for consumer in self.consumers:
                consumer.reached_end()
