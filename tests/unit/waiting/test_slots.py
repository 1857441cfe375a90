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


def test_settled_occupant_is_displaced_only_if_all_are_settled() -> None:
    slots: Slots[str] = Slots(2, 0, displaces_settled=True)
    slots.admit("checked", "a")
    slots.settle("checked")
    slots.admit("silent", "b")
    assert slots.admit("third", "c").displaced == "silent"
    slots.settle("third")
    assert slots.admit("fourth", "d").displaced == "checked"
    assert (len(slots), slots.longest) == (2, "fourth")
    slots.leave("third")
    slots.leave("fourth")
    assert (len(slots), slots.count_of("a"), slots.count_of("c")) == (0, 0, 0)


def test_limit_of_an_address_displaces_settled_occupant_of_the_address() -> None:
    slots: Slots[str] = Slots(10, 1, displaces_settled=True)
    for occupant, address in (("first", "a"), ("other", "b")):
        slots.admit(occupant, address)
        slots.settle(occupant)
    assert slots.admit("second", "b").displaced == "other"
    assert "first" in slots
