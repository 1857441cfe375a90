"""The data sources `pulsar-topics`, `pulsar-ledgers` and `pulsar-subscriptions`: tables that describe topics.

They use the topic and connection options of `pulsar`, and need `admin.url`, the address of the broker's REST API. The
rows show the state at the time of the query.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pybroker.client.rest import Refused
from pybroker.reading.entry_source import EntrySource, ReadingFailed, TopicMissing
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.rest_topics import parsed, segments_of
from pybroker.reading.transports.bulk_source import RestSource
from pybroker.spark.option_text import InvalidOptions
from pybroker.spark.pyspark_api import arrow_schema
from pybroker.spark.reader.opened import opened, source_options, task_source_options
from pybroker.spark.reader.query_planning import Planner
from pybroker.spark.reader.reader_options import parse_read_options
from pybroker.spark.table_rows import LEDGERS, SUBSCRIPTIONS, TOPICS, ledger_rows, subscription_rows, topic_row

TOPICS_A_TASK = 200
NOT_FOUND = 404


class _TableSource(DataSource):
    columns: ClassVar[pa.Schema]

    def schema(self) -> StructType:
        return from_arrow_schema(self.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        declared = arrow_schema(schema)
        unknown = [name for name in declared.names if name not in self.columns.names]
        if unknown:
            raise InvalidOptions(
                f"data source {self.name()} has no column {unknown[0]!r}: available columns: {', '.join(self.columns.names)}"
            )
        options = parse_read_options(self.options)
        if options.access.admin_url is None:
            raise InvalidOptions(
                f"data source {self.name()} needs option admin.url, the HTTP address of the broker, such as http://host:8080"
            )
        where = replace(source_options(options), mode="bulk")
        with opened(where) as source:
            topics = Planner(source, options).topics_once_there()
        return _TableReader(type(self), task_source_options(where), declared, topics)

    @classmethod
    @abstractmethod
    def rows(cls, source: EntrySource, topic: str) -> Iterator[dict[str, Any]]: ...


class TopicsSource(_TableSource):
    """One row per topic or partition."""

    columns = TOPICS

    @classmethod
    def name(cls) -> str:
        return "pulsar-topics"

    @classmethod
    def rows(cls, source: EntrySource, topic: str) -> Iterator[dict[str, Any]]:
        yield topic_row(topic, *_statistics(source, topic))


class LedgersSource(_TableSource):
    """One row per ledger that has entries."""

    columns = LEDGERS

    @classmethod
    def name(cls) -> str:
        return "pulsar-ledgers"

    @classmethod
    def rows(cls, source: EntrySource, topic: str) -> Iterator[dict[str, Any]]:
        yield from ledger_rows(source.plan(topic))


class SubscriptionsSource(_TableSource):
    """One row per subscription of each topic or partition."""

    columns = SUBSCRIPTIONS

    @classmethod
    def name(cls) -> str:
        return "pulsar-subscriptions"

    @classmethod
    def rows(cls, source: EntrySource, topic: str) -> Iterator[dict[str, Any]]:
        yield from subscription_rows(topic, *_statistics(source, topic))


@dataclass(frozen=True)
class _TopicsTask(InputPartition):
    topics: tuple[str, ...]


class _TableReader(DataSourceReader):
    def __init__(self, table: type[_TableSource], where: SourceOptions, columns: pa.Schema, topics: list[str]) -> None:
        self._table = table
        self._where = where
        self._columns = columns
        self._topics = topics

    def partitions(self) -> list[InputPartition]:
        starts = range(0, max(len(self._topics), 1), TOPICS_A_TASK)
        return [_TopicsTask(tuple(self._topics[start : start + TOPICS_A_TASK])) for start in starts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _TopicsTask)
        with opened(self._where) as source:
            for topic in partition.topics:
                try:
                    rows = list(self._table.rows(source, topic))
                except TopicMissing:
                    continue  # deleted since the query was planned
                columns = [
                    pa.array([row[field.name] for row in rows], self._table.columns.field(field.name).type).cast(
                        field.type
                    )
                    for field in self._columns
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self._columns)


def _statistics(source: EntrySource, topic: str) -> tuple[dict[str, Any], dict[str, Any]]:
    assert isinstance(source, RestSource)
    path = f"/admin/v2/persistent/{segments_of(parsed(topic))}"
    try:
        stats = source.rest.json("GET", path + "/stats?getPreciseBacklog=true&subscriptionBacklogSize=true")
        return stats, source.rest.json("GET", path + "/internalStats")
    except Refused as error:
        if error.status == NOT_FOUND:
            raise TopicMissing(str(error), topic) from error
        raise ReadingFailed(str(error)) from error
