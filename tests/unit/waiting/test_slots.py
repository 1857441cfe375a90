"""Places: who comes when they are taken, and who makes way."""

from __future__ import annotations

from pybroker.waiting.slots import Admission, Slots


def test_the_one_that_waits_longest_at_the_same_address_makes_way() -> None:
    places: Slots[str] = Slots(0, 2)
    assert places.admit("a1", "a") == places.admit("b1", "b") == places.admit("a2", "a") == Admission(True)
    assert places.admit("a3", "a") == Admission(True, "a1")
    assert "a1" not in places
    assert places.count_of("a") == 2


def test_at_the_limit_of_all_the_one_that_waits_longest_of_all_makes_way() -> None:
    places: Slots[str] = Slots(2, 0)
    places.admit("a", "a")
    places.admit("b", "b")
    assert places.admit("c", "c") == Admission(True, "a")


def test_who_is_settled_stays_and_the_newcomer_is_refused() -> None:
    places: Slots[str] = Slots(2, 1)
    places.admit("a", "a")
    places.settle("a")
    assert places.admit("a2", "a") == Admission(False)
    places.admit("b", "b")
    places.settle("b")
    assert places.admit("c", "c") == Admission(False)
    places.unsettle("b")
    assert places.admit("c", "c") == Admission(True, "b")


def test_places_that_are_left_are_free() -> None:
    places: Slots[str] = Slots(1, 1)
    places.admit("a", "a")
    places.leave("a")
    places.leave("a")
    places.settle("a")
    places.unsettle("a")
    assert len(places) == 0
    assert places.admit("b", "a") == Admission(True)
