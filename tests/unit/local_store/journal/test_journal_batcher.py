"""The rules of the journal, beside a model: where each batch is written, and the result of each item; with mutants."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support.planting import Plant, found_by_walk
from tests.unit.local_store.journal_batcher_model import SCRIPTS, JournalWorld, no_room, walk

from pybroker.local_store.journal.journal_batcher import Ended, JournalBatcher, MakeRoom, Step, TakeFile, Write
from pybroker.local_store.journal.journal_items import JournalItem, JournalMark, ListenersTold
from pybroker.storage_format.journal_layout import FILE_HEADER_BYTES

SMALL_FILE = FILE_HEADER_BYTES + 4096


@given(SCRIPTS, st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_reader_finds_what_was_told_to_be_written_and_nothing_else(script: list[Any], is_synced: bool) -> None:
    walk(script, is_synced=is_synced)


def test_marks_alone_write_nothing() -> None:
    world = JournalWorld()
    world.mark()
    step = world.batcher.close_batch(3)
    assert isinstance(step, Ended)
    assert (step.end, step.batch.submitted_ms) == (None, 3)
    assert step.batch.mark is not None
    assert step.batch.mark.sequence == 0


def test_a_batch_that_finds_no_room_is_tried_again_without_its_runs() -> None:
    world = JournalWorld()
    world.run(0, 100)
    world.record(10)
    step = world.batcher.close_batch(0)
    assert isinstance(step, Write)
    assert isinstance(world.batcher.failed(no_room()), MakeRoom)
    rest = world.batcher.room_made()
    assert isinstance(rest, Write)
    assert len(rest.pieces[1]) < len(step.pieces[1])
    ended = world.batcher.written()
    assert isinstance(ended, Ended)
    assert (len(ended.batch.refused_runs), len(ended.batch.records)) == (1, 1)


@pytest.mark.parametrize("when", ["file", "first write", "second write", "erasure"])
def test_any_error_but_a_lack_of_room_is_raised_wherever_it_comes(when: str) -> None:
    world = JournalWorld()
    if when == "file":
        for _ in range(4):
            world.run(0, 900)
            world.write([], SMALL_FILE)
    world.run(0, 900)
    world.record(1)
    step = world.batcher.close_batch(0)
    assert isinstance(step, TakeFile if when == "file" else Write)
    if when in {"second write", "erasure"}:
        world.batcher.failed(no_room())
        world.batcher.room_made()
    if when == "erasure":
        erasure = world.batcher.failed(no_room())
        assert isinstance(erasure, Write)
        assert erasure.is_erasure
    with pytest.raises(OSError, match="broken"):
        world.batcher.failed(OSError(errno.EIO, "broken"))


def test_an_answer_to_what_was_not_asked_is_a_mistake() -> None:
    world = JournalWorld()
    for answer in (world.batcher.written, world.batcher.room_made):
        with pytest.raises(AssertionError, match="waiting for items"):
            answer()


# --- planted bugs ------------------------------------------------------------------------------------------------------


def a_sequence_number_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    written = JournalBatcher.written

    def forgets(self: JournalBatcher) -> Step:
        number = self._next_sequence
        step = written(self)
        if number == 2:
            self._next_sequence = number
        return step

    patch.setattr(JournalBatcher, "written", forgets)


def refused_listeners_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    after_failure(patch, lambda self: self._fenced_listeners.clear())


def refused_ledgers_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    after_failure(patch, lambda self: self._fenced.clear())


def a_refused_batch_is_written_with_its_runs(patch: pytest.MonkeyPatch) -> None:
    failed = JournalBatcher.failed

    def keeps_parts(self: JournalBatcher, error: OSError) -> Step:
        parts = self._batch.parts
        step = failed(self, error)
        if isinstance(step, MakeRoom):
            self._batch.parts = parts
        return step

    patch.setattr(JournalBatcher, "failed", keeps_parts)


def records_are_refused_at_once(patch: pytest.MonkeyPatch) -> None:
    def refuses(self: Any) -> None:
        batch = self._batch
        batch.refused_records, batch.records, batch.parts = batch.records, [], []

    after_failure(patch, refuses)


def after_failure(patch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    failed = JournalBatcher.failed

    def fails(self: JournalBatcher, error: OSError) -> Step:
        step = failed(self, error)
        if isinstance(step, MakeRoom):
            change(self)
        return step

    patch.setattr(JournalBatcher, "failed", fails)


def a_mark_is_told_one_batch_too_late(patch: pytest.MonkeyPatch) -> None:
    end = JournalBatcher._end

    def too_late(self: JournalBatcher, noted: Any) -> Ended:
        ended = end(self, noted)
        if ended.batch.mark is not None:
            ended.batch.mark.sequence += 1
        return ended

    patch.setattr(JournalBatcher, "_end", too_late)


def a_mark_does_not_end_its_batch(patch: pytest.MonkeyPatch) -> None:
    take = JournalBatcher.take
    patch.setattr(JournalBatcher, "take", lambda self, item: take(self, item) or isinstance(item, JournalMark))


def a_batch_has_no_limit(patch: pytest.MonkeyPatch) -> None:
    take = JournalBatcher.take

    def takes_all(self: JournalBatcher, item: JournalItem) -> bool:
        take(self, item)
        return not isinstance(item, JournalMark)

    patch.setattr(JournalBatcher, "take", takes_all)


def what_a_refused_batch_has_left_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JournalBatcher, "_erase", lambda self: self._end(None))


def batches_are_not_aligned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("pybroker.local_store.journal.journal_batcher.align", lambda offset: offset)


def a_file_has_no_end(patch: pytest.MonkeyPatch) -> None:
    put = JournalBatcher._put

    def into_the_same_file(self: JournalBatcher) -> Step:
        self._place.capacity_bytes, capacity_bytes = 1 << 30, self._place.capacity_bytes
        step = put(self)
        self._place.capacity_bytes = capacity_bytes
        return step

    patch.setattr(JournalBatcher, "_put", into_the_same_file)


def a_listener_that_was_not_told_leaves_a_gap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        JournalBatcher,
        "_is_fenced",
        lambda self, run: run.listener in self._fenced_listeners or run.ledger_id in self._fenced,
    )


def who_was_told_goes_on_in_the_refused_ledger(patch: pytest.MonkeyPatch) -> None:
    take = JournalBatcher.take

    def forgets_ledgers(self: JournalBatcher, item: JournalItem) -> bool:
        if isinstance(item, ListenersTold):
            self._fenced.clear()
        return take(self, item)

    patch.setattr(JournalBatcher, "take", forgets_ledgers)


def records_without_room_count_as_written(patch: pytest.MonkeyPatch) -> None:
    failed = JournalBatcher.failed

    def believes(self: JournalBatcher, error: OSError) -> Step:
        is_second = self._batch.error is not None
        return self.written() if is_second and self._state.name == "WRITING" else failed(self, error)

    patch.setattr(JournalBatcher, "failed", believes)


@pytest.mark.parametrize(
    "plant",
    [
        a_sequence_number_is_given_twice,
        refused_listeners_are_not_remembered,
        refused_ledgers_are_not_remembered,
        a_refused_batch_is_written_with_its_runs,
        records_are_refused_at_once,
        a_mark_is_told_one_batch_too_late,
        a_mark_does_not_end_its_batch,
        a_batch_has_no_limit,
        what_a_refused_batch_has_left_stays,
        batches_are_not_aligned,
        a_file_has_no_end,
        a_listener_that_was_not_told_leaves_a_gap,
        who_was_told_goes_on_in_the_refused_ledger,
        records_without_room_count_as_written,
    ],
    ids=lambda plant: plant.__name__,
)
def test_the_model_notices_a_batcher_in_which(plant: Plant) -> None:
    @given(SCRIPTS)
    @settings(
        max_examples=1500,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
    )
    def search(script: list[Any]) -> None:
        walk(script, is_synced=True)

    with found_by_walk(plant):
        search()
