"""Waiting entries of a Key_Shared subscription: ready for one consumer, or parked."""

from __future__ import annotations

import pytest
from tests.unit.dispatch.support import LEDGER, consumer, positions

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.key_shared.keyed_redelivery import KeyedReplay
from pybroker.model.position import Position

A, B = consumer("a"), consumer("b")


@pytest.fixture
def places() -> dict[int, ConsumerState]:
    return {1: A, 2: B}


@pytest.fixture
def replay(places: dict[int, ConsumerState]) -> KeyedReplay:
    replay = KeyedReplay(places.get)
    replay.add(LEDGER, [4, 1, 3, 2, 5], [1, 2, 1, 9, 9])
    return replay


def taken(replay: KeyedReplay, consumer: ConsumerState, most: int = 10, before: Position | None = None) -> list[int]:
    return [position.entry_id for position, _ in replay.take(consumer, most, before)]


def test_each_consumer_gets_its_own_in_order_and_what_is_parked_stays(replay: KeyedReplay) -> None:
    assert len(replay) == 5
    assert {sticky_hash: waiting.count for sticky_hash, waiting in replay.waiting.items()} == {1: 2, 2: 1, 9: 2}
    assert replay.take(A, 1, None) == [(Position(LEDGER, 3), 1)]
    assert taken(replay, A) == [4]
    assert taken(replay, A) == []
    assert taken(replay, B) == [1]
    assert list(replay) == [(Position(LEDGER, 2), 9), (Position(LEDGER, 5), 9)]
    replay.check_invariants()


def test_a_parked_hash_is_ready_as_a_whole_once_somebody_may_have_it(
    replay: KeyedReplay, places: dict[int, ConsumerState]
) -> None:
    assert not replay.unpark(9), "still nobody's"
    assert not replay.unpark(1), "not parked"
    assert not replay.unpark(77), "unknown"
    places[9] = B
    assert replay.unpark(9)
    assert taken(replay, B) == [1, 2, 5]
    replay.check_invariants()


def test_when_owners_change_everything_goes_where_it_belongs(
    replay: KeyedReplay, places: dict[int, ConsumerState]
) -> None:
    places.clear()
    places[9] = A
    replay.replace_all()
    replay.check_invariants()
    assert taken(replay, A) == [2, 5]
    assert taken(replay, B) == []
    assert len(replay) == 3


def test_an_entry_that_waits_already_is_not_counted_twice(replay: KeyedReplay) -> None:
    replay.add(LEDGER, [4, 2, 8], [1, 9, 1])
    assert len(replay) == 6
    replay.check_invariants()


def test_acknowledged_entries_are_forgotten_wherever_they_wait(replay: KeyedReplay) -> None:
    replay.discard(LEDGER, [3, 2, 99, -1])
    replay.discard(LEDGER + 1, [3])
    assert list(map(Position.__str__, (position for position, _ in replay))) == ["5:1", "5:4", "5:5"]
    replay.add(LEDGER + 1, [0], [2])
    replay.add(LEDGER + 2, [0], [2])
    replay.check_invariants()
    replay.discard_up_to(Position(LEDGER, 4))
    assert [position for position, _ in replay] == [*positions(5), Position(LEDGER + 1, 0), Position(LEDGER + 2, 0)]
    replay.discard_up_to(Position(LEDGER + 1, 7))
    assert taken(replay, B) == [0]
    assert not replay
    assert not replay.waiting
    replay.check_invariants()


def test_only_what_lies_in_front_of_a_limit_is_taken(replay: KeyedReplay) -> None:
    replay.add(LEDGER + 1, [0], [1])
    assert taken(replay, A, before=Position(LEDGER, 3)) == []
    assert taken(replay, A, before=Position(LEDGER, 4)) == [3]
    assert taken(replay, A, before=Position(LEDGER + 1, 0)) == [4]
    assert Position(LEDGER + 1, 0) in replay
    assert Position(LEDGER, 4) not in replay
    replay.clear()
    assert len(replay) == 0
