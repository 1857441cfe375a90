"""The Spark data source `pulsar`: topics as tables and streams.

Spark makes a `PulsarDataSource` for each load, in a process of its own, pickles it, and asks the copies for readers. So it holds
options and the schema that it has pinned, and nothing that is open.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pybroker import logs
from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.reading.entry_source import EntrySource
from pybroker.reading.options import SourceOptions
from pybroker.reading.sources import open_source
from pybroker.reading.typed import TypedReading
from pybroker.spark.admission import UNLIMITED, Limits
from pybroker.spark.opened import opened, source_options
from pybroker.spark.option_text import InvalidOptions
from pybroker.spark.options import ReadOptions, parse_read_options
from pybroker.spark.planning import Planner, plan_batch
from pybroker.spark.reading_task import read_rows, tasks_of
from pybroker.spark.rows import offered_columns, pinned_schema, reading_of
from pybroker.spark.sink import PulsarSink
from pybroker.spark.streaming import Document, StreamProgress

NAME = "pulsar"
ALIAS = "pybroker"


class PulsarDataSource(PulsarSink, DataSource):
    """Reads topics, and writes them."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._pinned: tuple[SchemaInfo | None] | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = parse_read_options(self.options)
        with opened(source_options(options)) as source:
            topics = Planner(source, options).topics_once_there()
            self._pinned = (pinned_schema(source, topics, options),)
        return from_arrow_schema(offered_columns(self._pinned[0], options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_read_options(self.options)
        return BatchReader(options, _Declared(options, to_arrow_schema(schema, timezone="UTC"), self._pinned))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        options = parse_read_options(self.options)
        if options.has_ending_offsets:
            raise InvalidOptions("option endingOffsets is for batches; a stream may end at endingTime")
        return StreamReader(options, _Declared(options, to_arrow_schema(schema, timezone="UTC"), self._pinned))


class PybrokerDataSource(PulsarDataSource):
    """The same under a name that the Scala connector's jar does not hold."""

    @classmethod
    def name(cls) -> str:
        return ALIAS


class _Declared:
    """The columns that a query declares, and the schema by which they are read: pinned when first needed, if not before."""

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


class BatchReader(DataSourceReader):
    """A batch query, planned on the driver once."""

    def __init__(self, options: ReadOptions, declared: _Declared) -> None:
        self._options = options
        self._declared = declared

    def partitions(self) -> list[InputPartition]:
        where = source_options(self._options)
        with opened(where) as source:
            planner = Planner(source, self._options)
            groups = plan_batch(planner)
            topics = sorted({one.topic for group in groups for one in group}) or planner.topics_once_there()
            reading = self._declared.reading(planner, topics)
        return tasks_of(groups, where, reading, self._options.fail_on_data_loss)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. One copy lives on the driver as long as the query and has a source of its own; others only read tasks."""

    def __init__(self, options: ReadOptions, declared: _Declared) -> None:
        self._options = options
        self._declared = declared
        self._opened: tuple[EntrySource, Planner, StreamProgress] | None = None

    def initialOffset(self) -> Document:  # noqa: N802
        return self._progress.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limits = self._options.limits
        if limits.size_bytes < UNLIMITED:
            return ReadMaxBytes(limits.size_bytes)
        return ReadMaxRows(limits.message_count) if limits.message_count < UNLIMITED else ReadAllAvailable()

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802
        # There is no limit of bytes and rows at once in Spark: both come from the options, unless everything is asked for.
        return self._progress.latest(start, Limits() if isinstance(limit, ReadAllAvailable) else self._options.limits)

    def reportLatestOffset(self) -> Document:  # noqa: N802
        return self._progress.report_latest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._progress.freeze()

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        groups = self._progress.tasks(start, end)
        if not groups:
            return []
        topics = sorted({one.topic for group in groups for one in group})
        reading = self._declared.reading(self._planner, topics)
        return tasks_of(groups, self._where, reading, self._options.fail_on_data_loss)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition)

    def commit(self, end: Document) -> None:
        self._progress.commit(end)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    @property
    def _where(self) -> SourceOptions:
        return source_options(self._options)

    @property
    def _progress(self) -> StreamProgress:
        return self._open()[2]

    @property
    def _planner(self) -> Planner:
        return self._open()[1]

    def _open(self) -> tuple[EntrySource, Planner, StreamProgress]:
        if self._opened is None:
            logs.info("spark.stream_opened", topics=str(self._options.choice))
            source = open_source(self._where)
            planner = Planner(source, self._options)
            self._opened = (source, planner, StreamProgress(planner))
        return self._opened
