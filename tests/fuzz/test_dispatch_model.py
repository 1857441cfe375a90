"""Dispatchers against a simple model of a subscription.

What must hold at every step, whatever consumers do: an entry that was read and is not acknowledged is held by one consumer,
waits to be sent again, or is being read; what waits comes before new reads and in order; nobody gets what it cannot take;
counts are those of the model; and while somebody can take entries, the pump leaves nothing behind and is woken.

The quick run is the same every time. The long one takes `--hypothesis-seed`, and FUZZ_EXAMPLES says how many runs it makes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import AssignInput, Delivery, Dispatcher, ReadPlan, Redelivery
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.dispatch.replay import RedeliveryCounts, ReplaySet
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.dispatch.single_active import ExclusiveDispatcher, SingleActiveDispatcher
from pybroker.errors import ConsumerBusy
from pybroker.model import ack_set
from pybroker.model.position import Position

QUICK = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None)
LONG = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "2000")), stateful_step_count=80, deadline=None, database=None
)
# A planted bug only has to be found: the first failing run is enough, unshrunk.
HUNT = settings(QUICK, max_examples=1500, phases=[Phase.generate], print_blob=False)

ENTRIES_PER_LEDGER = 7
TURN = 3


def position_of(entry: int) -> Position:
    return Position(1 + entry // ENTRIES_PER_LEDGER, entry % ENTRIES_PER_LEDGER)


def entry_at(ledger_id: int, entry_id: int) -> int:
    return (ledger_id - 1) * ENTRIES_PER_LEDGER + entry_id


@dataclass
class ModelConsumer:
    """What the model says of one consumer."""

    state: ConsumerState
    permits: int = 0
    unacked: int = 0
    blocked: bool = False

    @property
    def limit(self) -> int:
        return self.state.max_unacked_messages

    def can_take(self) -> bool:
        return self.permits > 0 and self.state.writable and not self.blocked


@dataclass
class Read:
    """A read under way: what it will bring."""

    plan: ReadPlan
    entries: list[int] = field(default_factory=list)


class Subscription(RuleBasedStateMachine):
    """The subscription and its model in one: cursor, consumers, and who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.message_counts: list[int] = []
        self.left: list[int] = []  # bits of each entry's unacknowledged messages
        self.counts: list[int] = []  # redeliveries of each entry
        self.holders: dict[int, ModelConsumer] = {}
        self.waiting: set[int] = set()
        self.read_position = 0
        self.last_sent = -1
        self.consumers: list[ModelConsumer] = []
        self.blocked = False
        self.limit = 0
        self.names = 0
        self.read: Read | None = None
        self.tracker = RedeliveryCounts()
        self.dispatcher: Dispatcher = ExclusiveDispatcher(self.tracker, 10, 1 << 20)

    # --- the model ---------------------------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        return self.dispatcher.kind == "Shared"

    @property
    def unacked(self) -> int:
        return sum(self.left[entry].bit_count() for entry in self.holders)

    def can_move(self) -> bool:
        return not self.blocked and any(consumer.can_take() for consumer in self.consumers)

    def rewind(self) -> None:
        self.read_position = next((e for e, left in enumerate(self.left) if left), len(self.left))
        self.waiting.clear()
        self.holders.clear()
        self.last_sent = -1

    def hold(self, entry: int, consumer: ModelConsumer) -> None:
        self.holders[entry] = consumer
        consumer.unacked += self.left[entry].bit_count()
        consumer.blocked = consumer.blocked or 0 < consumer.limit <= consumer.unacked
        self.blocked = self.blocked or 0 < self.limit <= self.unacked

    def settle_subscription_limit(self) -> None:
        if self.unacked <= self.limit // 2:
            self.blocked = False

    def take_back(self, entry: int) -> None:
        consumer = self.holders.pop(entry)
        consumer.unacked -= self.left[entry].bit_count()
        consumer.blocked = 0 < consumer.limit <= consumer.unacked
        self.waiting.add(entry)
        self.counts[entry] += 1
        self.settle_subscription_limit()

    def lower(self, entry: int, bits: int) -> None:
        """Of the entry's messages only `bits` are left."""
        consumer = self.holders.get(entry)
        if consumer is not None:
            consumer.unacked -= self.left[entry].bit_count() - bits.bit_count()
            if consumer.unacked <= consumer.limit // 2:
                consumer.blocked = False
        self.left[entry] = bits
        if not bits:
            self.holders.pop(entry, None)
            self.waiting.discard(entry)
            self.counts[entry] = 0
        self.settle_subscription_limit()

    # --- consumers ---------------------------------------------------------------------------------------------------

    @initialize(shared=st.booleans(), limit=st.sampled_from([0, 0, 1, 8]))
    def begin(self, shared: bool, limit: int) -> None:
        self.new_dispatcher(shared, limit)

    def new_dispatcher(self, shared: bool, limit: int) -> None:
        if shared:
            self.dispatcher = SharedDispatcher(self.tracker, 10, 1 << 20, TURN, limit)
        else:
            self.dispatcher = ExclusiveDispatcher(self.tracker, 10, 1 << 20)
        self.limit = limit if shared else 0
        self.read = None
        self.rewind()

    @precondition(lambda self: not self.consumers)
    @rule(shared=st.booleans(), limit=st.sampled_from([0, 1, 8]))
    def change_type(self, shared: bool, limit: int) -> None:
        self.new_dispatcher(shared, limit)

    @precondition(lambda self: len(self.consumers) < 4)
    @rule(priority=st.sampled_from([0, 0, 1]), limit=st.sampled_from([0, 0, 1, 6]), permits=st.integers(0, 8))
    def join(self, priority: int, limit: int, permits: int) -> None:
        self.names += 1
        consumer = ModelConsumer(ConsumerState(f"c{self.names}", priority, limit if self.is_shared else 0, None))
        try:
            redelivery = self.dispatcher.add_consumer(consumer.state)
        except ConsumerBusy:
            assert not self.is_shared
            assert self.consumers
            return
        assert self.is_shared or not self.consumers
        self.consumers.append(consumer)
        if redelivery.rewind:
            self.rewind()
        if permits:
            self.flow(consumer, permits)

    def choose(self, index: int) -> ModelConsumer:
        return self.consumers[index % len(self.consumers)]

    @precondition(lambda self: self.consumers)
    @rule(index=st.integers(0, 3))
    def leave(self, index: int) -> None:
        consumer = self.choose(index)
        redelivery = self.dispatcher.remove_consumer(consumer.state)
        for entry in [entry for entry, holder in self.holders.items() if holder is consumer]:
            self.take_back(entry)
        self.consumers.remove(consumer)
        assert redelivery.rewind == (not self.consumers)
        self.apply(redelivery)

    def apply(self, redelivery: Redelivery) -> None:
        if redelivery.rewind:
            self.rewind()
            if self.is_shared:
                self.blocked = False
        assert redelivery.wake or not self.can_move(), "somebody can move, and nobody is woken"

    @precondition(lambda self: self.consumers)
    @rule(index=st.integers(0, 3), permits=st.integers(1, 12))
    def add_permits(self, index: int, permits: int) -> None:
        self.flow(self.choose(index), permits)

    def flow(self, consumer: ModelConsumer, permits: int) -> None:
        woken = self.dispatcher.flow(consumer.state, permits)
        consumer.permits += permits
        assert woken == (consumer.can_take() and not self.blocked)

    @precondition(lambda self: self.consumers)
    @rule(index=st.integers(0, 3), writable=st.booleans())
    def stall(self, index: int, writable: bool) -> None:
        self.choose(index).state.writable = writable

    # --- reading -----------------------------------------------------------------------------------------------------

    @rule(counts=st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=1, max_size=6))
    def publish(self, counts: list[int]) -> None:
        self.message_counts += counts
        self.left += [ack_set.full(count) for count in counts]
        self.counts += [0] * len(counts)

    @precondition(lambda self: self.read is None)
    @rule()
    def begin_read(self) -> None:
        plan = self.dispatcher.next_read()
        assert (plan is not None) == self.can_move()
        if plan is None:
            return
        assert plan.max_entries > 0
        read = self.read = Read(plan)
        if self.waiting:
            assert plan.replay is not None, "new entries are read before those that wait"
            read.entries = [entry_at(*position) for position in plan.replay]
            assert read.entries == sorted(self.waiting)[: plan.max_entries]
            self.waiting -= set(read.entries)
        else:
            assert plan.replay is None, "entries are sent again that do not wait for it"
            end = min(len(self.left), self.read_position + plan.max_entries)
            read.entries = list(range(self.read_position, end))

    @precondition(lambda self: self.read is not None)
    @rule(done=st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.0]))
    def end_read(self, done: float) -> None:
        """The read brings all, a part, or fails."""
        read, self.read = self.read, None
        assert read is not None
        plan = read.plan
        if self.dispatcher.is_void(plan):
            self.assign(plan, read.entries)
            return
        entries = read.entries[: int(len(read.entries) * done)]
        if plan.replay is None:
            self.read_position += len(entries)
        else:
            self.waiting |= {entry for entry in read.entries if self.left[entry]}
        self.assign(plan, entries)
        if len(entries) < len(read.entries):
            self.dispatcher.give_back(plan)
            # What was acknowledged meanwhile may come back once, to be dropped by the next read.
            if plan.replay is not None:
                gone = [position_of(entry) for entry in read.entries if not self.left[entry]]
                for ledger_id, entry_id in gone:
                    self.dispatcher.acked(ledger_id, [entry_id])

    def assign(self, plan: ReadPlan, entries: list[int]) -> None:
        for ledger_id in sorted({position_of(entry).ledger_id for entry in entries}):
            kept = [entry for entry in entries if position_of(entry).ledger_id == ledger_id and self.left[entry]]
            if not kept:
                continue
            full = [ack_set.full(self.message_counts[entry]) for entry in kept]
            sets = [
                None if self.left[entry] == bits else ack_set.to_words(self.left[entry])
                for entry, bits in zip(kept, full, strict=True)
            ]
            run = AssignInput(
                ledger_id,
                [position_of(entry).entry_id for entry in kept],
                [b"%d" % entry for entry in kept],
                [self.message_counts[entry] for entry in kept],
                sets if any(words is not None for words in sets) else None,
            )
            deliveries = self.dispatcher.assign(plan, run)
            if self.dispatcher.is_void(plan):
                assert not deliveries, "a void read was delivered"
                continue
            if self.is_shared:
                self.waiting |= set(kept)
            for delivery in deliveries:
                self.deliver(delivery)
            if self.is_shared:
                left_over = self.waiting & set(kept)
                assert not (left_over and self.can_move()), "an entry found no taker though somebody can take it"
            else:
                assert [entry_at(ledger_id, e) for d in deliveries for e in d.entry_ids] == kept

    def deliver(self, delivery: Delivery) -> None:
        consumer = next(c for c in self.consumers if c.state is delivery.consumer)
        entries = [entry_at(delivery.ledger_id, entry_id) for entry_id in delivery.entry_ids]
        assert delivery.payloads == [b"%d" % entry for entry in entries]
        assert delivery.message_counts == [self.message_counts[entry] for entry in entries]
        assert (delivery.redelivery_counts or [0] * len(entries)) == [self.counts[entry] for entry in entries]
        spent = sum(self.left[entry].bit_count() for entry in entries)
        assert delivery.message_count == spent
        if not self.is_shared:
            assert all(entry > self.last_sent for entry in entries), "sent a second time without a rewind"
            assert not any(self.left[self.last_sent + 1 : entries[0]]), "an entry was passed over"
            self.last_sent = entries[-1]
            consumer.permits -= spent
            return
        assert len(entries) <= TURN
        better = [c for c in self.consumers if c.state.priority_level < consumer.state.priority_level]
        assert not any(c.can_take() for c in better), "a better consumer was passed over"
        for entry in entries:
            assert consumer.can_take(), "sent to a consumer that cannot take it"
            assert not self.blocked, "sent although the subscription is at its limit"
            assert entry in self.waiting, "sent although somebody holds it"
            self.waiting.discard(entry)
            consumer.permits -= self.left[entry].bit_count()
            self.hold(entry, consumer)

    @rule()
    def pump(self) -> None:
        """Everything that can move does."""
        if self.read is not None:
            self.end_read(1.0)
        while self.can_move() and (self.waiting or self.read_position < len(self.left)):
            self.begin_read()
            before = (sorted(self.waiting), self.read_position, len(self.holders), self.last_sent)
            self.end_read(1.0)
            after = (sorted(self.waiting), self.read_position, len(self.holders), self.last_sent)
            assert before != after, "the pump is stuck"

    # --- acknowledging -----------------------------------------------------------------------------------------------

    def acknowledge(self, entries: list[int], act: Callable[[], bool]) -> None:
        """Acknowledge in the model; `act` tells the dispatcher."""
        could_move = self.can_move()
        for entry in entries:
            self.lower(entry, 0)
        woken = act()
        assert woken or could_move or not self.can_move(), "an acknowledgement let somebody move, and nobody is woken"

    @precondition(lambda self: self.left)
    @rule(first=st.integers(0, 200), step=st.integers(1, 3), count=st.integers(1, 5))
    def ack(self, first: int, step: int, count: int) -> None:
        """Acknowledge some entries of one ledger, held or not, perhaps acknowledged before."""
        start = first % len(self.left)
        ledger_id = position_of(start).ledger_id
        entries = [e for e in range(start, len(self.left), step) if position_of(e).ledger_id == ledger_id][:count]
        entry_ids = [position_of(entry).entry_id for entry in entries]
        self.acknowledge(entries, lambda: self.dispatcher.acked(ledger_id, entry_ids))

    @precondition(lambda self: any(self.left))
    @rule(index=st.integers(0, 200))
    def ack_oldest(self, index: int) -> None:
        entry = next(entry for entry, left in enumerate(self.left) if left)
        ledger_id, entry_id = position_of(entry)
        self.acknowledge([entry], lambda: self.dispatcher.acked(ledger_id, [entry_id]))

    @precondition(lambda self: any(self.left))
    @rule(index=st.integers(0, 200), words=st.integers(0, 7))
    def ack_partly(self, index: int, words: int) -> None:
        unacked = [entry for entry, left in enumerate(self.left) if left]
        entry = unacked[index % len(unacked)]
        bits = self.left[entry] & words
        ledger_id, entry_id = position_of(entry)
        if not bits:
            self.acknowledge([entry], lambda: self.dispatcher.acked(ledger_id, [entry_id]))
            return
        could_move = self.can_move()
        self.lower(entry, bits)
        woken = self.dispatcher.acked_partly(ledger_id, entry_id, bits.bit_count())
        assert woken or could_move or not self.can_move()

    @precondition(lambda self: self.left)
    @rule(index=st.integers(0, 200))
    def ack_up_to(self, index: int) -> None:
        entry = index % len(self.left)
        self.acknowledge(list(range(entry + 1)), lambda: self.dispatcher.acked_up_to(position_of(entry)))

    @precondition(lambda self: self.consumers and self.left)
    @rule(index=st.integers(0, 3), entries=st.lists(st.integers(0, 200), max_size=6), everything=st.booleans())
    def nack(self, index: int, entries: list[int], everything: bool) -> None:
        """One consumer asks for entries again, of which it holds some, or for all."""
        consumer = self.choose(index)
        wanted = {entry % len(self.left) for entry in entries}
        positions = None if everything else [position_of(entry) for entry in sorted(wanted)]
        redelivery = self.dispatcher.redeliver(consumer.state, positions)
        if self.is_shared:
            for entry in [entry for entry, holder in self.holders.items() if holder is consumer]:
                if everything or entry in wanted:
                    self.take_back(entry)
        else:
            for entry in range(self.last_sent + 1):
                self.counts[entry] += 1 if self.left[entry] else 0
        assert redelivery.rewind != self.is_shared
        self.apply(redelivery)

    @rule()
    def reset(self) -> None:
        """The cursor is moved back to its mark-delete position by somebody else."""
        self.dispatcher.reset()
        for consumer in self.consumers:
            consumer.unacked = 0
            consumer.blocked = False
        self.blocked = False
        self.counts = [0] * len(self.counts)
        self.rewind()

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def the_dispatcher_agrees_with_itself_and_with_the_model(self) -> None:
        dispatcher = self.dispatcher
        dispatcher.check_invariants()
        assert dispatcher.consumers == [consumer.state for consumer in self.consumers]
        assert dispatcher.replay_entry_count == len(self.waiting)
        assert dispatcher.unacked_messages == self.unacked
        assert dispatcher.blocked == self.blocked
        for consumer in self.consumers:
            assert consumer.state.permits == consumer.permits
            assert consumer.state.unacked_messages == consumer.unacked
            assert consumer.state.blocked == consumer.blocked
        if isinstance(dispatcher, SharedDispatcher):
            held = {
                entry_at(ledger_id, entry_id): (state, left) for ledger_id, entry_id, state, left in dispatcher.pending
            }
            assert held == {e: (c.state, self.left[e].bit_count()) for e, c in self.holders.items()}

    @invariant()
    def nothing_is_lost(self) -> None:
        if not self.is_shared:
            return
        reading = set(self.read.entries) if self.read is not None else set()
        for entry in range(self.read_position):
            places = (entry in self.holders) + (entry in self.waiting)
            assert places <= 1
            assert places or not self.left[entry] or entry in reading, f"entry {entry} is lost"


