"""Which entries are delivered while a cursor's state is too large to be stored."""

from __future__ import annotations

from pybroker.managed_ledger.state_size_limit import StateSizeLimit
from pybroker.model.position import Position

END = Position(5, 10)


def test_nothing_is_limited_while_states_are_stored() -> None:
    limit = StateSizeLimit()
    assert not limit.stored(10)
    assert limit.readable(Position(7, 0), 100) == 100
    assert limit.is_stored
    assert limit.excess is None


def test_entries_behind_the_last_acknowledged_one_wait() -> None:
    limit = StateSizeLimit()
    assert limit.refused(110, 100, 3, END, 1000.0)
    assert limit.readable(Position(4, 50), 100) == 100
    assert limit.readable(Position(5, 0), 100) == 10
    assert limit.readable(Position(5, 0), 4) == 4
    assert limit.readable(END, 100) == 0
    assert limit.readable(Position(6, 0), 100) == 0


def test_pause_ends_below_a_share_of_the_limit_and_keeps_its_start() -> None:
    limit = StateSizeLimit()
    assert limit.refused(110, 100, 3, END, 1000.0)
    assert not limit.refused(120, 100, 4, Position(6, 1), 2000.0)
    assert limit.excess is not None
    assert (limit.excess.since_ms, limit.excess.end, limit.is_stored) == (1000.0, Position(6, 1), False)
    assert not limit.stored(95)
    assert limit.is_stored
    assert limit.readable(Position(7, 0), 1) == 0
    assert limit.stored(90)
    assert limit.readable(Position(7, 0), 1) == 1
    assert not limit.stored(10)
