"""Small files become few, old versions go with their files, files of nobody are removed; rows and positions stay."""

import os
from pathlib import Path

import pytest
from tests.tables.lake.made_up_topic import MadeUpPlanner
from tests.tables.lake.tables import FORMATS, identities, open_table, pipeline_of, rows_of, run_to_end

from pybroker.lake.partitioning import parse_partitioning
from pybroker.lake.pipeline_service import LakeService, ServiceOptions
from pybroker.lake.table_format import Change, LakeTable, TableState
from pybroker.lake.table_maintenance import Maintenance, MaintenanceOptions

pytestmark = pytest.mark.parametrize("kind", FORMATS)
ALL = MaintenanceOptions(merge_at_count=2, keep_versions=1, orphan_age_ms=0)
LATER = 2**60


def many_small_files(kind: str, directory: Path) -> MadeUpPlanner:
    planner = MadeUpPlanner()
    run_to_end(
        pipeline_of(
            open_table(kind, directory), planner, commit_bytes=10_000, partitioning=parse_partitioning("publish-hour")
        )
    )
    return planner


def parquet_files(directory: Path) -> set[str]:
    return {str(path) for path in directory.rglob("*.parquet") if "_delta_log" not in path.parts}


def test_merged_files_hold_the_same_rows_and_the_positions_stay(kind: str, tmp_path: Path) -> None:
    planner = many_small_files(kind, tmp_path)
    table = open_table(kind, tmp_path)
    before = table.load()
    done = Maintenance(table, ALL).merge()
    after = table.load()
    assert done.merged_files > done.merged_into > 0
    assert len(table.files(after)) == len(table.files(before)) - done.merged_files + done.merged_into
    assert after.progress.positions == before.progress.positions
    assert after.progress.lease.epoch == before.progress.lease.epoch
    assert identities(rows_of(kind, tmp_path)) == planner.expected()
    assert Maintenance(table, ALL).merge().merged_files == 0 or len(table.files(table.load())) < len(table.files(after))


def test_files_of_forgotten_versions_are_gone_and_only_those(kind: str, tmp_path: Path) -> None:
    planner = many_small_files(kind, tmp_path)
    table = open_table(kind, tmp_path)
    maintenance = Maintenance(table, ALL)
    maintenance.merge()
    before = parquet_files(tmp_path)
    assert maintenance.expire(LATER) > 0
    maintenance.expire(LATER)
    after = parquet_files(tmp_path)
    assert len(after) == len(table.files(table.load())) < len(before)
    assert maintenance.clean(LATER) == []
    assert identities(rows_of(kind, tmp_path)) == planner.expected()


def test_a_merge_is_put_on_top_of_what_was_appended_meanwhile(kind: str, tmp_path: Path) -> None:
    planner = many_small_files(kind, tmp_path)

    class Meanwhile:
        """Appends once between the merge's reading and its commit."""

        def __init__(self, table: LakeTable) -> None:
            self._commit = table.commit
            self.is_done = False
            table.commit = self.commit  # type: ignore[method-assign]

        def commit(self, state: TableState, change: Change) -> TableState:
            if not self.is_done:
                self.is_done = True
                planner.ledgers["persistent://t/n/a"][5] += 20
                run_to_end(pipeline_of(open_table(kind, tmp_path), planner))
            return self._commit(state, change)

    table = open_table(kind, tmp_path)
    meanwhile = Meanwhile(table)
    done = Maintenance(table, ALL).merge()
    assert meanwhile.is_done
    assert done.merged_files > 0
    assert identities(rows_of(kind, tmp_path)) == planner.expected()
    assert table.load().progress.positions["persistent://t/n/a"].entry_id == 60


def test_a_merge_whose_files_another_one_took_changes_nothing(kind: str, tmp_path: Path) -> None:
    planner = many_small_files(kind, tmp_path)
    table, other = open_table(kind, tmp_path), open_table(kind, tmp_path)
    state = table.load()
    group = [file for file in table.files(state) if file.partition == table.files(state)[0].partition]
    Maintenance(other, ALL).merge()
    assert Maintenance(table, ALL)._merge(state, group) == 0
    assert identities(rows_of(kind, tmp_path)) == planner.expected()


def test_files_of_nobody_are_removed_by_age_and_files_of_the_table_never(kind: str, tmp_path: Path) -> None:
    planner = many_small_files(kind, tmp_path)
    table = open_table(kind, tmp_path)
    directory = Path(table.load().data_location)
    young, old = directory / "other.e1.young.parquet", directory / "other.e1.old.parquet"
    for path in (young, old):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    maintenance = Maintenance(table, MaintenanceOptions(orphan_age_ms=3_600_000))
    now_ms = int(young.stat().st_mtime * 1000)
    assert maintenance.clean(now_ms, is_dry=True) == [str(old)]
    assert old.exists()
    assert maintenance.clean(now_ms) == [str(old)]
    assert young.exists()
    assert not old.exists()
    assert identities(rows_of(kind, tmp_path)) == planner.expected()


def test_a_service_keeps_its_table_small_while_it_writes(kind: str, tmp_path: Path) -> None:
    planner = MadeUpPlanner({"persistent://t/n/a": {1: 600}})
    table = open_table(kind, tmp_path)
    pipeline = pipeline_of(table, planner, commit_bytes=10_000, least_share_bytes=100_000)
    options = MaintenanceOptions(merge_at_count=8, keep_versions=4)
    service = LakeService(
        pipeline, Maintenance(table, options), ServiceOptions(is_once=True, merge_every=8, expire_every=8)
    )
    report = service.run()
    assert report.figures.commits == 60
    assert report.maintenance.merged_files >= 48
    assert len(table.files(table.load())) < 20
    assert not table.load().progress.lease.is_held(0)
    assert identities(rows_of(kind, tmp_path)) == planner.expected()