def test_dispatchers_do_what_the_model_says() -> None:
    run_state_machine_as_test(Subscription, settings=QUICK)


@pytest.mark.long
def test_dispatchers_do_what_the_model_says_for_long() -> None:
    run_state_machine_as_test(Subscription, settings=LONG)


def no_leftovers(patch: pytest.MonkeyPatch) -> None:
    assign = SharedDispatcher.assign

    def drop_the_rest(self: SharedDispatcher, plan: ReadPlan, run: AssignInput) -> list[Delivery]:
        deliveries = assign(self, plan, run)
        self._replay.discard(run.ledger_id, run.entry_ids)
        return deliveries

    patch.setattr(SharedDispatcher, "assign", drop_the_rest)


def leavers_keep_their_entries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedDispatcher, "_take_back_all", lambda self, consumer: None)


def nacks_take_from_anybody(patch: pytest.MonkeyPatch) -> None:
    take_back = PendingAcks.take_back

    def take_from_holder(self: PendingAcks, consumer: ConsumerState, ledger_id: int, entry_ids: list[int]) -> list[int]:
        for holder in {state.name: state for _, _, state, _ in self}.values():
            consumer = holder
        return take_back(self, consumer, ledger_id, entry_ids)

    patch.setattr(PendingAcks, "take_back", take_from_holder)


