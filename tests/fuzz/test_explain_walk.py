"""What `explain` says of each message agrees with who has it, whatever was done: random walks of consumers, seeded.

The invariants: every message has one place, and the answer names it; none is said to be on its way while nothing moves.
EXPLAIN_SEED replays one walk, EXPLAIN_WALKS says how many there are.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.fuzz.one_subscription import KEYS, KINDS, SEED, STEPS, SubscriptionWalk, walked_topic, walks
from tests.support.memory_broker import MemoryBroker, acknowledge
from tests.support.recording_peer import RecordingPeer
from tests.support.transactions import ABORT, COMMIT, send, txn

from pybroker.broker.delivery import cursor_moves
from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.explain.messages import MessageQuestion, Reasons, StoredEntry, Want, explain_message
from pybroker.broker.topic.topic import Topic
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.model.events import Ack
from pybroker.model.findings import Code
from pybroker.model.position import Position

WALKS = walks(3)
DONE = {
    Code.ALREADY_ACKNOWLEDGED,
    Code.EXPIRED,
    Code.SKIPPED,
    Code.MARKER,
    Code.MESSAGE_ABORTED,
}
WAITING = {Code.WAITS_FOR_KEY, Code.WAITS_FOR_CONSUMER, Code.WAITS_FOR_REDELIVERY, Code.SET_ASIDE}


class Walk(SubscriptionWalk):
    def __init__(self, broker: MemoryBroker, topic: Topic, kind: str, chance: random.Random) -> None:
        super().__init__(broker, topic, kind, chance)
        self.transactions = 0
        self.seen: Counter[Code] = Counter()

    async def step(self) -> None:
        chance = self.chance
        what = chance.choice(
            ["publish", "publish", "join", "leave", "ack", "ack", "nack", "flow", "skip", "txn", "hold"]
        )
        if what == "publish":
            await self.broker.publish(self.topic, chance.randint(1, 12), KEYS)
        elif what == "join":
            self.join()
        elif self.consumers and what == "leave":
            gone = self.consumers.pop(chance.randrange(len(self.consumers)))
            self.subscription.remove_consumer(gone)
        elif self.consumers and what == "flow":
            chance.choice(self.consumers).flow(chance.randint(1, 8))
        elif self.consumers and what in ("ack", "nack", "hold"):
            consumer = chance.choice(self.consumers)
            peer = consumer.peer
            assert isinstance(peer, RecordingPeer)
            some = chance.sample(peer.delivered, min(len(peer.delivered), chance.randint(1, 5)))
            if what == "ack" and some:
                acknowledge(consumer, some)
            elif what == "nack" and some:
                self.subscription.redeliver(consumer, some, 0)
            elif some:
                self.hold(consumer, some[0])
        elif what == "skip" and chance.random() < 0.3:
            await cursor_moves.skip(self.subscription, chance.randint(1, 4))
        elif what == "txn":
            await self.transaction()

    def hold(self, consumer: Consumer, position: Position) -> None:
        """It acknowledges the message in a transaction that stays open, or ends at once."""
        self.transactions += 1
        ack = Ack(consumer.consumer_id)
        ack.txn = txn(self.transactions)
        ack.groups.append((position.ledger_id, [position.entry_id]))
        self.subscription.acknowledge(consumer, ack)

    async def transaction(self) -> None:
        self.transactions += 1
        of = txn(self.transactions)
        await send(self.broker, self.topic, of, self.chance.randint(1, 3), name=f"p{self.transactions}")
        if self.chance.random() < 0.9:
            await self.topic.end_transaction(of, self.chance.choice([COMMIT, ABORT]), 0)

    async def check(self) -> None:
        """What is said of every message, once nothing moves."""
        await self.broker.until(
            lambda: not self.broker.service.broker_context.pumps and not self.subscription.is_reading
        )
        for row in self.topic.ledger.ledgers.rows():
            for entry_id in range(-1, row.entry_count + 1):
                position = Position(row.ledger_id, entry_id)
                self.agrees(position, self.answer(position))

    def answer(self, position: Position) -> Reasons:
        asked = MessageQuestion(self.topic, self.subscription, position)
        for _ in range(3):
            found = explain_message(asked)
            if isinstance(found, Reasons):
                return found
            assert found is Want.ENTRY
            run = self.topic.ledger.read_cached(position, 1, 1)
            assert run is not None
            asked.known.entry = StoredEntry(run.payloads[0], run.message_counts[0])
        raise AssertionError("asks for the same entry again and again")

    def agrees(self, position: Position, found: Reasons) -> None:
        (finding,) = found.findings
        code, cursor = finding.code, self.subscription.cursor
        self.seen[code] += 1
        assert str(position) in finding.sentence, finding
        dispatcher = self.subscription.dispatcher
        holder = dispatcher.pending.holder(position) if isinstance(dispatcher, MultiConsumerDispatcher) else None
        is_there = self.topic.ledger.ledgers.has_entry(position)
        is_held = is_there and cursor.state.held.holder_of(position) is not None
        if not is_there:
            assert code is Code.MESSAGE_NEVER_EXISTED, finding
        elif cursor.state.is_deleted(*position) or self.topic.ledger.read_limit.is_hidden(position):
            assert code in DONE, finding
        elif is_held:
            assert code is Code.HELD_BY_TRANSACTION, finding
        elif holder is not None:
            assert (code, finding.evidence["consumer"]) == (Code.HELD_BY_CONSUMER, holder.name), finding
        elif not self.topic.ledger.read_limit.readable(position, 1):
            assert code in (Code.MESSAGE_UNCOMMITTED, Code.BEHIND_TRANSACTION), finding
        elif position >= self.topic.ledger.ledgers.normalize(cursor.read_position):
            assert code is Code.NOT_REACHED_YET, finding
        elif isinstance(dispatcher, MultiConsumerDispatcher):
            assert code in WAITING, finding
        else:
            assert code is Code.HELD_BY_CONSUMER, finding
            assert dispatcher is not None
            assert dispatcher.active_consumer is not None
            assert finding.evidence["consumer"] == dispatcher.active_consumer.name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("walk", range(WALKS))
async def test_every_message_is_where_explain_says(kind: str, walk: int) -> None:
    seed = f"{SEED + walk}-{kind}"
    print("EXPLAIN_SEED", seed)
    settings = {"active_consumer_failover_delay_time_millis": 0, "key_shared_unblocking_interval_ms": 0}
    async with walked_topic(**settings) as (broker, topic):
        walked = Walk(broker, topic, kind, random.Random(seed))
        for _ in range(STEPS):
            await walked.step()
            await walked.check()
        assert walked.seen[Code.MESSAGE_PUT_OFF] == 0
        assert len(walked.seen) > 3, walked.seen
