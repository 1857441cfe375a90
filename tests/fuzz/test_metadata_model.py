"""The metadata store beside its model, on a disk that forgets; a list of planted bugs shows that the model would notice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.fuzz.metadata_model import STEPS, Step, draw_script, run_script
from tests.support.fault_disk import FaultDisk
from tests.support.planting import Plant, found_by_walk

from pybroker.disk.database import Database
from pybroker.disk.disk import Disk
from pybroker.errors import StoreError
from pybroker.metadata import sqlite_metadata_store
from pybroker.metadata.sqlite_table import Totals

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
def test_metadata_store_equals_model(tmp_path: Path, steps: list[Step]) -> None:
    run_script(tmp_path, steps)


@pytest.mark.long
def test_metadata_store_equals_model_for_long(tmp_path: Path) -> None:
    assert sum(run_script(tmp_path, draw_script(seed, 25)) for seed in range(400)) > 50, "hardly any damage was tried"


# Planted bugs: each must be noticed


def the_log_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    set_up = Database.set_up

    def set_up_unsynced(self: Database) -> None:
        set_up(self)
        self.execute("PRAGMA synchronous = OFF")

    patch.setattr(Database, "set_up", set_up_unsynced)


def answers_come_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def commit_later(connection: sqlite3.Connection) -> Iterator[None]:
        if connection.in_transaction:
            connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    patch.setattr(sqlite_metadata_store, "transaction", commit_later)


def nothing_is_written_over_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite_metadata_store._Table, "_undo", lambda self: self._committed())


def the_mark_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite_metadata_store, "_require_as_far_as", lambda answered, totals, mark_path: None)


def the_mark_is_written_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    count_commit = sqlite_metadata_store._Table._count_commit

    def mark_first(self: Any) -> None:
        self._mark.write(self.totals.commits + 1)
        count_commit(self)

    patch.setattr(sqlite_metadata_store._Table, "_count_commit", mark_first)


def directories_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FaultDisk, "sync_directory", lambda self, directory: None)


def a_log_whose_sync_failed_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Disk, "rewrite_log", lambda self, database: None)


def rows_and_sums_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    def unchecked(connection: sqlite3.Connection) -> Totals:
        return Totals(*connection.execute("SELECT commits, row_count, row_sum FROM totals").fetchone())

    patch.setattr("pybroker.metadata.sqlite_table.check", unchecked)
    patch.setattr(sqlite_metadata_store, "require_whole", lambda *args: None)


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
def test_model_finds_mutant(plant: Plant, tmp_path: Path) -> None:
    with found_by_walk(plant, StoreError):
        run_many(tmp_path)


def run_many(directory: Path) -> None:
    for seed in range(SCRIPTS_FOR_A_BUG):
        run_script(directory, draw_script(seed, 25))
