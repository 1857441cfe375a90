"""Slots: a newcomer displaces the unsettled occupant that came first, and settled occupants stay."""

from __future__ import annotations

from pybroker.waiting.slots import Admission, Slots


def test_the_one_that_waits_longest_at_the_same_address_makes_way() -> None:
    slots: Slots[str] = Slots(0, 2)
    assert slots.admit("a1", "a") == slots.admit("b1", "b") == slots.admit("a2", "a") == Admission(True)
    assert slots.admit("a3", "a") == Admission(True, "a1")
    assert "a1" not in slots
    assert slots.count_of("a") == 2


def test_at_the_limit_of_all_the_one_that_waits_longest_of_all_makes_way() -> None:
    slots: Slots[str] = Slots(2, 0)
    slots.admit("a", "a")
    slots.admit("b", "b")
    assert slots.admit("c", "c") == Admission(True, "a")


def test_who_is_settled_stays_and_the_newcomer_is_refused() -> None:
    slots: Slots[str] = Slots(2, 1)
    slots.admit("a", "a")
    slots.settle("a")
    assert slots.admit("a2", "a") == Admission(False)
    slots.admit("b", "b")
    slots.settle("b")
    assert slots.admit("c", "c") == Admission(False)
    slots.unsettle("b")
    assert slots.admit("c", "c") == Admission(True, "b")


def test_places_that_are_left_are_free() -> None:
    slots: Slots[str] = Slots(1, 1)
    slots.admit("a", "a")
    slots.leave("a")
    slots.leave("a")
    slots.settle("a")
    slots.unsettle("a")
    assert len(slots) == 0
    assert slots.admit("b", "a") == Admission(True)
