"""Spark read tasks, which are pickled and sent to workers."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from pybroker.columns.freed_memory import keep_freed_memory
from pybroker.columns.message_columns import metadata_field
from pybroker.reading.lossy_reads import LossyReads
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.typed import TypedReader, TypedReading
from pybroker.spark.reader.cuts import TopicRange
from pybroker.spark.reader.opened import opened, task_source_options

_ENTRY, _BATCH_INDEX = "__entryId", "__batchIndex"


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """One Spark partition: the entry ranges that a task reads, in order, and the columns that it returns."""

    source: SourceOptions
    reading: TypedReading
    ranges: tuple[TopicRange, ...]
    fail_on_data_loss: bool

    def __repr__(self) -> str:
        return f"ReadTask({len(self.ranges)} ranges of {', '.join(sorted({one.topic for one in self.ranges})[:3])})"


def tasks_of(
    groups: Sequence[tuple[TopicRange, ...]], source: SourceOptions, reading: TypedReading, fail_on_data_loss: bool
) -> list[InputPartition]:
    """Return one task for each group of ranges. Without groups, return one empty task, because Spark requires a
    task.
    """
    where = task_source_options(source)
    return [ReadTask(where, reading, group, fail_on_data_loss) for group in groups or [()]]


def read_rows(task: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(task, ReadTask) or not task.ranges:
        return
    _settle_process()
    with opened(task.source) as own:
        source = own if task.fail_on_data_loss else LossyReads(own)
        readers: dict[bool, TypedReader] = {}
        for one in task.ranges:
            is_cut = one.from_batch_index > 0 or one.until_batch_index >= 0
            if is_cut not in readers:
                readers[is_cut] = TypedReader(source, _with_place(task.reading) if is_cut else task.reading)
            batches = readers[is_cut].read(one.entries)
            if is_cut:
                batches = _without_outer_messages(batches, one, task.reading.columns)
            yield from batches


@cache
def _settle_process() -> None:
    """Prepare a worker process once.

    Spark's workers collect garbage after each task, which took 40 ms of processor time, a quarter of Python's time for
    a task of 64 MiB. `gc.freeze` excludes all existing objects.
    """
    gc.collect()
    gc.freeze()
    keep_freed_memory()


def _with_place(reading: TypedReading) -> TypedReading:
    columns = reading.columns
    for name in (_ENTRY, _BATCH_INDEX):
        if name not in columns.names:
            columns = columns.append(metadata_field(name))
    return replace(reading, columns=columns)


def _without_outer_messages(
    batches: Iterator[pa.RecordBatch], one: TopicRange, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    entries = one.entries
    for batch in batches:
        entry_ids, indexes = batch.column(_ENTRY), pc.max_element_wise(batch.column(_BATCH_INDEX), 0)
        left_out = pc.and_(pc.equal(entry_ids, entries.first_entry_id), pc.less(indexes, one.from_batch_index))
        if one.until_batch_index >= 0:
            is_last = pc.equal(entry_ids, entries.end_entry_id - 1)
            left_out = pc.or_(left_out, pc.and_(is_last, pc.greater_equal(indexes, one.until_batch_index)))
        kept = batch.filter(pc.invert(left_out)).select(columns.names)
        yield pa.RecordBatch.from_arrays(kept.columns, schema=columns)
