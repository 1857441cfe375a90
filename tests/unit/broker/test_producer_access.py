"""Who may produce to a topic, in which order, and with which epoch. The model test in `fuzz` walks through everything else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pybroker.broker.publishing.producer_access import AccessMode, Joined, Left, ProducerAccess, Standing
from pybroker.errors import ProducerBusy, ProducerFenced

SHARED, EXCLUSIVE = AccessMode.SHARED, AccessMode.EXCLUSIVE
FENCING, WAIT = AccessMode.EXCLUSIVE_WITH_FENCING, AccessMode.WAIT_FOR_EXCLUSIVE


@dataclass(eq=False)
class Candidate:
    access_mode: AccessMode
    name: str = "p"
    former_epoch: int | None = None


def held_by(holder: Candidate, epoch: int | None = None) -> ProducerAccess[Candidate]:
    access: ProducerAccess[Candidate] = ProducerAccess(epoch)
    assert access.join(holder).standing is Standing.CLAIMS
    assert access.took_over(holder)
    return access


def shared_by(*producers: Candidate) -> ProducerAccess[Candidate]:
    access: ProducerAccess[Candidate] = ProducerAccess(None)
    for producer in producers:
        assert access.join(producer) == Joined(Standing.ATTACHED)
    return access


def test_the_first_epoch_is_0_and_each_take_over_adds_one() -> None:
    first, second = Candidate(EXCLUSIVE), Candidate(EXCLUSIVE)
    access = held_by(first)
    assert access.epoch == 0
    access.leave(first)
    access.join(second)
    assert access.epoch == 0  # until it is stored
    assert access.took_over(second)
    assert access.epoch == 1


def test_the_epoch_goes_on_from_the_one_that_was_stored() -> None:
    assert held_by(Candidate(EXCLUSIVE), epoch=7).epoch == 8


@pytest.mark.parametrize(("mode", "refusal"), [(SHARED, ProducerBusy), (EXCLUSIVE, ProducerFenced)])
def test_a_held_topic_is_refused_by_the_name_of_who_holds_it(mode: AccessMode, refusal: type[Exception]) -> None:
    with pytest.raises(refusal, match="exclusive producer: holder"):
        held_by(Candidate(EXCLUSIVE, "holder")).join(Candidate(mode))


def test_exclusive_access_is_refused_while_others_share_the_topic() -> None:
    with pytest.raises(ProducerFenced, match="shared producers"):
        shared_by(Candidate(SHARED)).join(Candidate(EXCLUSIVE))


def test_who_waits_keeps_newcomers_that_would_share_away() -> None:
    access = shared_by(Candidate(SHARED))
    access.join(Candidate(WAIT))
    with pytest.raises(ProducerBusy, match="wait"):
        access.join(Candidate(SHARED))


def test_waiting_behind_many_ends_when_the_last_one_leaves() -> None:
    one, other, waiting = Candidate(SHARED), Candidate(SHARED), Candidate(WAIT)
    access = shared_by(one, other)
    assert access.join(waiting).standing is Standing.WAITS
    assert access.leave(one) == Left()
    assert access.leave(other) == Left(waiting, [])


def test_who_waits_has_its_turn_in_the_order_of_coming() -> None:
    holder, first, second = Candidate(EXCLUSIVE), Candidate(WAIT, "1"), Candidate(WAIT, "2")
    access = held_by(holder)
    access.join(first)
    access.join(second)
    assert access.leave(holder).claimant is first
    assert access.took_over(first)
    assert access.leave(first).claimant is second


def test_fencing_drives_out_who_is_there_and_who_waits() -> None:
    one, other, waiting, fencing = Candidate(SHARED), Candidate(SHARED), Candidate(WAIT), Candidate(FENCING)
    access = shared_by(one, other)
    access.join(waiting)
    assert access.join(fencing) == Joined(Standing.CLAIMS, [one, other], [waiting])
    assert access.holder is fencing


def test_fencing_takes_the_topic_from_one_that_is_just_being_given_it() -> None:
    early, fencing = Candidate(EXCLUSIVE), Candidate(FENCING)
    access: ProducerAccess[Candidate] = ProducerAccess(None)
    access.join(early)
    assert [*access.join(fencing).fenced] == [early]
    assert not access.took_over(early)
    assert access.took_over(fencing)
    assert access.epoch == 0  # the other one was never told of it


def test_a_claim_that_ends_before_it_is_stored_costs_no_epoch() -> None:
    failed, waiting = Candidate(EXCLUSIVE), Candidate(WAIT)
    access: ProducerAccess[Candidate] = ProducerAccess(4)
    access.join(failed)
    access.join(waiting)
    assert access.leave(failed).claimant is waiting
    assert access.claimed_epoch(waiting) == 5


@pytest.mark.parametrize("mode", [EXCLUSIVE, FENCING, WAIT])
def test_a_return_keeps_the_epoch_if_nobody_took_over_meanwhile(mode: AccessMode) -> None:
    access: ProducerAccess[Candidate] = ProducerAccess(3)
    back = Candidate(mode, former_epoch=3)
    access.join(back)
    assert access.took_over(back)
    assert access.epoch == 3


@pytest.mark.parametrize("mode", [EXCLUSIVE, FENCING, WAIT])
def test_a_return_is_fenced_if_somebody_took_over_meanwhile_and_harms_nobody(mode: AccessMode) -> None:
    holder, waiting = Candidate(EXCLUSIVE), Candidate(WAIT)
    access = held_by(holder, epoch=3)
    access.join(waiting)
    with pytest.raises(ProducerFenced, match="Current epoch: 4, Producer epoch: 3"):
        access.join(Candidate(mode, former_epoch=3))
    assert access.holder is holder
    assert access.waiting == (waiting,)


def test_an_epoch_that_the_topic_has_lost_comes_back_with_its_holder() -> None:
    access: ProducerAccess[Candidate] = ProducerAccess(None)
    back = Candidate(EXCLUSIVE, former_epoch=9)
    access.join(back)
    assert access.took_over(back)
    assert access.epoch == 9


def test_a_return_that_waits_is_fenced_once_another_one_took_over() -> None:
    shared, other, back = Candidate(SHARED), Candidate(WAIT, "other"), Candidate(WAIT, "back", former_epoch=2)
    access: ProducerAccess[Candidate] = ProducerAccess(2)
    for producer in (shared, other, back):
        access.join(producer)
    assert access.leave(shared).claimant is other
    assert access.took_over(other)
    assert access.leave(other) == Left(None, [back])


def test_a_holder_that_comes_back_by_another_way_is_before_all_that_wait() -> None:
    holder, waiting = Candidate(EXCLUSIVE, "leader"), Candidate(WAIT)
    back = Candidate(EXCLUSIVE, "leader", former_epoch=0)
    access = held_by(holder)
    access.join(waiting)
    assert access.return_behind(back)
    assert access.leave(holder).claimant is back
    assert access.claimed_epoch(back) == 0


@pytest.mark.parametrize(("name", "epoch"), [("other", 0), ("leader", None), ("leader", 1)])
def test_nobody_else_gets_before_those_who_wait(name: str, epoch: int | None) -> None:
    access = held_by(Candidate(EXCLUSIVE, "leader"))
    assert not access.return_behind(Candidate(EXCLUSIVE, name, epoch))


def test_a_successor_takes_the_place_while_others_wait() -> None:
    old, new, waiting = Candidate(EXCLUSIVE), Candidate(EXCLUSIVE), Candidate(WAIT)
    access = held_by(old)
    access.join(waiting)
    access.succeed(old, new)
    assert access.leave(old) == Left()
    assert access.leave(new).claimant is waiting


def test_once_all_are_sent_away_the_topic_is_free() -> None:
    holder, waiting = Candidate(EXCLUSIVE), Candidate(WAIT)
    access = held_by(holder)
    access.join(waiting)
    assert access.clear() == ([holder], [waiting])
    assert access.leave(holder) == Left()
    assert access.join(Candidate(SHARED)) == Joined(Standing.ATTACHED)
    access.check_invariants()
