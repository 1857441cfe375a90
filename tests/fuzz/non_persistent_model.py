"""A model of dispatch on non-persistent topics, entry by entry, beside the real dispatcher.

What must hold after each run of messages: every entry went to one consumer or was counted as dropped, as often as it holds
messages; whoever got one had a permit and a connection with room at that moment; entries of one consumer are in the order of
publishing. Shared drops only while nobody can take anything, and serves a level only when the better ones cannot; Key_Shared
sends a hash to its owner only; Exclusive and Failover know one active consumer.
"""

from __future__ import annotations

import random

from pybroker.dispatch.consumer_state import ConsumerState, KeySharedOptions
from pybroker.dispatch.dispatcher import Delivery
from pybroker.dispatch.key_shared_dispatcher import KeySharedSettings
from pybroker.dispatch.non_persistent_dispatcher import (
    ExclusiveNonPersistentDispatcher,
    FailoverNonPersistentDispatcher,
    KeySharedNonPersistentDispatcher,
    NonPersistentDispatcher,
    SharedNonPersistentDispatcher,
)
from pybroker.errors import ConsumerAssignError, ConsumerBusy

KINDS = ("Exclusive", "Failover", "Shared", "Key_Shared", "Key_Shared ring", "Key_Shared sticky")
KEY_HASHES = (0, 1, 7, 32_767, 32_768, 40_000, 65_535, 1 << 30)


def new_dispatcher(kind: str) -> NonPersistentDispatcher:
    if kind == "Exclusive":
        return ExclusiveNonPersistentDispatcher()
    if kind == "Failover":
        return FailoverNonPersistentDispatcher("non-persistent://t/n/topic", None)
    if kind == "Shared":
        return SharedNonPersistentDispatcher()
    return KeySharedNonPersistentDispatcher(KeySharedSettings(20 if kind.endswith("ring") else 0, 0, 0))


class Machine:
    """One subscription, driven by `step`; raises AssertionError when the dispatcher breaks a promise."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.dispatcher = new_dispatcher(kind)
        self.permits: dict[ConsumerState, int] = {}
        self.published = 0
        self.delivered = 0

    def step(self, chance: random.Random) -> None:
        consumers = list(self.permits)
        action = chance.random()
        if not consumers or (action < 0.1 and len(consumers) < 5):
            self._join(chance)
        elif action < 0.15:
            leaver = chance.choice(consumers)
            self.dispatcher.remove_consumer(leaver)
            del self.permits[leaver]
        elif action < 0.45:
            consumer, permits = chance.choice(consumers), chance.choice((1, 2, 5, 20))
            consumer.permits += permits
            self.permits[consumer] += permits
        elif action < 0.55:
            consumer = chance.choice(consumers)
            consumer.writable = not consumer.writable
        else:
            self._publish(chance)
        self.dispatcher.check_invariants()
        assert set(self.dispatcher.consumers) == set(self.permits)
        assert all(consumer.permits == permits for consumer, permits in self.permits.items()), "permits went astray"

    def _join(self, chance: random.Random) -> None:
        ranges = None
        if self.kind.endswith("sticky"):
            start = chance.randrange(0, 60_000)
            ranges = [(start, start + chance.randrange(0, 20_000))]
        consumer = ConsumerState(
            f"c{chance.randrange(4)}", chance.choice((0, 0, 1)), 0, None, KeySharedOptions(ranges, False)
        )
        try:
            self.dispatcher.add_consumer(consumer)
        except (ConsumerBusy, ConsumerAssignError):
            return
        self.permits[consumer] = 0

    def _publish(self, chance: random.Random) -> None:
        count = chance.choice((1, 1, 3, 10))
        messages = [chance.choice((1, 1, 4)) for _ in range(count)]
        hashes = [chance.choice(KEY_HASHES) for _ in range(count)]
        payloads = [index.to_bytes(2, "big") for index in range(count)]
        before = self.dispatcher.dropped_messages
        deliveries = self.dispatcher.assign(payloads, list(messages), list(hashes))
        got = self._receivers(deliveries, messages)
        for index, message_count in enumerate(messages):
            self._check_one(got.get(index), hashes[index])
            if index in got:
                self.permits[got[index]] -= message_count
        dropped = sum(messages[index] for index in range(count) if index not in got)
        assert self.dispatcher.dropped_messages - before == dropped, "drops are not counted exactly"
        self.published += sum(messages)
        self.delivered += sum(messages) - dropped
        assert self.published == self.delivered + self.dispatcher.dropped_messages

    def _receivers(self, deliveries: list[Delivery], messages: list[int]) -> dict[int, ConsumerState]:
        got: dict[int, ConsumerState] = {}
        assert len({each.consumer for each in deliveries}) == len(deliveries), "two deliveries to one consumer"
        for each in deliveries:
            indexes = [int.from_bytes(payload, "big") for payload in each.payloads]
            assert indexes == sorted(indexes), "out of order"
            assert each.message_counts == [messages[index] for index in indexes]
            assert each.message_count == sum(each.message_counts)
            for index in indexes:
                assert index not in got, "an entry went to two consumers"
                got[index] = each.consumer
        return got

    def _can_take(self, consumer: ConsumerState) -> bool:
        return self.permits[consumer] > 0 and consumer.writable

    def _check_one(self, receiver: ConsumerState | None, key_hash: int) -> None:
        """Whether that entry went where it had to, by the permits as they were before it."""
        dispatcher = self.dispatcher
        able = [consumer for consumer in self.permits if self._can_take(consumer)]
        if receiver is not None:
            assert receiver in able, "sent to somebody who could not take it"
        if isinstance(dispatcher, KeySharedNonPersistentDispatcher):
            owner = dispatcher.owners.selector.owner(dispatcher.owners.selector.sticky_hashes([key_hash])[0])
            assert receiver is (owner if owner in able else None), "not to the owner of its hash"
        elif dispatcher.active_consumer is not None:
            active = dispatcher.active_consumer
            assert receiver is (active if active in able else None), "not to the active consumer"
        else:
            best = min((consumer.priority_level for consumer in able), default=None)
            assert (receiver.priority_level if receiver else None) == best, "not to the best level"


def walk(kind: str, seed: int, steps: int) -> Machine:
    chance = random.Random(seed)
    machine = Machine(kind)
    for number in range(steps):
        try:
            machine.step(chance)
        except Exception as error:
            raise AssertionError(f"{kind}, seed {seed}, step {number}: {error}") from error
    return machine
