"""Who may produce to a topic, against a plain list of who came in which order, through joins, losses, returns and failing stores.

What must hold at every step: exclusive access is alone; who waits has a reason to, and gets its turn in the order of coming; every
take-over has an epoch above all that were told before, by one unless an epoch was brought along; who had exclusive access does
not get it back when another one has taken over since; nobody who is told to go stays, and nobody else goes.

Two drivers take the same steps: hypothesis, which shrinks what it finds, and a random walk, which is much faster. Planted bugs show
that the walk finds them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tests.support.planting import Plant, found_by_walk

from pybroker.broker.publishing.producer_access import AccessMode, Joined, Left, ProducerAccess, Standing
from pybroker.errors import ProducerBusy, ProducerFenced

FUZZ_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "600"))
QUICK = settings(max_examples=150, stateful_step_count=25, deadline=None, derandomize=True, database=None)
WALKS, WALK_STEPS = 1000, 60
LONG = settings(max_examples=FUZZ_EXAMPLES, stateful_step_count=80, deadline=None, database=None)

MODES = st.sampled_from(AccessMode)
EXCLUSIVE_MODES = st.sampled_from([mode for mode in AccessMode if mode is not AccessMode.SHARED])
WHICH = st.integers(0, 1 << 16)


@dataclass(eq=False)
class Candidate:
    name: str
    access_mode: AccessMode
    former_epoch: int | None = None
    told_epoch: int | None = None

    def __repr__(self) -> str:
        return f"{self.name}:{self.access_mode}:{self.former_epoch}"


class AccessWalk(RuleBasedStateMachine):
    """`present` are who share or hold the topic, `claimant` claims it, `waiting` wait in order, `gone` had it once."""

    def __init__(self) -> None:
        super().__init__()
        self.access: ProducerAccess[Candidate] = ProducerAccess(None)
        self.epoch: int | None = None
        self.present: list[Candidate] = []
        self.claimant: Candidate | None = None
        self.waiting: list[Candidate] = []
        self.gone: list[Candidate] = []
        self.serial = 0

    # --- steps

    @rule(mode=MODES)
    def join_new(self, mode: AccessMode) -> None:
        self.serial += 1
        self.join(Candidate(f"p{self.serial}", mode))

    @precondition(lambda self: self.gone)
    @rule(mode=EXCLUSIVE_MODES, which=WHICH)
    def come_back(self, mode: AccessMode, which: int) -> None:
        former = self.gone[-1 - which % min(2, len(self.gone))]  # Who went long ago is late in any case.
        self.join(Candidate(former.name, mode, former.told_epoch))

    @precondition(lambda self: self.claimant is not None)
    @rule()
    def stored(self) -> None:
        claimant = self.claimant
        assert claimant is not None
        epoch = self.access.claimed_epoch(claimant)
        if claimant.former_epoch is None:
            assert epoch == (0 if self.epoch is None else self.epoch + 1)
        else:
            assert epoch == claimant.former_epoch
            assert self.epoch is None or epoch >= self.epoch
        assert self.access.took_over(claimant)
        claimant.told_epoch = self.epoch = epoch
        self.present, self.claimant = [claimant], None

    @precondition(lambda self: self.claimant is not None)
    @rule()
    def store_failed(self) -> None:
        assert self.claimant is not None
        self.leave(self.claimant)

    @precondition(lambda self: self.present or self.waiting)
    @rule(which=WHICH)
    def somebody_leaves(self, which: int) -> None:
        everybody = [*self.present, *self.waiting]
        self.leave(everybody[which % len(everybody)])

    @rule()
    def a_stranger_leaves(self) -> None:
        assert self.access.leave(Candidate("stranger", AccessMode.SHARED)) == Left()

    @rule()
    def all_are_sent_away(self) -> None:
        present, waiting = self.access.clear()
        assert [*present] == self.there()
        assert [*waiting] == self.waiting
        self.go(self.present)
        self.present, self.claimant, self.waiting = [], None, []

    @precondition(lambda self: self.is_held and self.present)
    @rule(is_current=st.booleans())
    def the_holder_comes_back_by_another_way(self, is_current: bool) -> None:
        holder = self.present[0]
        assert holder.told_epoch is not None
        epoch = holder.told_epoch - (0 if is_current else 1)
        back = Candidate(holder.name, holder.access_mode, epoch)
        if holder.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE:
            self.join(back)
            return
        assert self.access.return_behind(back) is is_current
        if is_current:
            self.waiting.insert(0, back)

    @precondition(lambda self: self.present)
    @rule(which=WHICH)
    def somebody_has_a_successor(self, which: int) -> None:
        old = self.present[which % len(self.present)]
        new = Candidate(old.name, old.access_mode, old.told_epoch, old.told_epoch)
        self.access.succeed(old, new)
        self.present[self.present.index(old)] = new

    # --- what must come of them

    def join(self, producer: Candidate) -> None:
        mode = producer.access_mode
        is_free = not self.there()
        is_late = producer.former_epoch is not None and self.epoch is not None and producer.former_epoch < self.epoch
        if mode is AccessMode.SHARED:
            if self.is_held or self.waiting:
                with pytest.raises(ProducerBusy):
                    self.access.join(producer)
            else:
                assert self.access.join(producer) == Joined(Standing.ATTACHED)
                self.present.append(producer)
        elif is_late or (mode is AccessMode.EXCLUSIVE and not is_free):
            with pytest.raises(ProducerFenced):
                self.access.join(producer)
        elif mode is AccessMode.WAIT_FOR_EXCLUSIVE and not is_free:
            assert self.access.join(producer) == Joined(Standing.WAITS)
            holds = [each.name for each in self.present if each.told_epoch is not None]
            is_return = holds == [producer.name] and producer.former_epoch == self.epoch
            self.waiting.insert(0 if is_return else len(self.waiting), producer)
        else:
            joined = self.access.join(producer)
            assert joined.standing is Standing.CLAIMS
            assert [*joined.fenced] == self.there()
            assert [*joined.fenced_waiting] == self.waiting
            self.go(self.present)
            self.present, self.claimant, self.waiting = [], producer, []

    def leave(self, producer: Candidate) -> None:
        left = self.access.leave(producer)
        if producer in self.waiting:
            self.waiting.remove(producer)
            assert left == Left()
            return
        if producer is self.claimant:
            self.claimant = None
        else:
            self.present.remove(producer)
            self.go([producer])
        late: list[Candidate] = []
        while self.waiting and not self.there():
            following = self.waiting.pop(0)
            former = following.former_epoch
            if former is not None and self.epoch is not None and former < self.epoch:
                late.append(following)
            else:
                self.claimant = following
        assert left.claimant is (self.claimant if not self.present else None)
        assert [*left.fenced_waiting] == late

    def go(self, producers: list[Candidate]) -> None:
        self.gone += [each for each in producers if each.told_epoch is not None]

    @property
    def is_held(self) -> bool:
        return self.claimant is not None or any(each.told_epoch is not None for each in self.present)

    def there(self) -> list[Candidate]:
        return self.present if self.claimant is None else [self.claimant]

    @invariant()
    def agrees(self) -> None:
        self.access.check_invariants()
        assert self.access.epoch == self.epoch
        assert [*self.access.waiting] == self.waiting
        assert self.access.waiting_count == len(self.waiting)
        assert self.access.holder is (self.there()[0] if self.is_held else None)
        assert not self.waiting or self.there()


def test_access_is_as_the_model_says() -> None:
    run_state_machine_as_test(AccessWalk, settings=QUICK)


def walk_many(seed: int, walks: int) -> None:
    """Random walks, each from the beginning."""
    rng = random.Random(seed)
    for _ in range(walks):
        machine = AccessWalk()
        for _ in range(WALK_STEPS):
            take_a_step(machine, rng)
            machine.agrees()


def take_a_step(machine: AccessWalk, rng: random.Random) -> None:
    which = rng.randrange(1 << 16)
    steps: list[Callable[[], None]] = [lambda: machine.join_new(mode=rng.choice(list(AccessMode)))]
    if machine.gone:
        steps.append(lambda: machine.come_back(mode=rng.choice(list(AccessMode)[1:]), which=which))
    if machine.claimant is not None:
        steps += [machine.stored, machine.stored, machine.store_failed]
    if machine.present or machine.waiting:
        steps.append(lambda: machine.somebody_leaves(which=which))
    if machine.present:
        steps.append(lambda: machine.somebody_has_a_successor(which=which))
        if machine.is_held:
            steps.append(lambda: machine.the_holder_comes_back_by_another_way(is_current=which % 2 == 0))
    if which % 16 == 0:
        steps += [machine.all_are_sent_away, machine.a_stranger_leaves]
    rng.choice(steps)()


def test_access_is_as_the_model_says_on_many_random_walks() -> None:
    walk_many(1, WALKS)


@pytest.mark.long
def test_access_is_as_the_model_says_on_long_walks() -> None:
    run_state_machine_as_test(AccessWalk, settings=LONG)


# --- bugs that the walk must find ---------------------------------------------------------------------------------------


def epochs_repeat(patch: pytest.MonkeyPatch) -> None:
    def claim(self: ProducerAccess[Candidate], producer: Candidate) -> None:
        self._holder, self._claimed_epoch = producer, self.epoch or 0

    patch.setattr(ProducerAccess, "_claim", claim)


def a_return_counts_as_a_take_over(patch: pytest.MonkeyPatch) -> None:
    def claim(self: ProducerAccess[Candidate], producer: Candidate) -> None:
        self._holder, self._claimed_epoch = producer, 0 if self.epoch is None else self.epoch + 1

    patch.setattr(ProducerAccess, "_claim", claim)


def late_ones_come_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerAccess, "_require_current", lambda self, producer: None)


def late_ones_have_their_turn(patch: pytest.MonkeyPatch) -> None:
    leave = ProducerAccess.leave

    def blind(self: ProducerAccess[Candidate], producer: Candidate) -> Left[Candidate]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ProducerAccess, "_is_late", lambda self, producer: False)
            return leave(self, producer)

    patch.setattr(ProducerAccess, "leave", blind)


def the_last_comer_is_next(patch: pytest.MonkeyPatch) -> None:
    leave = ProducerAccess.leave

    def reversed_order(self: ProducerAccess[Candidate], producer: Candidate) -> Left[Candidate]:
        if producer not in self._waiting:
            self._waiting.reverse()
        return leave(self, producer)

    patch.setattr(ProducerAccess, "leave", reversed_order)


def one_of_many_leaving_frees_the_topic(patch: pytest.MonkeyPatch) -> None:
    leave = ProducerAccess.leave

    def forget_the_others(self: ProducerAccess[Candidate], producer: Candidate) -> Left[Candidate]:
        if producer in self._shared:
            self._shared = {producer: None}
        return leave(self, producer)

    patch.setattr(ProducerAccess, "leave", forget_the_others)


def leaving_waiters_stay_in_the_queue(patch: pytest.MonkeyPatch) -> None:
    leave = ProducerAccess.leave

    def stay(self: ProducerAccess[Candidate], producer: Candidate) -> Left[Candidate]:
        return Left() if producer in self._waiting else leave(self, producer)

    patch.setattr(ProducerAccess, "leave", stay)


def a_failed_store_counts(patch: pytest.MonkeyPatch) -> None:
    leave = ProducerAccess.leave

    def count(self: ProducerAccess[Candidate], producer: Candidate) -> Left[Candidate]:
        epoch = self.claimed_epoch(producer)
        self.epoch = self.epoch if epoch is None else epoch
        return leave(self, producer)

    patch.setattr(ProducerAccess, "leave", count)


def fencing_forgets_who_waits(patch: pytest.MonkeyPatch) -> None:
    join = ProducerAccess.join

    def forget(self: ProducerAccess[Candidate], producer: Candidate) -> Joined[Candidate]:
        waiting = [*self._waiting]
        joined = join(self, producer)
        if joined.fenced_waiting:
            self._waiting = waiting
        return joined

    patch.setattr(ProducerAccess, "join", forget)


def sharing_does_not_mind_who_waits(patch: pytest.MonkeyPatch) -> None:
    join = ProducerAccess.join

    def share(self: ProducerAccess[Candidate], producer: Candidate) -> Joined[Candidate]:
        waiting, self._waiting = self._waiting, []
        joined = join(self, producer)
        if joined.standing is Standing.CLAIMS:
            return Joined(joined.standing, joined.fenced, waiting)
        self._waiting = waiting + self._waiting
        return joined

    patch.setattr(ProducerAccess, "join", share)


def a_returning_holder_queues_at_the_end(patch: pytest.MonkeyPatch) -> None:
    return_behind = ProducerAccess.return_behind

    def queue(self: ProducerAccess[Candidate], producer: Candidate) -> bool:
        is_return = return_behind(self, producer)
        if is_return:
            self._waiting.append(self._waiting.pop(0))
        return is_return

    patch.setattr(ProducerAccess, "return_behind", queue)


BUGS = [
    epochs_repeat,
    a_return_counts_as_a_take_over,
    late_ones_come_back,
    late_ones_have_their_turn,
    the_last_comer_is_next,
    one_of_many_leaving_frees_the_topic,
    leaving_waiters_stay_in_the_queue,
    a_failed_store_counts,
    fencing_forgets_who_waits,
    sharing_does_not_mind_who_waits,
    a_returning_holder_queues_at_the_end,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_bug_is_found(plant: Plant) -> None:
    with found_by_walk(plant, pytest.fail.Exception):
        walk_many(1, WALKS)
