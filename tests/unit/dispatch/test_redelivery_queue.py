"""Positions that wait for redelivery, and redelivery counts."""

from __future__ import annotations

from pybroker.dispatch.redelivery_queue import RedeliveryCounts, ReplaySet
from pybroker.model.position import LATEST, Position


def test_positions_are_taken_in_rising_order_and_once() -> None:
    replay = ReplaySet()
    replay.add(7, [3, 1])
    replay.add(5, [9, 2])
    replay.add(5, [2])
    replay.add(6, [])
    assert len(replay) == 4
    assert Position(7, 1) in replay
    assert replay.take(3) == [(5, 2), (5, 9), (7, 1)]
    assert replay.take(3) == [(7, 3)]
    assert not replay
    assert replay.take(3) == []


def test_positions_can_be_discarded_singly_and_up_to_one() -> None:
    replay = ReplaySet()
    for ledger_id in (5, 6, 7):
        replay.add(ledger_id, range(4))
    replay.discard(6, [0, 1, 2, 3])
    replay.discard(6, [0])
    replay.discard(7, [0, -1, 1 << 40])
    replay.discard_up_to(Position(5, 2))
    assert replay.take(10) == [(5, 3), (7, 1), (7, 2), (7, 3)]
    replay.add(5, [1])
    replay.discard_up_to(LATEST)
    assert not replay


def test_entries_without_a_count_cost_nothing() -> None:
    counts = RedeliveryCounts()
    counts.increase(5, [])
    assert not counts
    assert counts.column(5, range(100)) is None


def test_counts_add_up_until_an_entry_is_forgotten() -> None:
    counts = RedeliveryCounts()
    counts.increase(5, [1, 2])
    counts.increase(5, [2])
    assert counts.column(5, [0, 1, 2, 3]) == [0, 1, 2, 0]
    assert counts.column(5, [3, 4]) is None
    assert counts.column(6, [1]) is None
    counts.forget(5, [2])
    assert counts.column(5, [1, 2]) == [1, 0]
    counts.clear()
    assert not counts


def test_forgetting_up_to_a_position_keeps_what_is_behind_it() -> None:
    counts = RedeliveryCounts()
    counts.increase(5, [1, 9])
    counts.increase(6, [1, 2])
    counts.forget_up_to(Position(6, 1))
    assert counts.column(5, [1, 9]) is None
    assert counts.column(6, [1, 2]) == [0, 1]
    counts.forget(6, [2, 3])
    assert not counts
