"""Dispatchers against a simple model of a subscription.

What must hold at every step, whatever consumers do: an entry that was read and is not acknowledged is held by one consumer,
waits to be sent again, or is being read; what waits comes before new reads and in order; nobody gets what it cannot take;
counts are those of the model; and while somebody can take entries, the pump leaves nothing behind and is woken.
This is the model of Exclusive, Failover and Shared; `key_shared_model.py` derives that of Key_Shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import AssignInput, Delivery, Dispatcher, ReadPlan, Redelivery
from pybroker.dispatch.failover import FailoverDispatcher
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.dispatch.single_active import ExclusiveDispatcher
from pybroker.errors import ConsumerBusy
from pybroker.model import ack_set
from pybroker.model.position import Position

ENTRIES_PER_LEDGER = 7
TURN = 3
PARTITION = 5
KINDS = ("Exclusive", "Failover", "Shared", "Shared")


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
        self.delayed: set[int] = set()  # read, and not due yet; Key_Shared's model alone has such
        self.read_position = 0
        self.last_sent = -1
        self.consumers: list[ModelConsumer] = []
        self.blocked = False
        self.limit = 0
        self.names = 0
        self.read: Read | None = None
        self.tracker = RedeliveryCounts()
        self.is_woken = False  # whether the subscription is about to pump
        self.is_starting = False  # Failover: the delay after a change of the active consumer
        self.active: ModelConsumer | None = None
        self.dispatcher: Dispatcher = ExclusiveDispatcher(self.tracker, 10, 1 << 20)

    # --- the model ---------------------------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """Whether several consumers get entries, so that it is known who holds what."""
        return self.dispatcher.kind in ("Shared", "Key_Shared")

    @property
    def is_failover(self) -> bool:
        return self.dispatcher.kind == "Failover"

    @property
    def unacked(self) -> int:
        return sum(self.left[entry].bit_count() for entry in self.holders)

    def takers(self) -> list[ModelConsumer]:
        """Who gets entries at all."""
        if not self.is_failover:
            return self.consumers
        return [] if self.is_starting or self.active is None else [self.active]

    def listed(self) -> set[int]:
        """What of the entries that wait the dispatcher keeps one by one: all, unless it may set some aside."""
        return self.waiting

    def can_move(self) -> bool:
        return not self.blocked and any(consumer.can_take() for consumer in self.takers())

    def elect(self) -> None:
        """Failover: who is active now. A change stops everything until `start`."""
        former = self.active
        best = min((consumer.state.priority_level for consumer in self.consumers), default=0)
        candidates = [consumer for consumer in self.consumers if consumer.state.priority_level == best]
        candidates.sort(key=lambda consumer: consumer.state.name)
        self.active = candidates[PARTITION % len(candidates)] if candidates else None
        if self.active is not former:
            self.is_starting = self.active is not None

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
            self.delayed.discard(entry)
            self.counts[entry] = 0
        self.settle_subscription_limit()

    # --- consumers ---------------------------------------------------------------------------------------------------

    @initialize(kind=st.sampled_from(KINDS), limit=st.sampled_from([0, 0, 1, 8]))
    def begin(self, kind: str, limit: int) -> None:
        self.new_dispatcher(kind, limit)

    def new_dispatcher(self, kind: str, limit: int) -> None:
        if kind == "Shared":
            self.dispatcher = SharedDispatcher(self.tracker, 10, 1 << 20, TURN, limit)
        elif kind == "Failover":
            self.dispatcher = FailoverDispatcher(self.tracker, 10, 1 << 20, "topic", PARTITION)
        else:
            self.dispatcher = ExclusiveDispatcher(self.tracker, 10, 1 << 20)
        self.limit = limit if kind == "Shared" else 0
        self.rewind()

    @precondition(lambda self: not self.consumers)
    @rule(kind=st.sampled_from(KINDS), limit=st.sampled_from([0, 1, 8]))
    def change_type(self, kind: str, limit: int) -> None:
        self.new_dispatcher(kind, limit)

    @precondition(lambda self: self.is_failover)
    @rule()
    def start(self) -> None:
        """The delay after a change of the active consumer is over; asked for or not."""
        redelivery = self.dispatcher.start()
        assert redelivery.rewind == self.is_starting
        if self.is_starting:
            assert list(redelivery.notices) == [(c.state, c is self.active) for c in self.consumers]
            self.is_starting = False
            self.apply(redelivery)

    @precondition(lambda self: len(self.consumers) < 4)
    @rule(priority=st.sampled_from([0, 0, 1]), limit=st.sampled_from([0, 0, 1, 6]), permits=st.integers(0, 8))
    def join(self, priority: int, limit: int, permits: int) -> None:
        self.names += 1
        consumer = ModelConsumer(ConsumerState(f"c{self.names}", priority, limit if self.is_shared else 0, None))
        try:
            redelivery = self.dispatcher.add_consumer(consumer.state)
        except ConsumerBusy:
            assert self.dispatcher.kind == "Exclusive"
            assert self.consumers
            return
        assert self.dispatcher.kind != "Exclusive" or not self.consumers
        former = self.active
        self.consumers.append(consumer)
        if self.is_failover:
            self.change_active(redelivery)
            assert list(redelivery.notices) == ([(consumer.state, False)] if self.active is former else [])
        if redelivery.rewind:
            self.rewind()
        if permits:
            self.flow(consumer, permits)

    def change_active(self, redelivery: Redelivery) -> None:
        """After the consumers of a Failover subscription changed."""
        was_starting, former = self.is_starting, self.active
        self.elect()
        assert redelivery.rewind == (self.active is None)
        assert redelivery.start_later == (self.active not in (None, former) and not was_starting)

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
        if self.is_failover:
            self.change_active(redelivery)
        self.apply(redelivery)

    def apply(self, redelivery: Redelivery) -> None:
        if redelivery.rewind:
            self.rewind()
            if self.is_shared:
                self.blocked = False
        if self.is_failover and not redelivery.rewind:
            return  # Nothing was stopped.
        assert redelivery.wake or not self.can_move(), "somebody can move, and nobody is woken"

    @precondition(lambda self: self.consumers)
    @rule(index=st.integers(0, 3), permits=st.integers(1, 12))
    def add_permits(self, index: int, permits: int) -> None:
        self.flow(self.choose(index), permits)

    def flow(self, consumer: ModelConsumer, permits: int) -> None:
        woken = self.dispatcher.flow(consumer.state, permits)
        consumer.permits += permits
        assert woken == (consumer.can_take() and consumer in self.takers() and not self.blocked)

    @precondition(lambda self: self.consumers)
    @rule(index=st.integers(0, 3), writable=st.booleans())
    def stall(self, index: int, writable: bool) -> None:
        self.choose(index).state.writable = writable
        self.is_woken = self.is_woken or writable

    # --- reading -----------------------------------------------------------------------------------------------------

    @rule(counts=st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=1, max_size=6))
    def publish(self, counts: list[int]) -> None:
        self.message_counts += counts
        self.left += [ack_set.full(count) for count in counts]
        self.counts += [0] * len(counts)
        self.is_woken = True

    @precondition(lambda self: self.read is None)
    @rule()
    def begin_read(self) -> None:
        plan = self.dispatcher.next_read()
        self.check_plan(plan)
        if plan is None:
            return
        assert plan.max_entries > 0
        read = self.read = Read(plan)
        if plan.replay is not None:
            read.entries = [entry_at(*position) for position in plan.replay]
            self.waiting -= set(read.entries)
        else:
            end = min(len(self.left), self.read_position + plan.max_entries)
            read.entries = list(range(self.read_position, end))

    def check_plan(self, plan: ReadPlan | None) -> None:
        assert (plan is not None) == self.can_move()
        if plan is None:
            return
        if plan.replay is None:
            assert not self.waiting, "new entries are read before those that wait"
        else:
            entries = [entry_at(*position) for position in plan.replay]
            assert entries
            assert entries == sorted(self.waiting)[: plan.max_entries]

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
                gone = [position for position in plan.replay if not self.left[entry_at(*position)]]
                for ledger_id, entry_id in gone:
                    self.dispatcher.acked(ledger_id, [entry_id])

    def is_replaying(self) -> bool:
        """Whether a replay is under way that has not brought all yet."""
        return self.read is not None and self.read.plan.replay is not None and bool(self.read.entries)

    @precondition(lambda self: self.is_replaying())
    @rule()
    def read_one_ledger(self) -> None:
        """A replay that goes to the store brings one ledger after the other, and much may happen in between."""
        assert self.read is not None
        plan, entries = self.read.plan, self.read.entries
        first = [entry for entry in entries if position_of(entry).ledger_id == position_of(entries[0]).ledger_id]
        self.read.entries = entries[len(first) :]
        if not self.dispatcher.is_void(plan):
            self.waiting |= {entry for entry in first if self.left[entry]}
        self.assign(plan, first)

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
                self.key_hashes(kept),
            )
            deliveries = self.dispatcher.assign(plan, run)
            if self.dispatcher.is_void(plan):
                assert not deliveries, "a void read was delivered"
                continue
            if self.is_shared and plan.scan is None:
                self.waiting |= set(kept) - self.holders.keys()
            sent = [pair for delivery in deliveries for pair in self.deliver(delivery)]
            for entry, consumer in sorted(sent, key=lambda pair: pair[0]):
                self.send(entry, consumer)
            if self.is_shared:
                self.check_left_over(self.waiting & set(kept))
            else:
                assert [entry_at(ledger_id, e) for d in deliveries for e in d.entry_ids] == kept

    def key_hashes(self, entries: list[int]) -> list[int] | None:
        return None

    def check_left_over(self, entries: set[int]) -> None:
        assert not (entries and self.can_move()), "an entry found no taker though somebody can take it"

    def deliver(self, delivery: Delivery) -> list[tuple[int, ModelConsumer]]:
        """Check a delivery as a whole; its entries and their consumer, for types that track them."""
        consumer = next(c for c in self.consumers if c.state is delivery.consumer)
        entries = [entry_at(delivery.ledger_id, entry_id) for entry_id in delivery.entry_ids]
        assert delivery.payloads == [b"%d" % entry for entry in entries]
        assert delivery.message_counts == [self.message_counts[entry] for entry in entries]
        counts = [self.counts[entry] if self.is_shared else 0 for entry in entries]
        assert (delivery.redelivery_counts or [0] * len(entries)) == counts
        spent = sum(self.left[entry].bit_count() for entry in entries)
        assert delivery.message_count == spent
        if not self.is_shared:
            assert consumer in self.takers(), "sent to a consumer that is not active"
            assert all(entry > self.last_sent for entry in entries), "sent a second time without a rewind"
            assert not any(self.left[self.last_sent + 1 : entries[0]]), "an entry was passed over"
            self.last_sent = entries[-1]
            consumer.permits -= spent
            return []
        self.check_choice(consumer, entries)
        return [(entry, consumer) for entry in entries]

    def send(self, entry: int, consumer: ModelConsumer) -> None:
        assert consumer.can_take(), "sent to a consumer that cannot take it"
        assert not self.blocked, "sent although the subscription is at its limit"
        assert entry in self.waiting, "sent although somebody holds it"
        self.waiting.discard(entry)
        self.check_turn(consumer, entry)
        consumer.permits -= self.left[entry].bit_count()
        self.hold(entry, consumer)

    def check_choice(self, consumer: ModelConsumer, entries: list[int]) -> None:
        assert len(entries) <= TURN

    def check_turn(self, consumer: ModelConsumer, entry: int) -> None:
        better = [c for c in self.consumers if c.state.priority_level < consumer.state.priority_level]
        assert not any(c.can_take() for c in better), "a better consumer was passed over"

    def has_more(self) -> bool:
        """Whether the pump goes on."""
        return self.can_move() and bool(self.waiting or self.read_position < len(self.left))

    @rule()
    def pump(self) -> None:
        """Everything that can move does."""
        if self.read is not None:
            self.end_read(1.0)
        while self.has_more():
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
        self.after_acknowledgement(woken)

    def after_acknowledgement(self, woken: bool) -> None:
        self.is_woken = self.is_woken or woken

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
        self.after_acknowledgement(woken)

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
        assert redelivery.rewind == (not self.is_shared and consumer in (*self.takers(), self.active))
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
        self.is_woken = True

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def the_dispatcher_agrees_with_itself_and_with_the_model(self) -> None:
        dispatcher = self.dispatcher
        dispatcher.check_invariants()
        assert dispatcher.consumers == [consumer.state for consumer in self.consumers]
        assert dispatcher.replay_entry_count == len(self.listed())
        assert dispatcher.unacked_messages == self.unacked
        assert dispatcher.blocked == self.blocked
        for consumer in self.consumers:
            assert consumer.state.permits == consumer.permits
            assert consumer.state.unacked_messages == consumer.unacked
            assert consumer.state.blocked == consumer.blocked
        if isinstance(dispatcher, MultiConsumerDispatcher):
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
            places = (entry in self.holders) + (entry in self.waiting) + (entry in self.delayed)
            assert places <= 1
            assert places or not self.left[entry] or entry in reading, f"entry {entry} is lost"

    def check(self) -> None:
        """All invariants, for a driver that is not hypothesis."""
        self.the_dispatcher_agrees_with_itself_and_with_the_model()
        self.nothing_is_lost()
