"""The Key_Shared model finds bugs in what is listed, set aside and looked at again: each one planted here makes the walks fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests.fuzz.dispatch_walks import walk_many
from tests.fuzz.test_key_shared_model import STEPS, begin
from tests.support.planting import Plant, found_by_walk

from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import AssignInput, ReadPlan
from pybroker.dispatch.key_shared.keyed_redelivery import KeyedReplay, _Column
from pybroker.dispatch.key_shared.parked_hashes import ParkedHashes
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.model.position import EARLIEST, Position


def nobody_looks_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "_scan_for", lambda self, able: None)


def nobody_looks_again_at_the_end_of_the_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "next_scan", lambda self: None)


def new_entries_overtake_what_is_set_aside(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedHashes, "hashes", property(lambda self: ()))


def the_room_has_no_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySharedDispatcher, "_has_room", lambda self, sticky_hash: True)


def a_second_reading_takes_whatever_it_comes_by(patch: pytest.MonkeyPatch) -> None:
    def all_rows(self: Any, run: AssignInput, hashes: list[int]) -> tuple[AssignInput, list[int]]:
        return run, hashes

    patch.setattr(KeySharedDispatcher, "_scanned_rows", all_rows)


def a_second_reading_begins_too_late(patch: pytest.MonkeyPatch) -> None:
    begin_scan = ParkedHashes.begin_scan

    def late(self: ParkedHashes, consumers: Iterable[ConsumerState]) -> Position:
        begin_scan(self, consumers)
        self.position = max(self._from[sticky_hash] for sticky_hash in self._scanned)
        return self.position

    patch.setattr(ParkedHashes, "begin_scan", late)


def a_second_reading_passes_over_an_entry(patch: pytest.MonkeyPatch) -> None:
    advance_scan = ParkedHashes.advance_scan
    patch.setattr(
        ParkedHashes,
        "advance_scan",
        lambda self, position: advance_scan(self, Position(position.ledger_id, position.entry_id + 1)),
    )


def a_second_reading_ends_with_what_it_read_first(patch: pytest.MonkeyPatch) -> None:
    scanned = KeySharedDispatcher.scanned

    def hasty(self: KeySharedDispatcher, plan: ReadPlan, up_to: Position, *, is_at_end: bool) -> None:
        scanned(self, plan, up_to, is_at_end=True)

    patch.setattr(KeySharedDispatcher, "scanned", hasty)


def a_second_reading_without_room_is_at_its_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedHashes, "leave_scan", lambda self, sticky_hash, position: self.finish_scan())


def a_second_reading_without_room_goes_on_behind_the_entry(patch: pytest.MonkeyPatch) -> None:
    leave_scan = ParkedHashes.leave_scan
    patch.setattr(
        ParkedHashes,
        "leave_scan",
        lambda self, sticky_hash, at: leave_scan(self, sticky_hash, Position(at.ledger_id, at.entry_id + 1)),
    )


def freed_hashes_that_are_set_aside_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedHashes, "place_again", lambda self, sticky_hash: False)


def hashes_set_aside_stay_with_the_former_owner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedHashes, "replace_all", lambda self: None)


def what_was_given_back_is_listed_and_set_aside(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedHashes, "covers", lambda self, sticky_hash, position: False)


def delayed_entries_do_not_come_in_front_of_what_is_set_aside(patch: pytest.MonkeyPatch) -> None:
    add = ParkedHashes.add

    def only_new(self: ParkedHashes, sticky_hash: int, position: Position) -> None:
        if sticky_hash not in self:
            add(self, sticky_hash, position)

    patch.setattr(ParkedHashes, "add", only_new)


def what_is_listed_behind_a_delayed_entry_stays_listed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyedReplay, "unlist", lambda self, from_positions: None)


def hashes_of_a_column_get_out_of_step(patch: pytest.MonkeyPatch) -> None:
    def add(self: _Column, entry_id: int, sticky_hash: int) -> bool:
        if entry_id in self.members:
            return False
        self.hashes.append(sticky_hash)
        self.members.add(entry_id)
        self.last = max(self.last, entry_id)
        return True

    patch.setattr(_Column, "add", add)


def a_rewind_forgets_nothing_that_is_set_aside(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedHashes, "clear", lambda self: None)


def a_consumer_that_came_late_looks_again_for_ever(patch: pytest.MonkeyPatch) -> None:
    def wants_scan(self: KeySharedDispatcher, consumer: ConsumerState) -> bool:
        return (self._parked.first_for(consumer) or EARLIEST) > EARLIEST

    patch.setattr(KeySharedDispatcher, "_wants_scan", wants_scan)


BUGS = [
    nobody_looks_again,
    nobody_looks_again_at_the_end_of_the_topic,
    new_entries_overtake_what_is_set_aside,
    the_room_has_no_end,
    a_second_reading_takes_whatever_it_comes_by,
    a_second_reading_begins_too_late,
    a_second_reading_passes_over_an_entry,
    a_second_reading_ends_with_what_it_read_first,
    a_second_reading_without_room_is_at_its_end,
    a_second_reading_without_room_goes_on_behind_the_entry,
    freed_hashes_that_are_set_aside_wake_nobody,
    hashes_set_aside_stay_with_the_former_owner,
    what_was_given_back_is_listed_and_set_aside,
    delayed_entries_do_not_come_in_front_of_what_is_set_aside,
    what_is_listed_behind_a_delayed_entry_stays_listed,
    hashes_of_a_column_get_out_of_step,
    a_rewind_forgets_nothing_that_is_set_aside,
    a_consumer_that_came_late_looks_again_for_ever,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_the_walks_find_a_planted_bug(plant: Plant) -> None:
    with found_by_walk(plant):
        walk_many(begin, STEPS, 1, 600, 200)
