"""Acting on single messages beside a simple model of a subscription: sets of what is acknowledged, held by transactions, delayed.

What must hold after each step, whatever clients and administrators did in between: exactly what somebody acknowledged is
acknowledged; what a transaction holds is refused to others; an entry is with one consumer, or waits, or is acknowledged;
what is due and may go is delivered; what was sent again or brought forward comes, and comes once.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable

from tests.protocol.test_unacked_routes import batch_of
from tests.support.recording_peer import RecordingPeer
from tests.support.transactions import ABORT, COMMIT, txn
from tests.support.world import AsyncWorld
from tests.unit.broker.one_topic import OneTopic, one_topic

from pybroker.broker.delivery import single_messages
from pybroker.broker.delivery.acknowledgement import Acknowledged
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.subscription import Subscription
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.errors import AdminError, TransactionConflict
from pybroker.model.events import Ack, SendRun
from pybroker.model.policies import DelayedDeliveryPolicies, TopicPolicies
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnId
from pybroker.wire.entry_builder import build_entry

KEYS = ("a", "b", "c", "d")
BATCH = 3
LONG_MS = 100_000


STEPS = (
    *("publish", "acknowledge", "acknowledge", "redeliver", "redeliver", "deferred"),
    *("deliver_now", "client_acknowledges", "hold", "end", "join", "leave", "pass_time"),
)


class SingleMessagesWorld(AsyncWorld):
    """One subscription, and which of its messages are acknowledged, held and delayed. A step draws its details from the seed."""

    def __init__(self, seed: int, topic: OneTopic, subscription: Subscription, kind: str) -> None:
        self.random = random.Random(seed)
        self.topic = topic
        self.subscription = subscription
        self.kind = kind
        self.consumers: list[Consumer] = []
        self.names = 0
        self.left: dict[Position, int] = {}  # bits of the messages that are not acknowledged; 0 when all are
        self.batches: set[Position] = set()
        self.due: dict[Position, int] = {}  # of what is delayed
        self.held: dict[Position, TxnId] = {}
        self.transactions = 0

    @property
    def now_ms(self) -> int:
        return self.topic.runtime.moved.now_ms

    @property
    def dispatcher(self) -> MultiConsumerDispatcher:
        dispatcher = self.subscription.dispatcher
        assert isinstance(dispatcher, MultiConsumerDispatcher)
        return dispatcher

    def holder(self, position: Position) -> Consumer | None:
        state = self.dispatcher.pending.holder(position)
        return None if state is None else single_messages.consumer_of(state)

    async def start(self) -> None:
        await self.join()

    async def perform(self, name: str) -> None:
        await super().perform(name)
        await self.settled()

    async def settled(self) -> None:
        await self.topic.pumped()
        self.topic.runtime.move(200)  # timers of released hashes
        self.subscription.wake()
        await self.topic.pumped()

    def check(self) -> None:
        state, delayed = self.subscription.cursor.state, self.subscription.delayed
        self.dispatcher.check_invariants()
        state.check_invariants()
        delayed._index.check_invariants()
        delayed._changed.check_invariants()
        assert delayed._has_changed == bool(delayed._changed)
        for position, left in self.left.items():
            assert state.is_deleted(*position) == (left == 0), f"{position} is acknowledged, or not, as nobody said"
            holder = self.holder(position)
            if not left:
                assert holder is None, f"{position} is acknowledged and held"
                assert not delayed.is_waiting(position), f"{position} is acknowledged and delayed"
                continue
            if position in self.batches:
                assert (state.remaining_messages(*position) or BATCH) == left.bit_count(), (
                    "a message of a batch too many"
                )
            is_due = self.due.get(position, 0) <= self.now_ms
            assert holder is None or is_due, f"{position} was delivered before its time"
            if holder is None and is_due and position not in self.held and self.consumers:
                assert self.kind == "Key_Shared", f"{position} is due and nobody has it"

    def some(self) -> Position | None:
        """An entry, mostly one that is not acknowledged."""
        left = [each for each, bits in self.left.items() if bits]
        positions = left if left and self.random.random() < 0.9 else list(self.left)
        return self.random.choice(positions) if positions else None

    # --- what clients do ---------------------------------------------------------------------------------------------

    async def publish(self) -> None:
        peer = RecordingPeer()
        producer = self.topic.producer(peer, f"p{id(peer)}")
        run = SendRun(1)
        dues = []
        for index in range(self.random.randrange(1, 4)):
            is_batch = self.random.random() < 0.3
            due_ms = self.now_ms + LONG_MS if not is_batch and self.random.random() < 0.4 else 0
            key = self.random.choice(KEYS)
            entry = (
                batch_of([key] * BATCH) if is_batch else build_entry("p", index, 0, b"x", key=key, deliver_at_ms=due_ms)
            )
            dues.append((due_ms, is_batch))
            run.sequence_ids.append(index)
            run.highest_sequence_ids.append(0)
            run.message_counts.append(BATCH if is_batch else 1)
            run.payloads.append(entry)
        run.size_bytes = sum(map(len, run.payloads))
        self.topic.topic.publish(producer, run)
        await producer.drained()
        producer.detach()
        for position, (due_ms, is_batch) in zip(peer.receipts, dues, strict=True):
            self.left[position] = (1 << BATCH) - 1 if is_batch else 1
            if is_batch:
                self.batches.add(position)
            if due_ms:
                self.due[position] = due_ms

    async def client_acknowledges(self) -> None:
        position = self.some()
        holder = None if position is None else self.holder(position)
        if position is None or holder is None or position in self.held:
            return
        ack = Ack(holder.consumer_id)
        ack.groups = [(position.ledger_id, [position.entry_id])]
        self.subscription.acknowledge(holder, ack)
        self.left[position] = 0

    async def join(self) -> None:
        if len(self.consumers) < 3:
            self.names += 1
            consumer = Consumer(self.subscription, self.names, f"c{self.names}", 0, 0, RecordingPeer(), {}, 0)
            self.topic.topic.attach(self.subscription, consumer, self.kind)
            consumer.flow(1 << 30)
            self.consumers.append(consumer)

    async def leave(self) -> None:
        if len(self.consumers) > 1:
            self.consumers.pop(self.random.randrange(len(self.consumers))).close_from_broker()

    async def hold(self) -> None:
        position = self.some()
        if position is None or position in self.held or not self.left[position]:
            return
        self.transactions += 1
        of = txn(self.transactions)
        groups = ((position.ledger_id, [position.entry_id]),)
        assert self.subscription.transactions.hold(of, Acknowledged(None, groups)) is None
        self.held[position] = of

    async def end(self) -> None:
        if self.held:
            position = self.random.choice(sorted(self.held))
            is_commit = self.random.random() < 0.5
            await self.subscription.end_transaction(self.held.pop(position), COMMIT if is_commit else ABORT, 0)
            if is_commit:
                self.left[position] = 0

    async def pass_time(self) -> None:
        self.topic.runtime.move(self.random.choice((1_000, LONG_MS)))

    # --- what an administrator does ----------------------------------------------------------------------------------

    async def acknowledge(self) -> None:
        position = self.some()
        if position is None:
            return
        index = self.random.randrange(BATCH) if position in self.batches and self.random.random() < 0.7 else None
        is_refused = False
        try:
            await single_messages.acknowledge(self.subscription, position, index)
        except TransactionConflict:
            is_refused = True
        assert is_refused == (position in self.held and self.left[position] > 0), (
            "refused, or not, as the model does not"
        )
        if not is_refused:
            self.left[position] &= 0 if index is None else ~(1 << index)

    async def redeliver(self) -> None:
        position = self.some()
        if position is None:
            return
        holder = self.holder(position)
        may = self.left[position] > 0 and holder is not None and position not in self.held
        delivered_before = self._deliveries(position)
        try:
            single_messages.redeliver(self.subscription, position)
        except (AdminError, TransactionConflict):
            assert not may, f"{position} is held, and is not sent again"
            return
        assert may, f"{position} is sent again, and nobody held it"
        await self.settled()
        now_at = self.holder(position)
        if now_at is not None:
            assert self._deliveries(position) == delivered_before + 1, "it comes once more, and no more than once"

    def _deliveries(self, position: Position) -> int:
        peers = [each.peer for each in self.consumers]
        return sum(peer.delivered.count(position) for peer in peers if isinstance(peer, RecordingPeer))

    async def deferred(self) -> None:
        position = self.some()
        if position is None:
            return
        due_ms = self.now_ms + self.random.choice((-5, 5_000, 3 * LONG_MS))
        if await self._changed(single_messages.deliver_at(self.subscription, position, due_ms), position):
            self.due[position] = due_ms

    async def deliver_now(self) -> None:
        position = self.some()
        if position is None or not self.subscription.delayed.is_waiting(position):
            return
        if await self._changed(single_messages.deliver_now(self.subscription, position), position):
            self.due[position] = 0

    async def _changed(self, change: Awaitable[None], position: Position) -> bool:
        may = self.left[position] > 0 and self.holder(position) is None and position not in self.held
        try:
            await change
        except (AdminError, TransactionConflict):
            assert not may, f"{position} waits, and its time is not changed"
            return False
        assert may, f"the time of {position} is changed, which does not wait"
        return True

    async def finish(self) -> None:
        """All time passes, all transactions end, one consumer is left: it gets everything that is not acknowledged."""
        while self.held:
            await self.end()
        while len(self.consumers) > 1:
            await self.leave()
        self.topic.runtime.move(10 * LONG_MS)
        await self.settled()
        self.check()
        for position, left in self.left.items():
            assert (self.holder(position) is not None) == (left > 0), f"{position} never comes"


async def walk(seed: int, steps: int) -> None:
    """A random walk of the model; raises when something does not hold."""
    policies = TopicPolicies(delayedDeliveryPolicies=DelayedDeliveryPolicies(active=True, tickTime=1))
    async with one_topic(policies, is_delayed_delivery_deliver_at_time_strict=True) as topic:
        kind = "Shared" if seed % 2 else "Key_Shared"
        world = SingleMessagesWorld(seed, topic, await topic.subscription(), kind)
        try:
            await world.play((world.random.choice(STEPS),) for _ in range(steps))
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}, {kind}: {failure}") from failure
