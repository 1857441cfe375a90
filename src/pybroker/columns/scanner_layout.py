"""Layouts of the records that a scanner writes for entries, messages and properties.

They must equal the layouts in `_scanner.c`, which reports its record sizes at import. A memory location consists of a
source number, an offset and a size. Source 0 is the run of entries; other sources are opened payloads (decompressed,
decrypted, or assembled from chunks). Size -1 means that the value is absent.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[np.void]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

LAYOUT_VERSION = 1
"""Increased with every change to the meaning of a record, flag, error or scanner argument."""

ENTRY = np.dtype(
    [
        ("publish_time_ms", "<i8"),
        ("event_time_ms", "<i8"),
        ("sequence_id", "<i8"),
        ("broker_index", "<i8"),  # from the broker's metadata, for the entry's last message
        ("metadata_at", "<i8"),
        ("payload_at", "<i8"),
        ("producer_name_at", "<i8"),
        ("replicated_from_at", "<i8"),
        ("key_at", "<i8"),
        ("ordering_key_at", "<i8"),
        ("schema_version_at", "<i8"),
        ("uuid_at", "<i8"),
        ("uncompressed_bytes", "<i8"),  # as claimed by the metadata
        ("metadata_bytes", "<i4"),
        ("payload_bytes", "<i4"),
        ("producer_name_bytes", "<i4"),
        ("replicated_from_bytes", "<i4"),
        ("key_bytes", "<i4"),
        ("ordering_key_bytes", "<i4"),
        ("schema_version_bytes", "<i4"),
        ("uuid_bytes", "<i4"),
        ("message_count", "<i4"),
        ("compression", "<i4"),
        ("chunk_id", "<i4"),
        ("chunk_count", "<i4"),
        ("payload_source", "<i4"),  # 0 until the opener sets it with payload_at and payload_bytes
        ("flags", "<i4"),
        ("error", "<i4"),
        ("reserved", "<i4"),
    ]
)
MESSAGE = np.dtype(
    [
        ("event_time_ms", "<i8"),
        ("sequence_id", "<i8"),
        ("value_at", "<i8"),
        ("key_at", "<i8"),
        ("ordering_key_at", "<i8"),
        ("value_bytes", "<i4"),
        ("key_bytes", "<i4"),
        ("ordering_key_bytes", "<i4"),
        ("value_source", "<i4"),
        ("metadata_source", "<i4"),  # source of key, ordering key and properties
        ("entry", "<i4"),  # index among the scanned entries
        ("batch_index", "<i4"),
        ("first_property", "<i4"),
        ("property_count", "<i4"),
        ("flags", "<i4"),
        ("error", "<i4"),
        ("reserved", "<i4"),
    ]
)
PROPERTY = np.dtype([("key_at", "<i8"), ("value_at", "<i8"), ("key_bytes", "<i4"), ("value_bytes", "<i4")])
STATE = np.dtype([("entry", "<i8"), ("batch_index", "<i8"), ("pos", "<i8")])
"""Position from which `scan_messages` continues: entry, next message of its batch, and that message's offset in the
payload.
"""


class Flag(IntFlag):
    """Flags of entries. Flags up to KEY_IS_BASE64 also apply to messages."""

    EVENT_TIME = 1
    NULL_VALUE = 2
    NULL_KEY = 4
    KEY_IS_BASE64 = 8
    PROPERTIES = 16
    REPEATED_PROPERTIES = 32  # of messages: names may repeat and must be compared
    INDEX = 64
    BATCH = 128  # may contain a single message
    ENCRYPTED = 256
    MARKER = 512
    SKIPPED = 1024  # set by the opener: no rows


class Wanted(IntFlag):
    """Variable-size fields that count towards the batch size; PROPERTIES also enables their scan."""

    VALUE = 1
    KEY = 2
    ORDERING_KEY = 4
    PROPERTIES = 8
    PRODUCER_NAME = 16
    SCHEMA_VERSION = 32
    REPLICATED_FROM = 64


class ScanError(IntEnum):
    """Reasons why an entry, or the rest of a batch, cannot be read."""

    NONE = 0
    METADATA_TOO_LONG = 1
    MALFORMED_METADATA = 2
    MISSING_FIELD = 3
    BAD_MESSAGE_COUNT = 4
    TOO_MANY_MESSAGES = 5
    BAD_CHUNK = 6
    BATCH_TOO_SHORT = 7
    MALFORMED_BATCH_METADATA = 8
    MISSING_BATCH_FIELD = 9
    NOT_OPENED = 10  # the opener provides the text
    BEYOND_SOURCE = 11


REASONS = {
    ScanError.METADATA_TOO_LONG: "its metadata is longer than the entry",
    ScanError.MALFORMED_METADATA: "its metadata does not parse",
    ScanError.MISSING_FIELD: "its metadata lacks a required field",
    ScanError.BAD_MESSAGE_COUNT: "it claims to be a batch without messages",
    ScanError.TOO_MANY_MESSAGES: "it claims more messages than fit into its size",
    ScanError.BAD_CHUNK: "its chunk id or chunk count is invalid",
    ScanError.BATCH_TOO_SHORT: "the batch ends within a message",
    ScanError.MALFORMED_BATCH_METADATA: "the metadata of a message in the batch does not parse",
    ScanError.MISSING_BATCH_FIELD: "the metadata of a message in the batch lacks a required field",
    ScanError.NOT_OPENED: "its payload cannot be opened",
    ScanError.BEYOND_SOURCE: "its location is outside the available memory",
}

LEAST_MESSAGE_BYTES = 6
"""Minimum size of a message in a batch: 4 bytes of metadata size, and 2 for the required field."""
CHECKED_PROPERTIES = 16
"""Maximum properties of a message that are compared for repeated names; above this, names are assumed to repeat."""
