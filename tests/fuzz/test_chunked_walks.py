"""Chunks of large messages on Shared and Key_Shared, while consumers come, go, stall, acknowledge and give back at random.

What must hold at every step: all chunks of a message that are with anybody are with one consumer. What must hold at the
end: a client acknowledges a message once it has all of it, and so everything is acknowledged. The walk is its own model of
who holds what; a failure names the seed.
"""

from __future__ import annotations

import random

import pytest
from tests.fuzz.dispatch_walks import FUZZ_EXAMPLES, FUZZ_SEED

from pybroker.dispatch.consumer_state import ConsumerState, KeySharedOptions
from pybroker.dispatch.dispatcher import AssignInput, Delivery, ReadPlan, Redelivery
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher, KeySharedSettings
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position

LEDGER = 1
MAX_READ_ENTRIES = 10
STEPS = 150
MOST_PLANS = 2000
Entry = tuple[Chunk | None, int]  # and the hash of its key


def random_topic(chance: random.Random) -> list[Entry]:
    """Messages of one and of several chunks, interwoven; of some the last chunks never came."""
    entries: list[Entry] = []
    unfinished: list[list[Entry]] = []
    for number in range(40):
        key_hash = chance.randint(0, 5) * 9973
        if chance.random() < 0.5:
            count = chance.randint(2, 4)
            unfinished.append([(Chunk(b"m%d" % number, index, count), key_hash) for index in range(count)])
        else:
            entries.append((None, key_hash))
        for _ in range(2):
            if unfinished:
                chunks = chance.choice(unfinished)
                entries.append(chunks.pop(0))
                if not chunks:
                    unfinished.remove(chunks)
    for chunks in unfinished:
        if chance.random() < 0.8:
            entries += chunks
    return entries


