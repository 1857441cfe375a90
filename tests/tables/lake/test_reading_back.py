"""Tables are read by DuckDB and pandas over Arrow, after columns were added, renamed and promoted too."""

from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
from tests.tables.lake.made_up_topic import SCHEMA, MadeUpPlanner, MadeUpReading
from tests.tables.lake.tables import identities, open_table, pipeline_of, rows_of, run_to_end

from pybroker.lake.iceberg.iceberg_format import IcebergTable

A = "persistent://t/n/a"


def evolved_table(directory: Path) -> MadeUpPlanner:
    """A table whose column `n` became `number`, int and then long, and that got `extra`; the planner that wrote it."""
    planner = MadeUpPlanner({A: {1: 40}})
    planner.present_reading = MadeUpReading(SCHEMA.append(pa.field("n", pa.int32())))
    run_to_end(pipeline_of(open_table("iceberg", directory), planner))
    planner.ledgers[A][1] = 70
    planner.new_names = {"number": "n"}
    planner.present_reading = MadeUpReading(
        SCHEMA.append(pa.field("number", pa.int64())).append(pa.field("extra", pa.float64()))
    )
    run_to_end(pipeline_of(open_table("iceberg", directory), planner))
    return planner


def test_an_evolved_iceberg_table_is_counted_alike_by_arrow_duckdb_and_pandas(tmp_path: Path) -> None:
    planner = evolved_table(tmp_path)
    rows = rows_of("iceberg", tmp_path)
    assert identities(rows) == planner.expected()
    assert rows.schema.field("number").type == pa.int64()
    with duckdb.connect() as connection:
        found = connection.sql("select count(*), sum(number), count(extra) from rows").fetchall()[0]
    frame = rows.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert found == (70, sum(range(70)), 30)
    assert (len(frame), int(frame["number"].sum()), int(frame["extra"].count())) == found


def test_an_evolved_iceberg_table_reads_the_columns_of_its_time_at_an_older_snapshot(tmp_path: Path) -> None:
    evolved_table(tmp_path)
    table = open_table("iceberg", tmp_path)
    assert isinstance(table, IcebergTable)
    reference = table.load().reference
    older = next(s for s in reference.metadata.snapshots if s.summary["total-records"] == "40")
    rows = reference.scan(snapshot_id=older.snapshot_id).to_arrow()
    table.close()
    assert sorted(rows.column("n").to_pylist()) == list(range(40))
    assert "extra" not in rows.schema.names


def test_delta_and_parquet_tables_are_read_by_duckdb(tmp_path: Path) -> None:
    for kind in ("delta", "parquet"):
        planner = MadeUpPlanner()
        run_to_end(pipeline_of(open_table(kind, tmp_path), planner))
        rows = rows_of(kind, tmp_path)
        with duckdb.connect() as connection:
            assert connection.sql("select count(distinct (__ledgerId, __entryId)) from rows").fetchall() == [(100,)]
        assert len(rows.to_pandas()) == 100