def acknowledged_entries_stay_in_replay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplaySet, "discard", lambda self, ledger_id, entry_ids: None)


def a_cumulative_ack_leaves_the_replay_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplaySet, "discard_up_to", lambda self, position: None)


def entries_cost_one_permit_each(patch: pytest.MonkeyPatch) -> None:
    spend = ConsumerState.spend
    patch.setattr(ConsumerState, "spend", lambda self, messages, entries: spend(self, entries, entries))


def the_limit_is_never_lifted(patch: pytest.MonkeyPatch) -> None:
    def release(self: ConsumerState, message_count: int) -> bool:
        self.unacked_messages -= message_count
        return False

    patch.setattr(ConsumerState, "release", release)


def the_limit_is_lifted_at_once(patch: pytest.MonkeyPatch) -> None:
    def release(self: ConsumerState, message_count: int) -> bool:
        self.unacked_messages -= message_count
        was_blocked, self.blocked = self.blocked, False
        return was_blocked

    patch.setattr(ConsumerState, "release", release)


def limits_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        SharedDispatcher, "_end_of_turn", lambda self, consumer, counts, start: min(len(counts), start + TURN)
    )


def full_connections_are_written_to(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerState, "can_take", lambda self: self.permits > 0 and not self.blocked)


def the_worst_level_comes_first(patch: pytest.MonkeyPatch) -> None:
    def take_turn(self: SharedDispatcher) -> ConsumerState | None:
        chosen = [level.take_turn() for level in reversed(self._levels)] if not self.blocked else []
        return next((consumer for consumer in chosen if consumer is not None), None)

    patch.setattr(SharedDispatcher, "_take_turn", take_turn)