class Walk:
    """One subscription and what its consumers do."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.entries = random_topic(chance)
        self.dispatcher, self.options = self._new_dispatcher(chance.choice(("Shared", "Key_Shared", "out of order")))
        self.consumers: list[ConsumerState] = []
        self.holders: dict[int, ConsumerState] = {}
        self.acked: set[int] = set()
        self.read_position = 0
        self.read: tuple[ReadPlan, list[int]] | None = None

    def _new_dispatcher(self, kind: str) -> tuple[SharedDispatcher | KeySharedDispatcher, KeySharedOptions]:
        chance = self.chance
        options = KeySharedOptions(None, kind == "out of order")
        if kind == "Shared":
            # With room for none but the first ones, for some, for all.
            look_ahead_bytes = chance.choice((0, 1, 500, 1300, 1 << 20))
            return SharedDispatcher(RedeliveryCounts(), MAX_READ_ENTRIES, 1 << 20, 3, 0, look_ahead_bytes), options
        settings = KeySharedSettings(chance.choice((0, 10)), chance.choice((0, 3)), chance.choice((0, 8)))
        return KeySharedDispatcher(RedeliveryCounts(), MAX_READ_ENTRIES, 1 << 20, 0, settings), options

    # --- consumers ---------------------------------------------------------------------------------------------------

    def join(self) -> None:
        consumer = ConsumerState(f"c{self.chance.random()}", 0, 0, None, self.options)
        self.apply(self.dispatcher.add_consumer(consumer))
        self.consumers.append(consumer)
        self.dispatcher.flow(consumer, self.chance.randint(0, 5))

    def leave(self) -> None:
        consumer = self.consumers.pop(self.chance.randrange(len(self.consumers)))
        self.holders = {entry: holder for entry, holder in self.holders.items() if holder is not consumer}
        self.apply(self.dispatcher.remove_consumer(consumer))

    def give_back(self) -> None:
        consumer = self.chance.choice(list(self.holders.values()))
        entries = [entry for entry, holder in self.holders.items() if holder is consumer]
        is_all = self.chance.random() < 0.5
        if not is_all:
            entries = self.chance.sample(entries, 1)
        for entry in entries:
            del self.holders[entry]
        positions = None if is_all else [Position(LEDGER, entry) for entry in entries]
        self.apply(self.dispatcher.redeliver(consumer, positions))
        # With one chunk it may have to take back the others of the message.
        pending = self.dispatcher.pending
        self.holders = {entry: holder for entry, holder in self.holders.items() if pending.holds(LEDGER, entry)}

    def acknowledge(self, entries: list[int]) -> None:
        for entry in entries:
            del self.holders[entry]
        self.acked.update(entries)
        self.dispatcher.acked(LEDGER, entries)

    def apply(self, redelivery: Redelivery) -> None:
        if redelivery.rewind:
            self.rewind()

    def rewind(self) -> None:
        self.read_position = next((entry for entry in range(len(self.entries)) if entry not in self.acked), 0)

    # --- reading -----------------------------------------------------------------------------------------------------

    def begin_read(self) -> bool:
        plan = None if self.read else self.dispatcher.next_read()
        if plan is None:
            return False
        if plan.replay is not None:
            assert plan.replay, "a plan to read nothing again"
            self.read = plan, [position.entry_id for position in plan.replay]
            return True
        if plan.scan is None:
            end = min(len(self.entries), self.read_position + plan.max_entries)
            entries = list(range(self.read_position, end))
            self.read_position = end
            if entries:
                self.read = plan, entries
                return True
            plan = self.dispatcher.next_scan()
            if plan is None:
                return False
        assert plan.scan is not None
        first = plan.scan.entry_id
        self.read = plan, list(range(first, min(self.read_position, first + plan.max_entries)))
        return True

    def end_read(self) -> None:
        if self.read is None:
            return
        (plan, entries), self.read = self.read, None
        read, entries = entries, [entry for entry in entries if entry not in self.acked]
        if self.dispatcher.is_void(plan):
            self.rewind()
        elif entries:
            count = len(entries)
            hashes = [self.entries[entry][1] for entry in entries]
            chunks = [self.entries[entry][0] for entry in entries]
            run = AssignInput(
                LEDGER, entries, [b""] * count, [1] * count, None, hashes, chunks if any(chunks) else None
            )
            for delivery in self.dispatcher.assign(plan, run):
                self.deliver(delivery)
        if plan.scan is not None and not self.dispatcher.is_void(plan):
            end = read[-1] + 1 if read else plan.scan.entry_id
            self.dispatcher.scanned(plan, Position(LEDGER, end), is_at_end=end >= self.read_position)
        self.dispatcher.check_invariants()

    def deliver(self, delivery: Delivery) -> None:
        for entry in delivery.entry_ids:
            assert entry not in self.holders
            self.holders[entry] = delivery.consumer
            holders = {self.holders[part] for part in self.parts_of(entry) if part in self.holders}
            assert len(holders) == 1, "chunks of one message are with two consumers"

    def parts_of(self, entry: int) -> list[int]:
        chunk = self.entries[entry][0]
        if chunk is None:
            return [entry]
        return [part for part, (other, _) in enumerate(self.entries) if other is not None and other.uuid == chunk.uuid]

    def pump(self) -> None:
        self.end_read()
        for _ in range(MOST_PLANS):
            if not self.begin_read():
                return
            self.end_read()
        raise AssertionError("plans without end")

    # --- the walk ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        chance = self.chance
        what = chance.random()
        if what < 0.12 and len(self.consumers) < 4:
            self.join()
        elif what < 0.18 and self.consumers:
            self.leave()
        elif what < 0.4 and self.consumers:
            self.dispatcher.flow(chance.choice(self.consumers), chance.randint(1, 6))
        elif what < 0.6 and self.holders:
            held = sorted(self.holders)
            self.acknowledge(chance.sample(held, min(len(held), chance.randint(1, 4))))
        elif what < 0.66 and self.holders:
            self.give_back()
        elif what < 0.7 and self.consumers:
            consumer = chance.choice(self.consumers)
            consumer.writable = not consumer.writable
        elif what < 0.85:
            self.begin_read()
        elif what < 0.95:
            self.end_read()
        else:
            self.pump()
        self.dispatcher.check_invariants()

    def finish(self) -> None:
        """Everybody reads and acknowledges whole messages, and what can never be whole."""
        if not self.consumers:
            self.join()
        while len(self.acked) < len(self.entries):
            for consumer in self.consumers:
                consumer.writable = True
                self.dispatcher.flow(consumer, 50)
            self.pump()
            complete = [entry for entry in self.holders if self.is_complete(entry)]
            assert complete, "everybody waits for something, and nobody gets anything"
            self.acknowledge(complete)

    def is_complete(self, entry: int) -> bool:
        chunk = self.entries[entry][0]
        parts = self.parts_of(entry)
        is_broken = chunk is not None and (len(parts) < chunk.chunk_count or not self.acked.isdisjoint(parts))
        return is_broken or all(part in self.holders for part in parts)


def walk(seed: int) -> None:
    subscription = Walk(seed)
    for _ in range(STEPS):
        subscription.step()
    subscription.finish()


def walk_from(first_seed: int, count: int) -> None:
    for seed in range(first_seed, first_seed + count):
        try:
            walk(seed)
        except Exception as error:
            error.add_note(f"found by the walk with seed={seed}")
            raise


def test_chunks_stay_together_and_nobody_waits_for_ever() -> None:
    walk_from(FUZZ_SEED, 100)


def test_a_hash_of_which_two_consumers_hold_messages_in_part_goes_where_each_chunk_belongs() -> None:
    walk(5104)  # out of order; chunks are acknowledged one by one, and walks seldom meet it


@pytest.mark.long
def test_chunks_stay_together_and_nobody_waits_for_ever_on_many_walks() -> None:
    walk_from(FUZZ_SEED, FUZZ_EXAMPLES)
