"""The sink of the data source `pulsar`: what Spark calls to write a batch, or each batch of a stream.

Spark makes a writer on the driver, carries it to the tasks, and makes another one, in another process, for each commit. So a
writer holds options only. What fails in a commit of a stream reaches the user without its cause: it is logged here as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from pybroker import logs
from pybroker.spark.option_text import InvalidOptions
from pybroker.spark.sink_options import WriteOptions, parse_write_options
from pybroker.spark.sink_rows import payload_fields
from pybroker.spark.topic_writer import TopicWriter, Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass
class TaskWritten(WriterCommitMessage):
    """What one task tells the driver."""

    task: int
    written: Written = field(default_factory=Written)


class PulsarSink:
    """The writing half of a `DataSource`: inherit it beside that class. Needs its `options`."""

    options: Mapping[str, str]

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Of a batch. Raises InvalidOptions and RowsRefused before anything runs."""
        if overwrite:
            raise InvalidOptions('topics are only appended to: use mode("append")')
        return BatchWriter(_checked(self.options, schema, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Of each batch of a stream."""
        if overwrite:
            raise InvalidOptions('topics are only appended to: use outputMode("append")')
        return StreamWriter(_checked(self.options, schema, is_stream=True))


def _checked(options: Mapping[str, str], schema: StructType, *, is_stream: bool) -> WriteOptions:
    parsed = parse_write_options(options, is_stream=is_stream)
    payload_fields(to_arrow_schema(schema, timezone="UTC"), parsed.topic)
    return parsed


class _Writer:
    """What both writers do."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """In a task: send all rows, and return when they are stored."""
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        writer = TopicWriter(self._options, task)
        try:
            for batch in iterator:
                writer.write(batch)
            return TaskWritten(task, writer.finish())
        except Exception as error:
            logs.error("sink.task_failed", task=task, attempt=context.attemptNumber(), reason=error)
            raise
        finally:
            writer.close()

    def _log(self, event: str, messages: list[Any], **fields: object) -> None:
        sent = [each.written for each in messages if isinstance(each, TaskWritten)]
        logs.info(
            event,
            tasks=len(messages),
            rows=sum(each.rows for each in sent),
            entries=sum(each.entries for each in sent),
            topics=",".join(sorted({topic for each in sent for topic in each.topics})),
            **fields,
        )


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a data frame once."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._log("sink.committed", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What the tasks that succeeded have sent stays: topics take nothing back."""
        self._log("sink.aborted", messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes one batch of a stream."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        self._log("sink.committed", messages, batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What the tasks that succeeded have sent stays: topics take nothing back."""
        self._log("sink.aborted", messages, batch=batchId)
