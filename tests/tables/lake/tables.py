"""Tables of each format in a directory, made alike, and their rows read back by the format's own reader."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pybroker.lake.delta.delta_table import DeltaLakeTable
from pybroker.lake.iceberg.iceberg_format import IcebergTable, open_catalog
from pybroker.lake.lake_pipeline import LakeOptions, LakePipeline, Planner
from pybroker.lake.parquet import ParquetTable
from pybroker.lake.table_format import LakeTable
from pybroker.lake.workers import ThreadWorkers

FORMATS = ("iceberg", "delta", "parquet")
TOPICS = ("persistent://t/n/a", "persistent://t/n/b")


def open_table(kind: str, directory: Path, pipeline: str = "main") -> LakeTable:
    if kind == "iceberg":
        catalog = open_catalog(
            "lake",
            {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"},
        )
        return IcebergTable(catalog, "events.clicks", pipeline)
    if kind == "delta":
        return DeltaLakeTable(str(directory / "delta"), pipeline, TOPICS[:1])
    return ParquetTable(str(directory / "parquet"), pipeline)


def rows_of(kind: str, directory: Path) -> pa.Table:
    """By pyiceberg's scan, by delta-rs, by pyarrow over the files that the log names."""
    if kind == "iceberg":
        table = open_table(kind, directory)
        assert isinstance(table, IcebergTable)
        try:
            return table.load().reference.scan().to_arrow()
        finally:
            table.close()
    if kind == "delta":
        return DeltaTable(str(directory / "delta")).to_pyarrow_table()
    table = open_table(kind, directory)
    assert isinstance(table, ParquetTable)
    tables = [pq.read_table(Path(location), partitioning=None) for location in table.data_files()]
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({"__entryId": []})


def identities(rows: pa.Table) -> list[tuple[str, int, int]]:
    """Topic, ledger and entry of each row, checked against its value."""
    if not rows.num_rows:
        return []
    found = rows.select(["__topic", "__ledgerId", "__entryId", "value"]).to_pydict()
    names = list(zip(found["__topic"], found["__ledgerId"], found["__entryId"], strict=True))
    for (_, ledger_id, entry_id), value in zip(names, found["value"], strict=True):
        assert value.rstrip() == b"%d:%d" % (ledger_id, entry_id)
    return sorted(names)


def pipeline_of(
    table: LakeTable, planner: Planner, owner: str = "me", name: str = "main", **options: object
) -> LakePipeline:
    chosen: dict[str, object] = {"commit_bytes": 30_000, "least_share_bytes": 10_000, **options}
    return LakePipeline(table, planner, ThreadWorkers(2), LakeOptions(name, owner, **chosen))  # type: ignore[arg-type]


def run_to_end(pipeline: LakePipeline) -> None:
    pipeline.begin()
    while pipeline.step():
        pass
    pipeline.end()
