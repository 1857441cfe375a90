"""The one operation of a target that keeps two writers apart, and what targets without it are told."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.tables.lake.made_up_topic import SCHEMA, MadeUpPlanner
from tests.tables.lake.tables import run_to_end

from pybroker.lake.lake_pipeline import LakeOptions, LakePipeline
from pybroker.lake.parquet import ParquetTable
from pybroker.lake.storage import AlreadyThere, Storage
from pybroker.lake.table_format import Change, CommitConflict
from pybroker.lake.workers import ThreadWorkers


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_of_many_that_write_a_file_if_it_is_absent_one_succeeds(kind: str, tmp_path: Path) -> None:
    root = str(tmp_path / "x") if kind == "file" else f"memory://{uuid.uuid4().hex}"

    def put(number: int) -> int | None:
        try:
            Storage(root).put_if_absent("log/1", b"%d" % number)
        except AlreadyThere:
            return None
        return number

    with ThreadPoolExecutor(1 if kind == "memory" else 4) as pool:
        winners = [number for number in pool.map(put, range(20)) if number is not None]
    assert len(winners) == 1
    assert Storage(root).read("log/1") == b"%d" % winners[0]
    assert [file.location.rsplit("/", 1)[1] for file in Storage(root).walk()] == ["1"]


def test_a_parquet_table_lives_on_any_target_such_as_memory() -> None:
    root = f"memory://{uuid.uuid4().hex}/table"
    planner = MadeUpPlanner()
    run_to_end(LakePipeline(ParquetTable(root, "main"), planner, ThreadWorkers(2), LakeOptions("main", "me", 30_000)))
    table = ParquetTable(root, "main")
    state = table.load()
    found = [
        entry_id for file in table.files(state) for entry_id in table.read_file(state, file)["__entryId"].to_pylist()
    ]
    assert sorted(found) == sorted(entry_id for _, _, entry_id in planner.expected())


def test_a_writer_that_slept_while_its_log_was_trimmed_is_refused(tmp_path: Path) -> None:
    table = ParquetTable(str(tmp_path), "main")
    table.create(SCHEMA, None)
    asleep = table.load()
    for number in range(200):
        state = table.load()
        lease = state.progress.lease.taken_by("other", number)
        state = table.commit(state, Change(state.progress.moved({}, lease)))
    under_way = tmp_path / "_pybroker" / "log" / f".{201:020}.0ff.tmp"
    under_way.write_bytes(b"of somebody who commits right now")
    table.expire(state, 1, 2**60)
    assert under_way.exists()
    assert not (tmp_path / "_pybroker" / "log" / f"{1:020}").exists()
    with pytest.raises(CommitConflict):
        table.commit(asleep, Change(asleep.progress.moved({}, asleep.progress.lease.taken_by("sleeper", 1))))
    assert table.load().progress.lease.epoch == 200
    assert not (tmp_path / "_pybroker" / "log" / f"{1:020}").exists()


def test_a_target_that_cannot_keep_writers_apart_is_refused(tmp_path: Path) -> None:
    storage = Storage(f"simplecache::file://{tmp_path}")
    with pytest.raises(OSError, match="use Iceberg"):
        storage.put_if_absent("x", b"")
