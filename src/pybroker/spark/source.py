"""The Spark data source `pulsar`: topics as tables and streams.

For each load, Spark creates a `PulsarDataSource` in a separate process, pickles it, and creates readers from the
copies. So the class contains only the options and the schema, and no open resources.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.spark.option_text import InvalidOptions
from pybroker.spark.pyspark_api import HAS_READ_LIMITS, VERSION, arrow_schema
from pybroker.spark.reader.admission import Limits
from pybroker.spark.reader.older_stream_reader import OlderStreamReader
from pybroker.spark.reader.open_stream import Declared
from pybroker.spark.reader.opened import opened, source_options
from pybroker.spark.reader.query_planning import Planner, plan_batch
from pybroker.spark.reader.reader_options import ReadOptions, parse_read_options
from pybroker.spark.reader.reading_task import read_rows, tasks_of
from pybroker.spark.reader.rows import offered_columns, pinned_schema
from pybroker.spark.writer.sink import PulsarSink

NAME = "pulsar"
ALIAS = "pybroker"


class PulsarDataSource(PulsarSink, DataSource):
    """The data source `pulsar`, for reading and writing topics."""

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
        return BatchReader(options, Declared(options, arrow_schema(schema), self._pinned))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        options = parse_read_options(self.options)
        if options.has_ending_offsets:
            raise InvalidOptions("option endingOffsets works only for batch queries: use endingTime for a stream")
        declared = Declared(options, arrow_schema(schema), self._pinned)
        if HAS_READ_LIMITS:
            from pybroker.spark.reader.stream_reader import StreamReader  # noqa: PLC0415  (its base classes need PySpark 4.2)

            return StreamReader(options, declared)
        if options.limits != Limits():
            raise InvalidOptions(
                "options maxBytesPerTrigger and maxMessagesPerTrigger need PySpark 4.2 or newer for streams, "
                f"because PySpark {VERSION} cannot limit a micro-batch of a Python data source"
            )
        return OlderStreamReader(options, declared)


class PybrokerDataSource(PulsarDataSource):
    """The same data source under the name `pybroker`, for sessions in which the Scala connector's jar uses the name
    `pulsar`.
    """

    @classmethod
    def name(cls) -> str:
        return ALIAS


class BatchReader(DataSourceReader):
    """A batch query. The driver plans it once."""

    def __init__(self, options: ReadOptions, declared: Declared) -> None:
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
