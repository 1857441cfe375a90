"""Dispatchers against a simple model of a subscription.

What must hold at every step, whatever consumers do: an entry that was read and is not acknowledged is held by one consumer,
waits to be sent again, or is being read; what waits comes before new reads and in order; nobody gets what it cannot take;
counts are those of the model; and while somebody can take entries, the pump leaves nothing behind and is woken.

Two drivers take the same steps: hypothesis, which shrinks what it finds, and a random walk, which is fifty times as fast.
The quick runs are the same every time. The long ones take FUZZ_EXAMPLES and FUZZ_SEED (or `--hypothesis-seed`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
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
from pybroker.dispatch.replay import RedeliveryCounts
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.dispatch.single_active import ExclusiveDispatcher
from pybroker.errors import ConsumerBusy
from pybroker.model import ack_set
from pybroker.model.position import Position

FUZZ_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "2000"))
FUZZ_SEED = int(os.environ.get("FUZZ_SEED", "1"))
QUICK = settings(max_examples=30, stateful_step_count=30, deadline=None, derandomize=True, database=None)
LONG = settings(max_examples=FUZZ_EXAMPLES, stateful_step_count=80, deadline=None, database=None)

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
        counts = [self.counts[entry] if self.is_shared else 0 for entry in entries]
        assert (delivery.redelivery_counts or [0] * len(entries)) == counts
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
    @rule()
    def ack_oldest(self) -> None:
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
                entry_at(ledger_id, entry_id): (state, left)
                for ledger_id, entry_id, state, left, _ in dispatcher.pending
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


# The steps of the walk: how often each is drawn, whether it can be taken, and how.
Step = tuple[int, Callable[[Subscription], bool], Callable[[Subscription, random.Random], None]]
STEPS: list[Step] = [
    (
        4,
        lambda s: len(s.left) < 100,
        lambda s, r: s.publish([r.choice((1, 1, 1, 2, 3)) for _ in range(r.randint(1, 6))]),
    ),
    (1, lambda s: not s.consumers, lambda s, r: s.change_type(r.random() < 0.7, r.choice((0, 1, 8)))),
    (
        3,
        lambda s: len(s.consumers) < 4,
        lambda s, r: s.join(r.choice((0, 0, 1)), r.choice((0, 0, 1, 6)), r.randint(0, 8)),
    ),
    (1, lambda s: bool(s.consumers), lambda s, r: s.leave(r.randrange(4))),
    (6, lambda s: bool(s.consumers), lambda s, r: s.add_permits(r.randrange(4), r.randint(1, 12))),
    (2, lambda s: bool(s.consumers), lambda s, r: s.stall(r.randrange(4), r.random() < 0.7)),
    (6, lambda s: s.read is None, lambda s, r: s.begin_read()),
    (6, lambda s: s.read is not None, lambda s, r: s.end_read(r.choice((1.0, 1.0, 1.0, 0.5, 0.0)))),
    (2, lambda s: True, lambda s, r: s.pump()),
    (3, lambda s: bool(s.left), lambda s, r: s.ack(r.randrange(200), r.randint(1, 3), r.randint(1, 5))),
    (3, lambda s: any(s.left), lambda s, r: s.ack_oldest()),
    (2, lambda s: any(s.left), lambda s, r: s.ack_partly(r.randrange(200), r.randrange(8))),
    (1, lambda s: bool(s.left), lambda s, r: s.ack_up_to(min(r.randrange(200), r.randrange(200)))),
    (
        4,
        lambda s: bool(s.consumers and s.left),
        lambda s, r: s.nack(r.randrange(4), [r.randrange(200) for _ in range(6)], r.random() < 0.3),
    ),
]


def walk(seed: int, step_count: int) -> None:
    """One random walk; a failure names the seed."""
    chance = random.Random(seed)
    machine = Subscription()
    machine.begin(shared=chance.random() < 0.75, limit=chance.choice((0, 0, 1, 8)))
    weights = [weight for weight, _, _ in STEPS]
    for _, possible, take in chance.choices(STEPS, weights, k=step_count):
        if possible(machine):
            take(machine, chance)
            machine.the_dispatcher_agrees_with_itself_and_with_the_model()
            machine.nothing_is_lost()
        elif chance.random() < 0.01:
            machine.reset()


def walk_many(first_seed: int, count: int, step_count: int) -> None:
    for seed in range(first_seed, first_seed + count):
        try:
            walk(seed, step_count)
        except Exception as error:
            error.add_note(f"found by walk(seed={seed}, step_count={step_count})")
            raise


def test_dispatchers_do_what_the_model_says() -> None:
    run_state_machine_as_test(Subscription, settings=QUICK)


def test_dispatchers_do_what_the_model_says_on_random_walks() -> None:
    walk_many(FUZZ_SEED, 100, 100)


@pytest.mark.long
def test_dispatchers_do_what_the_model_says_for_long() -> None:
    run_state_machine_as_test(Subscription, settings=LONG)


@pytest.mark.long
def test_dispatchers_do_what_the_model_says_on_many_random_walks() -> None:
    walk_many(FUZZ_SEED, 10 * FUZZ_EXAMPLES, 150)
