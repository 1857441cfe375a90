"""One writer and what it finds in the table, for each format."""

from pathlib import Path

import pyarrow as pa
import pytest
from tests.tables.lake.made_up_topic import SCHEMA, MadeUpPlanner, MadeUpReading
from tests.tables.lake.tables import FORMATS, identities, open_table, pipeline_of, rows_of, run_to_end

from pybroker.lake.evolution import EvolutionRefused
from pybroker.lake.lake_pipeline import LeaseHeld, LeaseLost
from pybroker.lake.partitioning import parse_partitioning
from pybroker.lake.table_format import Change, CommitConflict
from pybroker.reading.positions import Place

pytestmark = pytest.mark.parametrize("kind", FORMATS)
A, B = "persistent://t/n/a", "persistent://t/n/b"


def test_every_row_is_in_the_table_once_however_often_the_pipeline_begins(kind: str, tmp_path: Path) -> None:
    planner = MadeUpPlanner()
    for _ in range(2):
        run_to_end(pipeline_of(open_table(kind, tmp_path), planner))
        assert identities(rows_of(kind, tmp_path)) == planner.expected()
    planner.ledgers[A][5] += 25
    planner.ledgers[B] = {7: 30}
    run_to_end(pipeline_of(open_table(kind, tmp_path), planner))
    assert identities(rows_of(kind, tmp_path)) == planner.expected()
    table = open_table(kind, tmp_path)
    table.follow([A, B])
    assert table.load().progress.positions == {A: Place(5, 65), B: Place(7, 30)}


@pytest.mark.parametrize("partitioning", ["publish-hour", "publish-day", "event-hour", "event-day"])
def test_rows_are_in_the_partition_of_their_time(kind: str, partitioning: str, tmp_path: Path) -> None:
    planner = MadeUpPlanner()
    chosen = parse_partitioning(partitioning)
    assert chosen is not None
    run_to_end(pipeline_of(open_table(kind, tmp_path), planner, partitioning=chosen))
    assert identities(rows_of(kind, tmp_path)) == planner.expected()
    table = open_table(kind, tmp_path)
    state = table.load()
    assert state.partitioning == chosen
    for file in table.files(state):
        times = table.read_file(state, file).column(chosen.column)
        width = 3_600_000_000 if chosen.unit == "hour" else 86_400_000_000
        assert {None if t is None else t // width for t in times.cast(pa.int64()).to_pylist()} == {file.partition}


def test_the_second_writer_is_refused_while_the_first_holds_the_lease(kind: str, tmp_path: Path) -> None:
    first = pipeline_of(open_table(kind, tmp_path), MadeUpPlanner(), "first")
    first.begin()
    with pytest.raises(LeaseHeld, match="--take-over"):
        pipeline_of(open_table(kind, tmp_path), MadeUpPlanner(), "second").begin()
    first.end()
    run_to_end(pipeline_of(open_table(kind, tmp_path), MadeUpPlanner(), "second"))


def test_the_first_writer_ends_at_its_next_commit_when_the_second_takes_over(kind: str, tmp_path: Path) -> None:
    planner = MadeUpPlanner()
    first = pipeline_of(open_table(kind, tmp_path), planner, "first")
    first.begin()
    assert first.step()
    second = pipeline_of(open_table(kind, tmp_path), planner, "second", takes_over=True)
    second.begin()
    assert second.step()
    with pytest.raises(LeaseLost):
        first.step()
    while second.step():
        pass
    assert identities(rows_of(kind, tmp_path)) == planner.expected()
    table = open_table(kind, tmp_path)
    assert not table.orphans(table.load(), 2**60)


def test_a_stale_commit_is_refused_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    table = open_table(kind, tmp_path)
    table.create(SCHEMA, None)
    stale = table.load()
    moved = stale.progress.moved({A: Place(3, 5)}, stale.progress.lease.taken_by("x", 1))
    open_table(kind, tmp_path).commit(open_table(kind, tmp_path).load(), Change(moved))
    with pytest.raises(CommitConflict):
        table.commit(stale, Change(stale.progress.moved({A: Place(9, 9)}, stale.progress.lease)))
    found = table.load().progress
    assert found.positions == {A: Place(3, 5)}
    assert found.lease.epoch == 1


def test_two_pipelines_of_different_names_share_a_table(kind: str, tmp_path: Path) -> None:
    one = MadeUpPlanner({A: {1: 50}})
    two = MadeUpPlanner({B: {2: 50}})
    first = pipeline_of(open_table(kind, tmp_path), one)
    first.begin()
    other = pipeline_of(open_table(kind, tmp_path, "other"), two, name="other")
    other.begin()
    busy = True
    while busy:
        busy = any([first.step(), other.step()])
    assert identities(rows_of(kind, tmp_path)) == sorted(one.expected() + two.expected())
    assert first.figures.conflicts > 0


def test_new_columns_are_null_in_old_rows(kind: str, tmp_path: Path) -> None:
    planner = MadeUpPlanner()
    run_to_end(pipeline_of(open_table(kind, tmp_path), planner))
    planner.present_reading = MadeUpReading(SCHEMA.append(pa.field("extra", pa.int32())))
    planner.ledgers[A][5] += 10
    run_to_end(pipeline_of(open_table(kind, tmp_path), planner))
    rows = rows_of(kind, tmp_path)
    assert identities(rows) == planner.expected()
    assert rows.column("extra").null_count == 100
    assert sorted(v for v in rows.column("extra").to_pylist() if v is not None) == list(range(40, 50))


def test_a_column_that_does_not_fit_stops_the_pipeline_or_gets_a_place_of_its_own(kind: str, tmp_path: Path) -> None:
    planner = MadeUpPlanner()
    planner.present_reading = MadeUpReading(SCHEMA.append(pa.field("n", pa.int32())))
    run_to_end(pipeline_of(open_table(kind, tmp_path), planner))
    planner.present_reading = MadeUpReading(SCHEMA.append(pa.field("n", pa.string())))
    planner.ledgers[A][5] += 10
    with pytest.raises(EvolutionRefused, match="'n' is int32 and would become string"):
        run_to_end(pipeline_of(open_table(kind, tmp_path), planner, takes_over=True))
    run_to_end(pipeline_of(open_table(kind, tmp_path), planner, takes_over=True, splits_columns=True))
    rows = rows_of(kind, tmp_path)
    assert identities(rows) == planner.expected()
    assert (rows.column("n").null_count, rows.column("n__string").null_count) == (10, 100)
    assert sorted(v for v in rows.column("n__string").to_pylist() if v) == [str(i) for i in range(40, 50)]


def test_topics_that_appear_while_it_runs_are_read_once_also_after_it_begins_again(kind: str, tmp_path: Path) -> None:
    planner = MadeUpPlanner()
    for number in range(3):
        planner.ledgers[f"persistent://t/n/new-{number}"] = {9: 10}
        for _ in range(2):
            pipeline = pipeline_of(open_table(kind, tmp_path), planner)
            pipeline.begin()
            pipeline.step()
            planner.ledgers.setdefault(f"persistent://t/n/later-{number}", {4: 5})
            while pipeline.step():
                pass
            pipeline.end()
            assert identities(rows_of(kind, tmp_path)) == planner.expected()