def redeliveries_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedeliveryCounts, "increase", lambda self, ledger_id, entry_ids: None)


def rewinds_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedeliveryCounts, "increase_up_to", lambda self, position: None)


def counts_of_acknowledged_entries_stay(patch: pytest.MonkeyPatch) -> None:
    """Only seen through another entry: positions do not come back, so the count of the wrong entries must go."""
    forget = RedeliveryCounts.forget
    patch.setattr(
        RedeliveryCounts,
        "forget",
        lambda self, ledger_id, entry_ids: forget(self, ledger_id, [e + 1 for e in entry_ids]),
    )


def a_read_under_way_survives_a_rewind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SingleActiveDispatcher, "_void_reads", lambda self: None)


def acknowledgements_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    released = SharedDispatcher._released

    def silent(self: SharedDispatcher, unblocked: bool) -> bool:
        released(self, unblocked)
        return False

    patch.setattr(SharedDispatcher, "_released", silent)


def failed_reads_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedDispatcher, "give_back", lambda self, plan: None)


BUGS = [
    no_leftovers,
    leavers_keep_their_entries,
    nacks_take_from_anybody,
    acknowledged_entries_stay_in_replay,
    a_cumulative_ack_leaves_the_replay_alone,
    entries_cost_one_permit_each,
    the_limit_is_never_lifted,
    the_limit_is_lifted_at_once,
    limits_are_not_looked_at,
    full_connections_are_written_to,
    the_worst_level_comes_first,
    redeliveries_are_not_counted,
    rewinds_are_not_counted,
    counts_of_acknowledged_entries_stay,
    a_read_under_way_survives_a_rewind,
    acknowledgements_wake_nobody,
    failed_reads_are_forgotten,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_the_model_finds_a_planted_bug(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, StopIteration)):
            run_state_machine_as_test(Subscription, settings=HUNT)
