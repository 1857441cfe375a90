"""Every state that a power cut may leave of a running broker: a sample of cuts of a record, each rebuilt by chance and judged.

Databases, journal (with the writer thread and with the kernel's direct IO), segments: all are in the record, in one order.
POWER_CUT_SEED and POWER_CUTS choose others and more. Threads make each record another one, so a failure keeps it as a file;
POWER_CUT_RECORD names that file and POWER_CUT_NUMBER the cut to judge alone, with the same seed.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.crash.cut_world import Told, judge, record, record_start
from tests.support import recorded_disk
from tests.support.cut_states import MODES, PowerCut, make
from tests.support.recorded_disk import Event, RecordedDisk

from pybroker import broker_process
from pybroker.errors import StoreError
from pybroker.local_store.journal.journal_files import JournalFiles
from pybroker.metadata import sqlite_metadata_store

pytestmark = pytest.mark.long

SEED = int(os.environ.get("POWER_CUT_SEED", "1"))
CUTS = int(os.environ.get("POWER_CUTS", "120"))
STARTS = CUTS // 8
CUTS_IN_A_START = 6
RECORD = os.environ.get("POWER_CUT_RECORD")
NUMBER = os.environ.get("POWER_CUT_NUMBER")


def recorded(directory: Path, *, direct_io: bool) -> tuple[Path, list[Event]]:
    """The record and the directory that it is of."""
    if RECORD:
        root, events = pickle.loads(Path(RECORD).read_bytes())
        return root, events
    disk = asyncio.run(record(directory, SEED, direct_io=direct_io))
    return disk.root, disk.events


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("direct_io", [False, True], ids=["thread", "direct"])
def test_nothing_that_was_told_is_lost_whatever_a_power_cut_leaves(tmp_path: Path, direct_io: bool, mode: str) -> None:
    root, events = recorded(tmp_path / "run", direct_io=direct_io)
    for number in range(CUTS) if NUMBER is None else [int(NUMBER)]:
        random = Random(f"{SEED}:{number}:{mode}")
        cut = random.randrange(len(events) + 1)
        state = tmp_path / "state"
        make(PowerCut(events, cut).state(mode, random), root, state)
        try:
            judge(state, Told.at(events, cut))
        except BaseException as error:
            kept = tmp_path / "record.pickle"
            kept.write_bytes(pickle.dumps((root, events)))
            error.add_note(
                f"POWER_CUT_SEED={SEED} POWER_CUT_NUMBER={number} POWER_CUT_RECORD={kept} ({mode}, {cut} of {len(events)})"
            )
            raise
        shutil.rmtree(state)


@pytest.mark.parametrize("direct_io", [False, True], ids=["thread", "direct"])
def test_nothing_is_lost_by_a_power_cut_in_a_start_after_a_power_cut(tmp_path: Path, direct_io: bool) -> None:
    first = asyncio.run(record(tmp_path / "run", SEED, direct_io=direct_io))
    for number in range(STARTS):
        mode = MODES[number % len(MODES)]
        random = Random(f"{SEED}:{number}:{mode}")
        cut = random.randrange(len(first.events) + 1)
        told = Told.at(first.events, cut)
        started = tmp_path / str(number)
        make(PowerCut(first.events, cut).state(mode, random), first.root, started)
        second = asyncio.run(record_start(started, direct_io=direct_io))
        for again in range(CUTS_IN_A_START):
            state = tmp_path / "state"
            cut_again = random.randint(second.begin, len(second.events))
            make(PowerCut(second.events, cut_again).state(mode, random), second.root, state)
            try:
                judge(state, told)
            except BaseException as error:
                error.add_note(f"start {number}, {mode}, at {cut}, again {again} at {cut_again}")
                raise
            shutil.rmtree(state)


# Planted bugs: the states of each of these stores must show it


def receipts_come_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    write_at = recorded_disk.RecordedFile.write_at
    patch.setattr(
        recorded_disk.RecordedFile,
        "write_at",
        lambda self, pieces, offset, durable: write_at(self, pieces, offset, durable=False),
    )


def segments_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    _without_sync_of(patch, ".ledger")


def the_table_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    _without_sync_of(patch, "checkpoint.db-wal")


def metadata_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    _without_sync_of(patch, "metadata.db-wal")


def _without_sync_of(patch: pytest.MonkeyPatch, name_end: str) -> None:
    open_for_write = RecordedDisk.open_for_write

    def unsynced(self: Any, path: Path) -> Any:
        file = open_for_write(self, path)
        if path.name.endswith(name_end):
            file.sync = lambda: None  # type: ignore[method-assign]
        return file

    patch.setattr(RecordedDisk, "open_for_write", unsynced)


def directories_of_segments_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    _without_directory(patch, "ledgers")


def the_directory_of_the_journal_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    _without_directory(patch, "journal")


def _without_directory(patch: pytest.MonkeyPatch, name: str) -> None:
    sync_directory = RecordedDisk.sync_directory

    def sync_others(self: Any, directory: Path) -> None:
        if directory.name != name:
            sync_directory(self, directory)

    patch.setattr(RecordedDisk, "sync_directory", sync_others)


def journal_files_are_used_again_too_early(patch: pytest.MonkeyPatch) -> None:
    take_next = JournalFiles.take_next

    def take_next_and_release(self: JournalFiles) -> Any:
        file = take_next(self)
        self.release(1 << 60)  # The file that is full now, whether a checkpoint covers it or not.
        return file

    patch.setattr(JournalFiles, "take_next", take_next_and_release)


def the_mark_of_metadata_runs_ahead(patch: pytest.MonkeyPatch) -> None:
    count_commit = sqlite_metadata_store._Table._count_commit

    def mark_first(self: Any) -> None:
        self._mark.write(self.totals.commits + 1)
        count_commit(self)

    patch.setattr(sqlite_metadata_store._Table, "_count_commit", mark_first)


PLANTS = [
    receipts_come_before_the_sync,
    segments_are_not_synced,
    the_table_is_not_synced,
    metadata_are_not_synced,
    directories_of_segments_are_not_synced,
    the_directory_of_the_journal_is_not_synced,
    journal_files_are_used_again_too_early,
    the_mark_of_metadata_runs_ahead,
]
CUTS_FOR_A_BUG = 60


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_states_tell_that(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        disk = asyncio.run(record(tmp_path / "run", 1, direct_io=False))
    for number in range(CUTS_FOR_A_BUG):
        mode = MODES[number % len(MODES)]
        random = Random(f"{number}:{mode}")
        cut = random.randrange(len(disk.events) + 1)
        state = tmp_path / str(number)
        make(PowerCut(disk.events, cut).state(mode, random), disk.root, state)
        try:
            judge(state, Told.at(disk.events, cut))
        except (AssertionError, StoreError, broker_process.StartError):
            return
    pytest.fail("nothing was noticed")
