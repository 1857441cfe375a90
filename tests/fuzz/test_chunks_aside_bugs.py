"""The walks with chunks find bugs in what waits for one consumer of a Shared subscription: each one planted here makes them fail.

That a scan ends where there was no room they meet too seldom: `unit/dispatch/chunks/test_parked_chunks.py` has it.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.fuzz.test_chunked_walks import walk_from
from tests.support.planting import Plant, found_by_walk

from pybroker.dispatch.chunks.parked_chunks import ParkedChunks
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.dispatcher import Redelivery
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.dispatch.shared_redelivery import BoundReplay
from pybroker.model.position import Position

WALKS = 40


def nobody_looks_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedDispatcher, "_scan", lambda self: None)


def nobody_looks_again_at_the_end_of_the_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedDispatcher, "next_scan", lambda self: None)
    next_read = SharedDispatcher.next_read

    def cursor_first(self: SharedDispatcher) -> Any:
        self._is_scans_turn = True
        return next_read(self)

    patch.setattr(SharedDispatcher, "next_read", cursor_first)


def a_second_reading_passes_over_an_entry(patch: pytest.MonkeyPatch) -> None:
    advance_scan = ParkedChunks.advance_scan
    patch.setattr(
        ParkedChunks,
        "advance_scan",
        lambda self, position: advance_scan(self, Position(position.ledger_id, position.entry_id + 1)),
    )


def what_one_left_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    remove_consumer = SharedDispatcher.remove_consumer

    def without_rewind(self: SharedDispatcher, consumer: ConsumerState) -> Redelivery:
        redelivery = remove_consumer(self, consumer)
        redelivery.rewind = redelivery.rewind and not self.consumers
        return redelivery

    patch.setattr(SharedDispatcher, "remove_consumer", without_rewind)


def what_is_listed_waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BoundReplay, "unbind_able", lambda self: None)


BUGS = [
    nobody_looks_again,
    nobody_looks_again_at_the_end_of_the_topic,
    a_second_reading_passes_over_an_entry,
    what_one_left_is_forgotten,
    what_is_listed_waits_for_ever,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda bug: bug.__name__)
def test_the_walks_find_the_bug(plant: Plant) -> None:
    with found_by_walk(plant, says=r"everybody waits for something|plans without end"):
        walk_from(1, WALKS)
