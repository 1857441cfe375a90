"""SubscriptionTurns go round in order of arrival, and nobody who waits is forgotten."""

import random

import pytest

from pybroker.broker.context.subscription_locks import SubscriptionTurns, WaitingRoom
from pybroker.waiting.fair_shares import Holder


def test_a_turn_that_nobody_has_is_taken_at_once_and_the_next_one_waits() -> None:
    turns: SubscriptionTurns[str] = SubscriptionTurns()
    assert turns.take("s", "being made")
    assert not turns.take("s", "being deleted")
    assert turns.take("other", "being made")
    assert turns.doing("s") == "being made"
    assert len(turns) == 2


def test_turns_are_given_in_order_of_arrival() -> None:
    turns: SubscriptionTurns[str] = SubscriptionTurns()
    turns.take("s", "0")
    for each in "abc":
        turns.wait("s", f"of {each}", each)
    turns.leave("s", "b")
    assert turns.waiting("s") == 2
    assert turns.pass_on("s") == "a"
    assert turns.doing("s") == "of a"
    assert turns.pass_on("s") == "c"
    assert turns.pass_on("s") is None
    assert (turns.doing("s"), len(turns), turns.waiting("s")) == ("", 0, 0)
    assert turns.take("s", "again")


def test_the_last_one_who_leaves_takes_the_row_along() -> None:
    turns: SubscriptionTurns[str] = SubscriptionTurns()
    turns.take("s", "0")
    turns.wait("s", "", "a")
    turns.leave("s", "a")
    assert turns.pass_on("s") is None
    assert not turns


def test_one_who_was_passed_over_leaves_without_harm_to_those_behind() -> None:
    turns: SubscriptionTurns[str] = SubscriptionTurns()
    turns.take("s", "0")
    for each in "abc":
        turns.wait("s", "", each)
    assert turns.pass_on("s") == "a"  # was cancelled: it is passed over
    assert turns.pass_on("s") == "b"
    turns.leave("s", "a")
    assert turns.pass_on("s") == "c"
    turns.leave("s", "a")
    assert turns.pass_on("s") is None


def test_nobody_waits_for_what_is_free() -> None:
    turns: SubscriptionTurns[str] = SubscriptionTurns()
    with pytest.raises(AssertionError):
        turns.wait("s", "", "a")


@pytest.mark.parametrize("seed", range(5))
def test_a_random_walk_gives_every_turn_to_exactly_one_in_order(seed: int) -> None:
    rng = random.Random(seed)
    turns: SubscriptionTurns[int] = SubscriptionTurns()
    rows: dict[str, list[int]] = {}  # who has the turn, and behind him who waits
    for who in range(2000):
        name = rng.choice("abc")
        row = rows.setdefault(name, [])
        match rng.randrange(3):
            case 0 | 1 if rng.random() < 0.6:
                if turns.take(name, ""):
                    assert not row
                else:
                    turns.wait(name, "", who)
                row.append(who)
            case 1 if len(row) > 1:
                gone = rng.choice(row[1:])
                row.remove(gone)
                turns.leave(name, gone)
            case _ if row:
                row.pop(0)
                assert turns.pass_on(name) == (row[0] if row else None)
        assert turns.waiting(name) == max(0, len(row) - 1)
        assert len(turns) == sum(map(bool, rows.values()))


def test_a_waiting_room_takes_so_many_and_counts_whom_it_refused() -> None:
    room = WaitingRoom()
    anyone = Holder("address 10.0.0.1")
    assert room.enter(anyone, 2)
    assert room.enter(anyone, 2)
    assert not room.enter(anyone, 2)
    room.leave(anyone)
    assert room.enter(anyone, 2)
    assert (room.occupied, room.refused_total) == (2, 1)
