"""Rows of a data frame as messages of topics: which columns are the payload, which say where a row goes and what it carries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pybroker.columns.message_columns import METADATA_TYPES
from pybroker.columns.packed_columns import MessageColumns
from pybroker.columns.values.value_schema import ValueEncoder

TOPIC = "__topic"
KEY = "__key"
WRITABLE = (TOPIC, KEY, "__eventTime", "__messageProperties", "__orderingKey")


class RowsRefused(ValueError):
    """Rows, or a data frame's columns, that cannot be sent as they are; the text says which and what to do."""


def payload_fields(schema: pa.Schema, topic: str | None) -> list[pa.Field]:
    """The columns that are the payload. Raises RowsRefused for columns that mean nothing to a writer."""
    names = schema.names
    for name in names:
        if name in METADATA_TYPES and name not in WRITABLE:
            raise RowsRefused(f"column {name} is given by the broker and cannot be written: drop it")
    if topic is None and TOPIC not in names:
        raise RowsRefused("where to? Give option topic, or a column __topic")
    found = [field for field in schema if field.name not in WRITABLE]
    if not found:
        raise RowsRefused("there is no column for the payload: give one, such as value")
    return found


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order. The option's topic comes before the column. Raises RowsRefused for a null one."""
    if topic is not None:
        yield topic, batch
        return
    topics = batch.column(TOPIC)
    if topics.null_count:
        raise RowsRefused("a row has no __topic: fill the column, or give option topic")
    for each in pc.unique(topics).to_pylist():
        yield each, batch.filter(pc.equal(topics, each))


def messages(batch: pa.RecordBatch, encoder: ValueEncoder) -> MessageColumns:
    """The rows of `batch`, encoded. Raises ValueError naming column and row of what cannot be."""
    values, keys = encoder.encode(batch)
    names = batch.schema.names
    if keys is None and KEY in names:
        keys = batch.column(KEY)

    def column(name: str) -> pa.Array | None:
        return batch.column(name) if name in names else None

    return MessageColumns(values, keys, column("__orderingKey"), column("__eventTime"), column("__messageProperties"))


def split(rows: MessageColumns, partitions: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[int, MessageColumns]:
    """The rows of each partition, in their order."""
    found = np.unique(partitions).tolist()
    if len(found) == 1:
        return {found[0]: rows}
    return {each: rows.take(np.flatnonzero(partitions == each)) for each in found}
