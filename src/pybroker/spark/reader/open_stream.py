"""The common part of the stream readers for all versions of PySpark."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.reading.entry_source import EntrySource
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.sources import open_source
from pybroker.reading.typed import TypedReading
from pybroker.runtime import logs
from pybroker.spark.reader.opened import source_options
from pybroker.spark.reader.query_planning import Planner
from pybroker.spark.reader.reader_options import ReadOptions
from pybroker.spark.reader.reading_task import read_rows, tasks_of
from pybroker.spark.reader.rows import pinned_schema, reading_of
from pybroker.spark.reader.streaming import Document, StreamProgress


class Declared:
    """The columns that the query declares, and the topic schema with which they are read. The schema does not change
    during the query.
    """

    def __init__(self, options: ReadOptions, columns: pa.Schema, pinned: tuple[SchemaInfo | None] | None) -> None:
        self._options = options
        self._columns = columns
        self._pinned = pinned
        self._reading: TypedReading | None = None

    def reading(self, planner: Planner, topics: list[str]) -> TypedReading:
        if self._reading is None:
            pinned = self._pinned or (pinned_schema(planner.source, topics, self._options),)
            self._reading = reading_of(pinned[0], self._columns, self._options)
        return self._reading


class OpenStream(DataSourceStreamReader):
    """A stream. The copy on the driver keeps a connection to the broker for the duration of the query; the copies in
    tasks only read.
    """

    def __init__(self, options: ReadOptions, declared: Declared) -> None:
        self.options = options
        self._declared = declared
        self._opened: tuple[EntrySource, Planner, StreamProgress] | None = None

    def initialOffset(self) -> Document:  # noqa: N802
        return self.progress.initial()

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        groups = self.progress.tasks(start, end)
        if not groups:
            return []
        topics = sorted({one.topic for group in groups for one in group})
        reading = self._declared.reading(self.planner, topics)
        return tasks_of(groups, self._where, reading, self.options.fail_on_data_loss)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition)

    def commit(self, end: Document) -> None:
        self.progress.commit(end)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    @property
    def progress(self) -> StreamProgress:
        return self._open()[2]

    @property
    def planner(self) -> Planner:
        return self._open()[1]

    @property
    def _where(self) -> SourceOptions:
        return source_options(self.options)

    def _open(self) -> tuple[EntrySource, Planner, StreamProgress]:
        if self._opened is None:
            logs.info("spark.stream_opened", topics=str(self.options.choice))
            source = open_source(self._where)
            planner = Planner(source, self.options)
            self._opened = (source, planner, StreamProgress(planner))
        return self._opened
