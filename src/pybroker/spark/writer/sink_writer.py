"""The writers that Spark calls to write a batch, or each batch of a stream.

Spark creates a writer on the driver, pickles it for the tasks, and creates another one in another process for each
commit. So a writer contains only options. Spark reports a failed commit of a stream without its cause, so the writer
logs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pybroker.model.txn_id import TxnId
from pybroker.runtime import logs
from pybroker.spark.pyspark_api import StreamArrowWriter, arrow_schema
from pybroker.spark.writer.exact_writer import ExactWriter, abort_batch, commit_batch
from pybroker.spark.writer.once_writer import OncePlan, OnceWriter, complete_batch, plan_batch
from pybroker.spark.writer.sink_notes import Writer
from pybroker.spark.writer.sink_options import EFFECTIVELY_ONCE, EXACTLY_ONCE, WriteOptions, parse_write_options
from pybroker.spark.writer.sink_rows import payload_fields
from pybroker.spark.writer.topic_writer import TopicWriter, WriteFailed, Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"


@dataclass
class TaskWritten(WriterCommitMessage):
    """The result of one task, sent to the driver."""

    task: int
    written: Written = field(default_factory=Written)
    who: Writer | None = None
    """The query, run and batch of the writer; None for at-least-once."""
    txn: TxnId | None = None
    """Exactly once: the transaction to commit; None if the batch is already committed."""


def _writer_of(context: TaskContext, options: WriteOptions) -> Writer:
    """Return query, run and batch from the task properties that Spark sets for streams. Any other write counts as batch
    0 of its own query.
    """
    batch, query = context.getLocalProperty(_BATCH_ID), context.getLocalProperty(_QUERY_ID)
    if batch is None or query is None:
        return Writer(f"job-{options.sink_id}", "", 0)
    return Writer(query, context.getLocalProperty(_RUN_ID) or "", int(batch))


def checked(options: Mapping[str, str], schema: StructType, *, is_stream: bool) -> WriteOptions:
    parsed = parse_write_options(options, is_stream=is_stream)
    payload_fields(arrow_schema(schema), parsed.topic)
    return parsed


class _Writer:
    """The common part of both writers. Created on the driver before the tasks of each batch, and again for its commit."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._plan: OncePlan | None = None
        self._attempt = uuid4().hex  # the driver's attempt to write this batch
        if options.delivery == EFFECTIVELY_ONCE:
            self._plan = plan_batch(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        try:
            if self._plan is not None:
                return self._write_once(iterator, task, _writer_of(context, self._options), self._plan)
            if self._options.delivery == EXACTLY_ONCE:
                return self._write_exactly(iterator, task, _writer_of(context, self._options))
            return self._write(iterator, task)
        except Exception as error:
            logs.error("sink.task_failed", task=task, attempt=context.attemptNumber(), reason=error)
            raise

    def _write(self, iterator: Iterator[pa.RecordBatch], task: int) -> TaskWritten:
        writer = TopicWriter(self._options, task)
        try:
            for batch in iterator:
                writer.write(batch)
            return TaskWritten(task, writer.finish())
        finally:
            writer.close()

    def _write_once(self, iterator: Iterator[pa.RecordBatch], task: int, who: Writer, plan: OncePlan) -> TaskWritten:
        writer = OnceWriter(self._options, task, who, plan)
        try:
            take = writer.write if writer.start() else writer.skip
            for batch in iterator:
                take(batch)
            return TaskWritten(task, writer.finish(), who)
        finally:
            writer.close()

    def _write_exactly(self, iterator: Iterator[pa.RecordBatch], task: int, who: Writer) -> TaskWritten:
        writer = ExactWriter(self._options, task, who, self._attempt)
        try:
            take = writer.write if writer.start() else writer.skip
            for batch in iterator:
                take(batch)
            return TaskWritten(task, writer.finish(), who, writer.txn)
        except BaseException:
            writer.abort()
            raise
        finally:
            writer.close()

    def _complete(self, messages: list[Any]) -> None:
        sent = [each for each in messages if isinstance(each, TaskWritten)]
        if not sent or (who := sent[0].who) is None:
            return
        try:
            if self._plan is not None:
                complete_batch(self._options, who, len(messages), sum(each.written.rows for each in sent))
            elif not commit_batch(self._options, who, [each.txn for each in sent if each.txn is not None]):
                logs.info("sink.batch_already_committed", batch=who.batch)
        except Exception as error:
            logs.error("sink.commit_failed", batch=who.batch, reason=error)  # Spark does not report the cause
            raise

    def _take_back(self, batch: int) -> None:
        """Exactly once: abort the transactions of the tasks now, instead of waiting for their timeout."""
        if self._options.delivery != EXACTLY_ONCE:
            return
        try:
            abort_batch(self._options, batch)
        except WriteFailed as error:  # Spark reports another error, and the next attempt aborts them
            logs.warning("sink.batch_not_aborted", batch=batch, reason=error)


def _figures(messages: list[Any]) -> dict[str, object]:
    sent = [each.written for each in messages if isinstance(each, TaskWritten)]
    return {
        "tasks": len(messages),
        "rows": sum(each.rows for each in sent),
        "entries": sum(each.entries for each in sent),
        "skipped_rows": sum(each.skipped_rows for each in sent),
        "doubled_rows": sum(each.doubled_rows for each in sent),
        "topics": ",".join(sorted({topic for each in sent for topic in each.topics})),
    }


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a data frame once."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._complete(messages)
        logs.info("sink.committed", **_figures(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Handle a failed write. Rows of successful tasks remain stored, except with exactly-once delivery, where their
        transactions are aborted.
        """
        self._take_back(0)
        logs.info("sink.aborted", **_figures(messages))


class StreamWriter(_Writer, StreamArrowWriter):
    """Writes one batch of a stream."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        self._complete(messages)
        logs.info("sink.committed", batch=batchId, **_figures(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Handle a failed batch. Rows of successful tasks remain stored, except with exactly-once delivery, where their
        transactions are aborted.
        """
        self._take_back(batchId)
        logs.info("sink.aborted", batch=batchId, **_figures(messages))
