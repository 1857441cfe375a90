"""A Spark data source for Iceberg tables that needs no jar: pyiceberg plans and reads the table.

    from pybroker.spark.iceberg_table import IcebergTableSource

    spark.dataSource.register(IcebergTableSource)
    spark.read.format("pulsar-lake").option("table", "events.clicks").option("target", "/data/lake").load()

Options: `table`; `target` (directory of the embedded catalog) or `catalog.KEY` for any catalog of pyiceberg; `catalogName`;
`snapshotId` for an older version. There is one partition per data file. Batches are cast to the current columns of the table,
because older files keep the columns of their time.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pybroker.columns.arrow_types import usual_type

NAME = "pulsar-lake"
KEYS = ("table", "target", "catalogname", "snapshotid")


class IcebergTableSource(DataSource):
    """The data source `pulsar-lake`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return from_arrow_schema(_Table(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(dict(self.options))


class _FilePartition(InputPartition):
    def __init__(self, task: bytes) -> None:
        super().__init__(task)


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        table = _Table(options)
        self._task_context = pickle.dumps((table.metadata, table.io_properties, table.location, table.snapshot_id))
        self._tasks = [pickle.dumps(task) for task in table.scan().plan_files()]

    def partitions(self) -> list[InputPartition]:
        return [_FilePartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415  (in the task)
        from pyiceberg.io import load_file_io  # noqa: PLC0415
        from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415

        # Trusted data: the driver writes it into its own plan, and its own tasks read it.
        metadata, properties, location, snapshot_id = pickle.loads(self._task_context)
        task = pickle.loads(partition.value)
        schema = _schema_at(metadata, snapshot_id)
        wanted = arrow_schema(schema)
        scan = ArrowScan(metadata, load_file_io(properties, location), schema, AlwaysTrue())
        for batch in scan.to_record_batches([task]):
            columns = [batch.column(field.name).cast(field.type) for field in wanted]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)


class _Table:
    def __init__(self, options: Mapping[str, str]) -> None:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415

        given = {key.lower(): value for key, value in options.items()}
        properties = {key.removeprefix("catalog."): value for key, value in given.items() if key.startswith("catalog.")}
        unknown = [key for key in given if key not in KEYS and not key.startswith("catalog.")]
        if unknown or "table" not in given:
            raise ValueError(
                f"{NAME} has no option {unknown}: its options are table, target, catalog.KEY, catalogName and snapshotId"
            )
        if not properties:
            target = given.get("target", "").removeprefix("file://").rstrip("/")
            if not target.startswith("/"):
                raise ValueError(
                    "option target is missing or invalid: set it to the absolute path of the directory with "
                    "catalog.db, or set catalog.KEY"
                )
            properties = {"type": "sql", "uri": f"sqlite:///{target}/catalog.db", "warehouse": f"file://{target}"}
        catalog = load_catalog(given.get("catalogname", "pybroker"), **properties)
        try:
            self._table = catalog.load_table(given["table"])
        finally:
            catalog.close()
        self.metadata = self._table.metadata
        self.location = self._table.metadata_location
        self.io_properties = dict(self._table.io.properties)
        self.snapshot_id = (
            int(given["snapshotid"]) if "snapshotid" in given else self._table.metadata.current_snapshot_id
        )

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(_schema_at(self.metadata, self.snapshot_id))

    def scan(self) -> Any:
        return self._table.scan(snapshot_id=self.snapshot_id)


def _schema_at(metadata: Any, snapshot_id: int | None) -> Any:
    if snapshot_id is None or snapshot_id == metadata.current_snapshot_id:
        return metadata.schema()
    schema_id = metadata.snapshot_by_id(snapshot_id).schema_id
    return next(schema for schema in metadata.schemas if schema.schema_id == schema_id)


def arrow_schema(schema: Any) -> pa.Schema:
    """Convert an Iceberg schema to Arrow with 32-bit offsets and nullable fields, as Spark expects."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

    return pa.schema([pa.field(f.name, usual_type(f.type)) for f in schema_to_pyarrow(schema, include_field_ids=False)])
