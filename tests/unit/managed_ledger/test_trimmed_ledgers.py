"""Reports about trimmed ledgers, beside a model that remembers all of them."""

import random

import pytest

from pybroker.managed_ledger.trimmed_ledgers import MAX_REMEMBERED, TrimmedLedgers
from pybroker.model.position import Position


def test_who_read_everything_of_a_trimmed_ledger_lost_nothing() -> None:
    gone = TrimmedLedgers(2, [(3, 10)])
    assert gone.lost_between(Position(3, 10), Position(7, 5)) == []
    assert gone.lost_between(Position(3, 4), Position(7, 5)) == [(Position(3, 4), Position(3, 10))]
    assert gone.lost_between(Position(3, 4), Position(3, 6)) == [(Position(3, 4), Position(3, 6))]


def test_a_ledger_that_went_from_between_is_told() -> None:
    gone = TrimmedLedgers(0, [(5, 3)])
    assert gone.lost_between(Position(3, 4), Position(9, 0)) == [(Position(5, 0), Position(5, 3))]
    assert gone.lost_between(Position(3, 4), Position(5, 0)) == []


def test_an_empty_ledger_that_went_lost_nothing() -> None:
    assert TrimmedLedgers(0, [(5, 0)]).lost_between(Position(5, 0), Position(9, 0)) == []


def test_a_place_of_an_earlier_topic_has_lost_something() -> None:
    assert TrimmedLedgers(7).lost_between(Position(5, 3), Position(9, 0)) == [(Position(5, 3), None)]


@pytest.mark.parametrize("seed", range(30))
def test_exactly_the_places_are_told_of_that_have_lost_something(seed: int) -> None:
    rng = random.Random(seed)
    counts = {ledger_id: rng.choice([0, 1, 5]) for ledger_id in range(10, 200)}
    gone, gone_ids = TrimmedLedgers(9), set[int]()
    for ledger_id in rng.sample(sorted(counts), rng.randint(0, 180)):
        if rng.random() < 0.5:
            gone.add([(ledger_id, counts[ledger_id])])
        else:  # as after a restart
            gone = TrimmedLedgers(gone.until, gone.with_rows([(ledger_id, counts[ledger_id])]).rows)
            gone = TrimmedLedgers(gone.until, gone.rows)
        gone_ids.add(ledger_id)
    assert len(gone.rows) <= MAX_REMEMBERED
    end = Position(300, 0)
    for ledger_id, count in counts.items():
        for entry_id in {0, count // 2, count}:
            start = Position(ledger_id, entry_id)
            lost = any(
                counts[each] and (each > ledger_id or (each == ledger_id and entry_id < count)) for each in gone_ids
            )
            told = bool(gone.lost_between(start, end))
            if ledger_id > gone.until or told:
                assert told == lost, start
