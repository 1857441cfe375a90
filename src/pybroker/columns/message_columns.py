"""Names and Arrow types of the message columns other than the typed payload.

`DEFAULT_COLUMNS` has the names and types of the Scala connector; the other columns are optional.
"""

from __future__ import annotations

import pyarrow as pa

VALUE = "value"
"""The payload as bytes; null for a tombstone."""

_TIME = pa.timestamp("us", tz="UTC")

METADATA_TYPES: dict[str, pa.DataType] = {
    "__key": pa.binary(),
    "__topic": pa.string(),  # with partition: persistent://tenant/namespace/topic-partition-0
    "__messageId": pa.binary(),  # MessageIdData as protobuf
    "__publishTime": _TIME,
    "__eventTime": _TIME,  # null if the producer did not set it
    "__messageProperties": pa.map_(pa.string(), pa.string()),
    "__ledgerId": pa.int64(),
    "__entryId": pa.int64(),
    "__batchIndex": pa.int32(),  # -1: not sent in a batch
    "__partition": pa.int32(),  # -1: not partitioned
    "__index": pa.int64(),  # the broker's message index, or null
    "__producerName": pa.string(),
    "__sequenceId": pa.int64(),
    "__schemaVersion": pa.binary(),
    "__redeliveryCount": pa.int32(),  # always 0: readers have no redelivery
    "__orderingKey": pa.binary(),
    "__replicatedFrom": pa.string(),
}
DEFAULT_COLUMNS = ("__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties")
ERROR_COLUMN = "__error"
"""With `badRecords=column`, the reason why a record could not be decoded."""


def metadata_field(name: str) -> pa.Field:
    return pa.field(name, METADATA_TYPES[name], nullable=True)
