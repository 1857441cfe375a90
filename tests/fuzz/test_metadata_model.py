"""The metadata store beside its model, on a disk that forgets; a list of planted bugs shows that the model would notice."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.fuzz.metadata_model import STEPS, Step, draw_script, run_script
from tests.support.planting import Plant, found_by_walk

from pybroker.errors import StoreError
from pybroker.metadata import sqlite
from pybroker.metadata.sqlite_table import Totals, save_totals
from pybroker.storage.disk import Disk
from pybroker.storage.fault_disk import FaultDisk

SCRIPTS_FOR_A_BUG = 500


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 13), st.integers(0, 1 << 16)), max_size=25))
@settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
def test_metadata_do_what_the_model_does(tmp_path: Path, steps: list[Step]) -> None:
    run_script(tmp_path, steps)


@pytest.mark.long
def test_metadata_do_what_the_model_does_for_long(tmp_path: Path) -> None:
    assert sum(run_script(tmp_path, draw_script(seed, 25)) for seed in range(400)) > 50, "hardly any damage was tried"


# Planted bugs: each must be noticed


def the_log_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    def set_up(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    patch.setattr(sqlite, "_set_up", set_up)


def answers_come_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    begin = sqlite._Table.begin

    def begin_late(self: Any) -> None:
        if self.connection.in_transaction:
            self.connection.execute("COMMIT")
        begin(self)

    def commit_later(self: Any) -> None:
        self.totals.commits += 1
        save_totals(self.connection, self.totals)
        self._committed()

    patch.setattr(sqlite._Table, "begin", begin_late)
    patch.setattr(sqlite._Table, "commit", commit_later)


def nothing_is_written_over_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite._Table, "_undo", lambda self: self._committed())


def the_mark_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite, "_require_as_far_as", lambda answered, totals, mark_path: None)


def the_mark_is_written_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    commit = sqlite._Table.commit

    def mark_first(self: Any) -> None:
        self._mark.write(self.totals.commits + 1)
        commit(self)

    patch.setattr(sqlite._Table, "commit", mark_first)


def directories_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FaultDisk, "sync_directory", lambda self, directory: None)


def a_log_whose_sync_failed_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Disk, "rewrite_log", lambda self, database: None)


def rows_and_sums_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    def unchecked(connection: sqlite3.Connection) -> Totals:
        return Totals(*connection.execute("SELECT commits, row_count, row_sum FROM totals").fetchone())

    patch.setattr("pybroker.metadata.sqlite_table.check", unchecked)
    patch.setattr(sqlite, "require_whole", lambda *args: None)


PLANTS = [
    the_log_is_not_synced,
    answers_come_before_the_commit,
    nothing_is_written_over_what_was_refused,
    the_mark_is_not_looked_at,
    the_mark_is_written_before_the_commit,
    directories_are_not_synced,
    a_log_whose_sync_failed_is_believed,
    rows_and_sums_are_not_checked,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_model_notices_a_metadata_store_in_which(plant: Plant, tmp_path: Path) -> None:
    with found_by_walk(plant, StoreError):
        run_many(tmp_path)


def run_many(directory: Path) -> None:
    for seed in range(SCRIPTS_FOR_A_BUG):
        run_script(directory, draw_script(seed, 25))
