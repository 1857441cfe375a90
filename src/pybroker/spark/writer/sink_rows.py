"""Conversion of the rows of a data frame to messages: payload columns and metadata columns."""

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
    """Rows or columns cannot be sent. The text contains the rows or columns and the correction."""


def payload_fields(schema: pa.Schema, topic: str | None) -> list[pa.Field]:
    names = schema.names
    for name in names:
        if name in METADATA_TYPES and name not in WRITABLE:
            raise RowsRefused(f"column {name} is set by the broker and cannot be written: drop the column")
    if topic is None and TOPIC not in names:
        raise RowsRefused("the topic to write to is unknown: set option topic, or add a column __topic")
    found = [field for field in schema if field.name not in WRITABLE]
    if not found:
        raise RowsRefused("the data frame has no payload column: add a column such as value")
    return found


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each target topic with its rows. `topic`, the option, has precedence over the column `__topic`. Raises
    RowsRefused for a row without a topic.
    """
    if topic is not None:
        yield topic, batch
        return
    topics = batch.column(TOPIC)
    if topics.null_count:
        raise RowsRefused("a row has no value in the column __topic: fill the column, or set option topic")
    for each in pc.unique(topics).to_pylist():
        yield each, batch.filter(pc.equal(topics, each))


def messages(batch: pa.RecordBatch, encoder: ValueEncoder) -> MessageColumns:
    values, keys = encoder.encode(batch)
    names = batch.schema.names
    if keys is None and KEY in names:
        keys = batch.column(KEY)

    def column(name: str) -> pa.Array | None:
        return batch.column(name) if name in names else None

    return MessageColumns(values, keys, column("__orderingKey"), column("__eventTime"), column("__messageProperties"))


def split(rows: MessageColumns, partitions: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[int, MessageColumns]:
    found = np.unique(partitions).tolist()
    if len(found) == 1:
        return {found[0]: rows}
    return {each: rows.take(np.flatnonzero(partitions == each)) for each in found}
