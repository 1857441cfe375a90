"""The columns of a message before its value is typed: their names, Arrow types and which of them are there unasked.

The six of `DEFAULT_COLUMNS` are those of the Scala connector, with the same types; the others come on request.
"""

from __future__ import annotations

import pyarrow as pa

VALUE = "value"
"""The payload as bytes; null for a message whose value is null (a tombstone)."""

_TIME = pa.timestamp("us", tz="UTC")

METADATA_TYPES: dict[str, pa.DataType] = {
    "__key": pa.binary(),
    "__topic": pa.string(),  # of the partition: persistent://tenant/namespace/topic-partition-0
    "__messageId": pa.binary(),  # MessageIdData as protobuf
    "__publishTime": _TIME,
    "__eventTime": _TIME,  # null where the producer set none
    "__messageProperties": pa.map_(pa.string(), pa.string()),
    "__ledgerId": pa.int64(),
    "__entryId": pa.int64(),
    "__batchIndex": pa.int32(),  # -1 for a message that was not sent in a batch
    "__partition": pa.int32(),  # -1 for a topic without partitions
    "__index": pa.int64(),  # the broker's running number, null where the broker gives none
    "__producerName": pa.string(),
    "__sequenceId": pa.int64(),
    "__schemaVersion": pa.binary(),
    "__redeliveryCount": pa.int32(),  # 0: nothing is redelivered to a reader
    "__orderingKey": pa.binary(),
    "__replicatedFrom": pa.string(),
}
DEFAULT_COLUMNS = ("__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties")
ERROR_COLUMN = "__error"
"""Why a record could not be decoded, with `badRecords=column`; null for a good one."""


def metadata_field(name: str) -> pa.Field:
    """The Arrow field of a metadata column; KeyError for a name that is none. Any may be null, as the Scala connector tells
    Spark, although every message has a place and a publish time.
    """
    return pa.field(name, METADATA_TYPES[name], nullable=True)
