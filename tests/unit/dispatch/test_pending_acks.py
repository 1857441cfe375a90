"""Pending acks: the entries of one consumer are found without a search through those of the others."""

from __future__ import annotations

import random

from tests.unit.dispatch.support import LEDGER, consumer

from pybroker.dispatch.draining_hashes import DrainingHashes
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.model.position import Position


def test_what_a_consumer_holds_is_listed_once_and_in_the_order_of_delivery() -> None:
    pending, a, b = PendingAcks(), consumer("a"), consumer("b")
    pending.add(a, LEDGER, range(4), [1] * 4)
    pending.add(b, LEDGER, [4, 5], [2, 2])
    pending.add(a, LEDGER + 1, [0], [3])
    pending.remove(LEDGER, [1])
    assert pending.take_back(a, LEDGER, [0, 4]) == ([0], [0])
    pending.add(a, LEDGER, [0], [1])
    assert pending.held_by(a) == {LEDGER: [0, 2, 3], LEDGER + 1: [0]}
    assert pending.held_by(b) == {LEDGER: [4, 5]}
    assert pending.held_by(consumer("c")) == {}
    pending.check_invariants()


def test_the_log_of_deliveries_stays_small_while_entries_are_acknowledged() -> None:
    pending, a = PendingAcks(), consumer("a")
    pending.add(a, LEDGER, [0], [1])  # stays
    for first in range(1, 100_000, 10):
        pending.add(a, LEDGER, range(first, first + 10), [1] * 10)
        pending.remove(LEDGER, range(first, first + 10))
    assert len(pending._logs[a]) <= 101
    assert pending.held_by(a) == {LEDGER: [0]}
    pending.remove(LEDGER, [0])
    pending.forget(a)
    assert not pending._logs


def test_nothing_is_lost_from_the_log_when_it_is_cut() -> None:
    chance = random.Random(3)
    pending, consumers = PendingAcks(), [consumer(name) for name in "abc"]
    held: dict[int, object] = {}
    for entry_id in range(3_000):
        holder = chance.choice(consumers)
        pending.add(holder, LEDGER, [entry_id], [1])
        held[entry_id] = holder
        for acked in chance.sample(sorted(held), min(len(held), chance.choice((0, 1, 2)))):
            pending.remove(LEDGER, [acked])
            del held[acked]
    for each in consumers:
        assert pending.held_by(each).get(LEDGER, []) == [e for e, holder in held.items() if holder is each]
    pending.check_invariants()


def test_every_way_to_stop_holding_an_entry_counts_its_hash_down() -> None:
    draining = DrainingHashes()
    pending, a = PendingAcks(draining), consumer("a")
    pending.add(a, LEDGER, range(6), [1, 1, 4, 1, 1, 1], [7, 7, 7, 7, 8, 7])
    assert pending.hash_counts(a) == {7: 5, 8: 1}
    draining.drain(a, 7, 5)
    pending.remove(LEDGER, [0, 99])
    pending.lower(LEDGER, 2, 1)  # still held
    pending.remove_up_to(Position(LEDGER, 2))
    assert draining.unacked_entries() == 2
    assert pending.take_back(a, LEDGER, [3, 4, 5]) == ([3, 4, 5], [7, 8, 7])
    assert draining.take_freed() == [7]
    assert len(pending) == pending.total_messages == a.unacked_messages == 0


def test_when_an_entry_was_delivered_is_known_while_somebody_holds_it() -> None:
    pending, a, b = PendingAcks(), consumer("a"), consumer("b")
    pending.add(a, LEDGER, range(3), [1] * 3, None, 1_000)
    pending.add(b, LEDGER, [3, 4], [1, 2], [7, 8], 2_000)
    assert pending.lower(LEDGER, 4, 1) is False
    assert [pending.delivered_ms(Position(LEDGER, entry_id)) for entry_id in range(6)] == [
        *[1_000] * 3,
        *[2_000] * 2,
        None,
    ]
    assert pending.hold(Position(LEDGER, 4)) == (b, 1, 8, 2_000)
    assert pending.oldest_delivered_ms(a) == 1_000
    pending.take_back(a, LEDGER, [0, 1])
    pending.add(a, LEDGER, [1], [1], None, 3_000)
    pending.remove(LEDGER, [2])
    # An entry redelivered to the same consumer counts from its last delivery.
    assert pending.oldest_delivered_ms(a) == 3_000
    pending.take_back(a, LEDGER, [1])
    assert pending.oldest_delivered_ms(a) is None
    assert pending.delivered_ms(Position(LEDGER, 1)) is None
    assert pending.oldest_delivered_ms(b) == 2_000


def test_the_oldest_delivery_of_a_consumer_is_right_whatever_was_acknowledged_and_came_back() -> None:
    chance = random.Random(7)
    pending, a = PendingAcks(), consumer("a")
    delivered: dict[int, int] = {}
    for now_ms in range(1_000, 3_000):
        entry_id = chance.randrange(50)
        if entry_id not in delivered:
            pending.add(a, LEDGER, [entry_id], [1], None, now_ms)
            delivered[entry_id] = now_ms
        elif chance.random() < 0.5:
            pending.remove(LEDGER, [entry_id])
            del delivered[entry_id]
        else:
            pending.take_back(a, LEDGER, [entry_id])
            del delivered[entry_id]
        assert pending.oldest_delivered_ms(a) == min(delivered.values(), default=None)
