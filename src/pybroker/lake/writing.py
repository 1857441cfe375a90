"""Writes record batches to Parquet files, one open file per partition."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pybroker.lake.partitioning import Partitioning
from pybroker.lake.storage import Storage
from pybroker.lake.table_format import WrittenFile

DEFAULT_TARGET_BYTES = 256 * 1024 * 1024
MAX_OPEN_PARTITIONS = 64
"""Limit of open files. Above it, the largest one is finished: late data of many hours costs files instead of memory."""
MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Limit of rows buffered for row groups in one worker. Above it, the fullest file gets a smaller row group."""
ROW_GROUP_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class FileLayout:
    """Location and format of data files. Can be pickled."""

    data_location: str
    schema: pa.Schema
    """The file schema: the table's columns in its order and types, with field ids if the format has them."""
    partitioning: Partitioning | None
    prefix: str
    """Prefix of file names with pipeline and epoch, which tells cleaning whether the writer can still commit."""
    target_bytes: int = DEFAULT_TARGET_BYTES
    compression: str = "zstd"
    compression_level: int | None = 1
    storage_options: dict[str, Any] = field(default_factory=dict)


class FileWriter:
    """Writes batches to files. `finish` returns the files, `abandon` deletes them.

    Invariant: `finish` returns only closed files; other files are deleted, now or by maintenance.
    """

    def __init__(self, layout: FileLayout, source_schema: pa.Schema) -> None:
        self._layout = layout
        self._storage = Storage(layout.data_location, layout.storage_options)
        self._open: dict[int | None, _OpenFile] = {}
        self._finished: list[WrittenFile] = []
        self._projection = _Projection(source_schema, layout.schema)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._layout.partitioning is None:
            self._write(None, batch)
            return
        for value, part in self._layout.partitioning.split(batch):
            self._write(value, part)

    def _write(self, partition: int | None, batch: pa.RecordBatch) -> None:
        file = self._open.get(partition)
        if file is None:
            if len(self._open) >= MAX_OPEN_PARTITIONS:
                fullest = max(self._open, key=lambda value: self._open[value].size_bytes)
                self._finish(fullest)
            file = self._open[partition] = _OpenFile(self._layout, self._storage, partition)
        file.write(self._projection.apply(batch))
        if len(self._open) > 1 and sum(each.waiting_bytes for each in self._open.values()) > MAX_WAITING_BYTES:
            max(self._open.values(), key=lambda each: each.waiting_bytes).flush()
        if file.size_bytes >= self._layout.target_bytes:
            self._finish(partition)

    def _finish(self, partition: int | None) -> None:
        self._finished.append(self._open.pop(partition).finish())

    def finish(self) -> list[WrittenFile]:
        for partition in list(self._open):
            self._finish(partition)
        return self._finished

    def abandon(self) -> None:
        for file in self._open.values():
            file.abandon()
        for written in self._finished:
            self._storage.delete(written.location)
        self._open.clear()
        self._finished = []


def write_files(layout: FileLayout, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
    writer = FileWriter(layout, schema)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


class _OpenFile:
    def __init__(self, layout: FileLayout, storage: Storage, partition: int | None) -> None:
        directory = "" if layout.partitioning is None else layout.partitioning.path(partition) + "/"
        self._location = storage.location(f"{directory}{layout.prefix}.{uuid.uuid4().hex}.parquet")
        self._partition = partition
        self._storage = storage
        self._output: IO[bytes] = storage.create(self._location)
        self._writer = pq.ParquetWriter(
            self._output,
            layout.schema,
            compression=layout.compression,
            compression_level=layout.compression_level,
            use_dictionary=_dictionary_columns(layout.schema),
            store_decimal_as_integer=True,
        )
        self._schema = layout.schema
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self._row_count = 0

    @property
    def size_bytes(self) -> int:
        """The estimated size of the file in bytes; buffered rows count as a third of their size in memory."""
        return self._output.tell() + self.waiting_bytes // 3

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes
        self._row_count += batch.num_rows
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._waiting, self.waiting_bytes = [], 0

    def finish(self) -> WrittenFile:
        self.flush()
        self._writer.close()
        size_bytes = self._output.tell()
        self._output.close()
        return WrittenFile(self._location, size_bytes, self._row_count, self._partition, self._writer.writer.metadata)

    def abandon(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError):
            self._output.close()
        self._storage.delete(self._location)


def _dictionary_columns(schema: pa.Schema) -> list[str] | bool:
    """Return the columns for which Parquet tries a dictionary. For payloads and ids, a trial would cost a third of the
    write time without benefit.
    """
    repeating = [
        field.name
        for field in schema
        if (pa.types.is_string(field.type) and field.name != "value")
        or field.name in ("__key", "__partition", "__schemaVersion")
    ]
    return repeating or False


class _Projection:
    def __init__(self, source: pa.Schema, target: pa.Schema) -> None:
        unknown = [name for name in source.names if name not in target.names]
        assert not unknown, f"columns {unknown} are read but not in the table: it should have been evolved first"
        self._target = target
        self._indexes = [source.get_field_index(name) for name in target.names]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for index, wanted in zip(self._indexes, self._target, strict=True):
            if index < 0:
                columns.append(pa.nulls(batch.num_rows, wanted.type))
                continue
            column = batch.column(index)
            columns.append(column if column.type == wanted.type else pc.cast(column, wanted.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._target)
