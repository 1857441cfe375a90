"""Neighbours find the last reads, within the limit."""

from __future__ import annotations

import random

from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.cache.recent_reads import MAX_RUNS, RecentReads
from pybroker.model.position import Position


def run_of(ledger_id: int, first_entry_id: int, sizes: list[int]) -> EntryRun:
    return EntryRun(ledger_id, first_entry_id, [bytes(size) for size in sizes], [1] * len(sizes))


def test_a_neighbour_finds_the_run_that_holds_its_entry() -> None:
    reads = RecentReads(1000)
    run = run_of(1, 10, [10, 10, 10])
    reads.put(run)
    assert reads.find(Position(1, 10)) is reads.find(Position(1, 12)) is run
    assert reads.find(Position(1, 9)) is reads.find(Position(1, 13)) is reads.find(Position(2, 10)) is None


def test_who_was_put_in_first_leaves_first() -> None:
    reads = RecentReads(25)
    for first in (0, 1, 2):
        reads.put(run_of(1, first, [10]))
    assert reads.find(Position(1, 0)) is None
    assert reads.find(Position(1, 2)) is not None


def test_a_run_larger_than_the_bound_pushes_nobody_out() -> None:
    reads = RecentReads(25)
    reads.put(run_of(1, 0, [10]))
    reads.put(run_of(1, 1, [26]))
    assert reads.find(Position(1, 0)) is not None
    assert reads.find(Position(1, 1)) is None


def test_many_tiny_runs_are_bounded_by_their_number() -> None:
    reads = RecentReads(1 << 20)
    for first in range(MAX_RUNS + 10):
        reads.put(run_of(first, 0, [1]))
    reads.check_invariants()
    assert reads.find(Position(9, 0)) is None
    assert reads.find(Position(10, 0)) is not None


def test_the_sums_hold_on_any_walk() -> None:
    chances = random.Random(7)
    reads = RecentReads(500)
    for _ in range(2000):
        if chances.random() < 0.1:
            reads.drop_ledger(chances.randrange(4))
        else:
            sizes = [chances.randrange(60) for _ in range(chances.randrange(1, 6))]
            reads.put(run_of(chances.randrange(4), chances.randrange(100), sizes))
        reads.check_invariants()
