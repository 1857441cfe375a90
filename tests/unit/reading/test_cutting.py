"""Plans cut into ranges."""

import itertools
import random

import pytest

from pybroker.reading.cutting import cut
from pybroker.reading.positions import Place, PlannedLedger, SparsePoint, TopicPlan

MIB = 1 << 20


def plan_of(*ledgers: PlannedLedger) -> TopicPlan:
    return TopicPlan("persistent://a/b/c", Place(1, 0), Place(99, 0), Place(1, 0), ledgers)


def ledger(ledger_id: int, entries: int, size: int, first: int = 0) -> PlannedLedger:
    """Entries of `size` bytes and a point at least every MiB, from entry `first` on."""
    points = [
        SparsePoint(entry, entry * size, entry)
        for entry in range(first + 1, first + entries)
        if entry * size // MIB != (entry - 1) * size // MIB
    ]
    return PlannedLedger(ledger_id, first, first + entries, entries * size, entries, True, tuple(points))


def test_a_ledger_is_cut_into_parts_of_like_size() -> None:
    ranges = cut(plan_of(ledger(5, 100 * 1024, 1024)), 30 * MIB)
    sizes = [each.end_entry_id - each.first_entry_id for each in ranges]
    assert sizes == [25 * 1024] * 4


def test_what_is_smaller_than_the_size_stays_whole() -> None:
    assert len(cut(plan_of(ledger(5, 10, 1024), ledger(6, 100, 1024)), MIB)) == 2
    assert cut(plan_of(), MIB) == []


def test_a_ledger_without_points_stays_whole() -> None:
    open_ledger = PlannedLedger(5, 0, 1000, 100 * MIB, 1000, False)
    assert len(cut(plan_of(open_ledger), MIB)) == 1


def test_entries_that_are_larger_than_a_part_are_cut_one_by_one() -> None:
    ranges = cut(plan_of(ledger(5, 10, 5 * MIB)), MIB)
    assert [(each.first_entry_id, each.end_entry_id) for each in ranges] == [(n, n + 1) for n in range(10)]


@pytest.mark.parametrize("seed", range(50))
def test_the_parts_are_the_whole_and_begin_at_points(seed: int) -> None:
    rng = random.Random(seed)
    ledgers = [
        ledger(number, rng.randint(1, 3000), rng.randint(1, 4000), rng.choice([0, 0, 17, 1000])) for number in range(4)
    ]
    plan = plan_of(*ledgers)
    split = rng.randint(1, 3 * MIB)
    ranges = cut(plan, split)
    assert ranges == cut(plan, split)
    for each in ledgers:
        own = [found for found in ranges if found.ledger_id == each.ledger_id]
        assert own[0].first_entry_id == each.first_entry_id
        assert own[-1].end_entry_id == each.end_entry_id
        for before, after in itertools.pairwise(own):
            assert before.end_entry_id == after.first_entry_id
            assert before.first_entry_id < before.end_entry_id
            assert after.first_entry_id in {point.entry_id for point in each.points}
