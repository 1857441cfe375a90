"""`explain` names a finding that waits exactly when an entry waits that somebody could have: random walks of consumers, seeded.

Who has what is judged entry by entry, by the cursor and by who holds it. EXPLAIN_SEED replays a walk, EXPLAIN_WALKS says how many.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.fuzz.one_subscription import KEYS, KINDS, SEED, STEPS, SubscriptionWalk, walked_topic, walks
from tests.support.findings import at_once
from tests.support.memory_broker import MemoryBroker, acknowledge

from pybroker.broker.explain.subscriptions import explain_consumer, explain_key, explain_subscription
from pybroker.broker.topic.topic import Topic
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.model.findings import Code, is_waiting
from pybroker.model.position import Position

WALKS = walks(2)


class Walk(SubscriptionWalk):
    def __init__(self, broker: MemoryBroker, topic: Topic, kind: str, chance: random.Random) -> None:
        super().__init__(broker, topic, kind, chance)
        self.waited = 0
        self.rested = 0

    async def step(self) -> None:
        weights = {
            self.come: 2,
            self.leave: 1,
            self.publish: 4,
            self.ask: 4,
            self.acknowledge: 6,
            self.give_back: 1,
            self.stop_reading: 1,
            self.skip: 0.3,
            self.take_all: 1,
        }
        (what,) = self.chance.choices(list(weights), list(weights.values()))
        await what()
        await self.settle()
        self.judge()

    async def come(self) -> None:
        if consumer := self.join(self.chance.choice([0, 0, 3])):
            consumer.flow(self.chance.choice([0, 1, 2, 100]))

    async def leave(self) -> None:
        if self.consumers:
            self.consumers.pop(self.chance.randrange(len(self.consumers))).detach()

    async def publish(self) -> None:
        await self.broker.publish(self.topic, self.chance.randrange(1, 8), self.chance.sample(KEYS, 5))

    async def ask(self) -> None:
        if self.consumers:
            self.chance.choice(self.consumers).flow(self.chance.choice([1, 2, 5, 50]))

    async def acknowledge(self) -> None:
        if self.consumers:
            consumer = self.chance.choice(self.consumers)
            sent = list(dict.fromkeys(consumer.peer.delivered))  # type: ignore[attr-defined]
            state = self.subscription.cursor.state
            left = [position for position in sent if not state.is_deleted(*position)]
            acknowledge(consumer, self.chance.sample(left, self.chance.randint(0, len(left))))

    async def give_back(self) -> None:
        if self.consumers:
            consumer = self.chance.choice(self.consumers)
            consumer.subscription.redeliver(consumer, None, 0)

    async def stop_reading(self) -> None:
        if self.consumers:
            consumer = self.chance.choice(self.consumers)
            consumer.set_writable(not consumer.state.writable)

    async def take_all(self) -> None:
        for consumer in self.consumers:
            consumer.set_writable(True)
            consumer.flow(1000)

    async def skip(self) -> None:
        await self.broker.rest("POST", "/persistent/public/default/t/subscription/s/skip/2")

    async def settle(self) -> None:
        """Until nothing is about to move."""
        for _ in range(3):
            await asyncio.sleep(0)
            await self.broker.until(
                lambda: (
                    not (self.subscription.is_queued or self.subscription.is_reading)
                    and not self.subscription._is_waking_soon
                )
            )

    def undelivered(self) -> list[Position]:
        """Entries that somebody could have and nobody has."""
        subscription, cursor = self.subscription, self.subscription.cursor
        left = [
            Position(row.ledger_id, entry_id)
            for row in self.topic.ledger.ledgers.rows()
            for entry_id in range(row.entry_count)
            if not cursor.state.is_deleted(row.ledger_id, entry_id)
        ]
        dispatcher = subscription.dispatcher
        if not subscription.consumers or dispatcher is None:
            return left
        if isinstance(dispatcher, MultiConsumerDispatcher):
            return [position for position in left if dispatcher.pending.holder(position) is None]
        return [position for position in left if position >= cursor.read_position]

    def judge(self) -> None:
        subscription = self.subscription
        waits = bool(self.undelivered())
        findings = at_once(explain_subscription(self.topic, subscription))
        assert is_waiting(findings) == waits, f"{len(self.undelivered())} wait, found is {findings}"
        assert len({finding.code for finding in findings}) == len(findings)
        if waits and not subscription.consumers:
            assert [finding.code for finding in findings] == [Code.NO_CONSUMERS]
        self.waited += waits
        self.rested += not waits
        for consumer in self.consumers:
            of_one = at_once(explain_consumer(self.topic, subscription, consumer.name))
            assert waits or not is_waiting(of_one)
        dispatcher = subscription.dispatcher
        if isinstance(dispatcher, KeySharedDispatcher) and self.consumers:
            for sticky_hash in dispatcher.waiting.waiting:
                assert is_waiting(at_once(explain_key(self.topic, subscription, sticky_hash)))


@pytest.mark.parametrize("walk", range(WALKS))
@pytest.mark.parametrize("kind", KINDS)
async def test_a_finding_waits_exactly_when_an_entry_does(kind: str, walk: int) -> None:
    settings = {"active_consumer_failover_delay_time_millis": 1, "key_shared_unblocking_interval_ms": 1}
    async with walked_topic(**settings) as (broker, topic):
        made = Walk(broker, topic, kind, random.Random(f"{kind} {SEED + walk}"))
        for number in range(STEPS):
            try:
                await made.step()
            except AssertionError as error:
                raise AssertionError(f"EXPLAIN_SEED={SEED + walk}, {kind}, step {number}: {error}") from error
        assert made.waited + made.rested == STEPS
