"""A pipeline that is killed at each step, alone and beside another one, with maintenance beside it: no row lost or doubled.

`LAKE_KILL_SEEDS=n` kills at random with so many seeds; `make pipelines` does so beside everything else.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.tables.lake.child import EXIT_REFUSED
from tests.tables.lake.made_up_topic import MadeUpPlanner
from tests.tables.lake.tables import FORMATS, identities, open_table, rows_of

from pybroker.lake.iceberg.iceberg_format import IcebergTable
from pybroker.lake.table_maintenance import Maintenance, MaintenanceOptions

ROOT = Path(__file__).resolve().parents[3]
STEPS = {
    "created": 1,
    "before-lease": 1,
    "files-written": 2,
    "before-commit": 3,
    "metadata-written": 3,
    "after-commit": 3,
}
ENTRIES = 400
MOST_STARTS = 100
"""After so many starts of two writers that disturb each other, one of them completes the table alone."""
DONE_WITHIN_S = 300
SEEDS = int(os.environ.get("LAKE_KILL_SEEDS", "1"))


def start(kind: str, directory: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.tables.lake.child", kind, str(directory), *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


def expected(entries: int = ENTRIES) -> list[tuple[str, int, int]]:
    return MadeUpPlanner({"persistent://t/n/a": {1: entries // 2, 2: entries // 2}}).expected()


def check_files(kind: str, directory: Path) -> None:
    """After maintenance, the data files on disk are exactly those that versions of the table name."""
    table = open_table(kind, directory)
    maintenance = Maintenance(table, MaintenanceOptions(orphan_age_ms=0))
    maintenance.expire(2**60)  # a merge that was killed behind its commit has left the files of the version before
    maintenance.clean(2**60)
    state = table.load()
    if isinstance(table, IcebergTable):
        named = {
            path.removeprefix("file://") for path in state.reference.inspect.all_files().column("file_path").to_pylist()
        }
        assert not list(directory.rglob("*.tmp"))
        lists = {snapshot.manifest_list.removeprefix("file://") for snapshot in state.reference.metadata.snapshots}
        assert {str(path) for path in directory.rglob("snap-*.avro")} == lists
    elif kind == "delta":
        named = set(DeltaTable(str(directory / "delta")).file_uris())
    else:
        named = {table.load().data_location.removesuffix("data") + file.location for file in table.files(state)}
        assert not list(directory.rglob("*.tmp"))
    assert {str(path) for path in directory.rglob("*.parquet") if "_delta_log" not in path.parts} == named
    table.close()


@pytest.mark.parametrize("kind", FORMATS)
def test_killed_at_each_step_and_started_again_every_row_is_there_once(kind: str, tmp_path: Path) -> None:
    # The first commit only takes the lease, so the third one is in the middle of the work.
    deaths = [f"{step}:{nth}" for step, nth in STEPS.items() if step != "metadata-written" or kind == "iceberg"]
    assert start(kind, tmp_path, "--take-over", "--deaths", ",".join(deaths)).wait(DONE_WITHIN_S) == 0
    assert identities(rows_of(kind, tmp_path)) == expected()
    check_files(kind, tmp_path)


@pytest.mark.parametrize("kind", FORMATS)
def test_two_writers_at_once_lose_and_double_nothing(kind: str, tmp_path: Path) -> None:
    both = [start(kind, tmp_path, "--take-over", "--partition-by", "publish-hour") for _ in range(2)]
    codes = [process.wait(DONE_WITHIN_S) for process in both]
    assert set(codes) <= {0, EXIT_REFUSED}
    assert start(kind, tmp_path, "--take-over").wait(DONE_WITHIN_S) == 0
    assert identities(rows_of(kind, tmp_path)) == expected()
    check_files(kind, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_writers_killed_at_random_steps_beside_maintenance_lose_and_double_nothing(
    kind: str, seed: int, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    entries = 2000
    fixed = ["--take-over", "--entries", str(entries)]
    writers: list[subprocess.Popen[bytes] | None] = [None, None]
    maintenance: subprocess.Popen[bytes] | None = None
    kills, starts, is_done = 0, 0, False
    try:
        while not is_done or any(writers):
            for index, process in enumerate(writers):
                if process is not None and process.poll() is None:
                    continue
                if process is not None:
                    kills += process.returncode == -signal.SIGKILL
                    is_done |= process.returncode == 0
                    assert process.returncode in (0, EXIT_REFUSED, -signal.SIGKILL)
                starts += 1
                # A writer that starts takes the lease from the other one: on a slow machine, neither would get ahead.
                is_alone = starts > MOST_STARTS
                chance = [] if is_alone else ["--chance", "0.04", "--seed", str(dice.randrange(10**6))]
                ends = is_done or (is_alone and index > 0)
                writers[index] = None if ends else start(kind, tmp_path, *fixed, *chance)
            if maintenance is None or maintenance.poll() is not None:
                if maintenance is not None:
                    assert maintenance.returncode in (0, -signal.SIGKILL, EXIT_REFUSED)
                maintenance = start(
                    kind, tmp_path, "--maintain", "--chance", "0.02", "--seed", str(dice.randrange(10**6))
                )
            for process in writers:
                if process is not None:
                    try:
                        process.wait(0.2)
                    except subprocess.TimeoutExpired:
                        continue
    finally:
        for process in (maintenance, *writers):
            if process is not None:
                process.kill()
                process.wait()
    assert kills > 5, starts
    assert identities(rows_of(kind, tmp_path)) == expected(entries)
    check_files(kind, tmp_path)
