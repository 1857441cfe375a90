"""Dispatch on non-persistent topics does what the model says, and the model finds bugs that are planted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.non_persistent_model import KINDS, walk
from tests.support.planting import Plant, found_by_walk

from pybroker.dispatch import non_persistent_dispatcher
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import Delivery
from pybroker.dispatch.non_persistent_dispatcher import KeySharedNonPersistentDispatcher, NonPersistentDispatcher
from pybroker.dispatch.priority_levels import PriorityLevels

STEPS = 120


def walk_all(seeds: int, steps: int = STEPS) -> None:
    for kind in KINDS:
        for seed in range(seeds):
            walk(kind, seed, steps)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(KINDS), st.integers(0, 1 << 32))
def test_every_entry_goes_to_one_consumer_that_can_take_it_or_is_counted(kind: str, seed: int) -> None:
    walk(kind, seed, STEPS)


def test_the_walks_deliver_and_drop() -> None:
    for kind in KINDS:
        machines = [walk(kind, seed, STEPS) for seed in range(5)]
        assert sum(each.delivered for each in machines) > 50, kind
        assert sum(each.dispatcher.dropped_messages for each in machines) > 50, kind


@pytest.mark.long
def test_the_same_for_long() -> None:
    walk_all(300, 300)


def permits_of_a_batch_are_one(patch: pytest.MonkeyPatch) -> None:
    spend = ConsumerState.spend
    patch.setattr(ConsumerState, "spend", lambda self, messages, entries: spend(self, entries, entries))


def who_has_no_permits_gets_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerState, "can_take", lambda self: self.writable)


def a_full_connection_gets_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerState, "can_take", lambda self: self.permits > 0)


def a_run_is_cut_one_too_late(patch: pytest.MonkeyPatch) -> None:
    affordable = non_persistent_dispatcher._affordable
    patch.setattr(
        non_persistent_dispatcher,
        "_affordable",
        lambda counts, permits: affordable(counts, min(permits + 1, sum(counts))),
    )


def the_next_level_has_its_turn_too(patch: pytest.MonkeyPatch) -> None:
    take_turn = PriorityLevels.take_turn

    def worst_first(self: PriorityLevels) -> ConsumerState | None:
        self._levels.reverse()
        taken = take_turn(self)
        self._levels.reverse()
        return taken

    patch.setattr(PriorityLevels, "take_turn", worst_first)


def drops_are_counted_as_entries(patch: pytest.MonkeyPatch) -> None:
    assign = KeySharedNonPersistentDispatcher.assign

    def count_entries(
        self: KeySharedNonPersistentDispatcher, payloads: list[bytes], counts: list[int], hashes: Sequence[int] | None
    ) -> list[Delivery]:
        before = self.dropped_messages
        deliveries = assign(self, payloads, counts, hashes)
        self.dropped_messages = before + len(payloads) - sum(len(each.payloads) for each in deliveries)
        return deliveries

    patch.setattr(KeySharedNonPersistentDispatcher, "assign", count_entries)


def what_the_owner_cannot_take_goes_to_another(patch: pytest.MonkeyPatch) -> None:
    assign = KeySharedNonPersistentDispatcher.assign

    def to_anybody(
        self: KeySharedNonPersistentDispatcher, payloads: list[bytes], counts: list[int], hashes: Sequence[int] | None
    ) -> list[Delivery]:
        able = next((each for each in self.consumers if each.can_take()), None)
        if able is None or len(payloads) > 1:
            return assign(self, payloads, counts, hashes)
        able.spend(counts[0], 1)
        return [Delivery(able, 0, [0], payloads, counts, counts[0], None, None)]

    patch.setattr(KeySharedNonPersistentDispatcher, "assign", to_anybody)


def leavers_stay_on_their_level(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PriorityLevels, "remove", lambda self, consumer: None)


def the_rest_of_a_run_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    up_to_permits = NonPersistentDispatcher._up_to_permits

    def forget(
        self: NonPersistentDispatcher, consumer: ConsumerState, payloads: list[bytes], counts: list[int]
    ) -> Delivery | None:
        before = self.dropped_messages
        delivery = up_to_permits(self, consumer, payloads, counts)
        if delivery is not None:
            self.dropped_messages = before
        return delivery

    patch.setattr(NonPersistentDispatcher, "_up_to_permits", forget)


BUGS: tuple[Plant, ...] = (
    permits_of_a_batch_are_one,
    who_has_no_permits_gets_messages,
    a_full_connection_gets_messages,
    a_run_is_cut_one_too_late,
    the_next_level_has_its_turn_too,
    drops_are_counted_as_entries,
    what_the_owner_cannot_take_goes_to_another,
    leavers_stay_on_their_level,
    the_rest_of_a_run_is_not_counted,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Plant) -> None:
    with found_by_walk(bug):
        walk_all(20)
