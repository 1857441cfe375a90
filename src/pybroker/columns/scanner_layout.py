"""What both scanners write: one record for each entry, one for each message, one for each property.

The same in `_scanner.c`, which says at import how large it takes a record to be. A place in memory is three numbers: which
source, where in it, how many bytes. Source 0 is the run that is read; the others are payloads that had to be opened first
(decompressed, decrypted, put together from chunks). A size of -1 stands for what is not there.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[np.void]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

LAYOUT_VERSION = 1
"""Rises whenever a record, a flag, an error or an argument of a scanner changes its meaning."""

ENTRY = np.dtype(
    [
        ("publish_time_ms", "<i8"),
        ("event_time_ms", "<i8"),
        ("sequence_id", "<i8"),
        ("broker_index", "<i8"),  # from the broker's own metadata: of the entry's last message
        ("metadata_at", "<i8"),
        ("payload_at", "<i8"),
        ("producer_name_at", "<i8"),
        ("replicated_from_at", "<i8"),
        ("key_at", "<i8"),
        ("ordering_key_at", "<i8"),
        ("schema_version_at", "<i8"),
        ("uuid_at", "<i8"),
        ("uncompressed_bytes", "<i8"),  # as the metadata claims
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
        ("payload_source", "<i4"),  # 0 until its opener puts another one there, with payload_at and payload_bytes
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
        ("metadata_source", "<i4"),  # of key, ordering key and properties
        ("entry", "<i4"),  # which of the scanned entries
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
"""Where `scan_messages` goes on: an entry, the next message of its batch, where that begins in the payload's source."""


class Flag(IntFlag):
    """Of an entry, and those up to KEY_IS_BASE64 of a message as well."""

    EVENT_TIME = 1
    NULL_VALUE = 2
    NULL_KEY = 4
    KEY_IS_BASE64 = 8
    PROPERTIES = 16  # it has some
    REPEATED_PROPERTIES = 32  # of a message: a name may be there twice, look
    INDEX = 64
    BATCH = 128  # which may hold one message
    ENCRYPTED = 256
    MARKER = 512
    SKIPPED = 1024  # put there by who opens payloads: it gives no row


class Wanted(IntFlag):
    """Which of the fields whose length differs count towards the size of a batch; of properties, whether to look for them."""

    VALUE = 1
    KEY = 2
    ORDERING_KEY = 4
    PROPERTIES = 8
    PRODUCER_NAME = 16
    SCHEMA_VERSION = 32
    REPLICATED_FROM = 64


class ScanError(IntEnum):
    """Why an entry, or the rest of a batch, cannot be read."""

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
    NOT_OPENED = 10  # said in words by who opens payloads
    BEYOND_SOURCE = 11


REASONS = {
    ScanError.METADATA_TOO_LONG: "its metadata is longer than the entry",
    ScanError.MALFORMED_METADATA: "its metadata does not parse",
    ScanError.MISSING_FIELD: "its metadata lacks a field that every message has",
    ScanError.BAD_MESSAGE_COUNT: "it claims to be a batch of less than one message",
    ScanError.TOO_MANY_MESSAGES: "it claims more messages than so many bytes can hold",
    ScanError.BAD_CHUNK: "it claims to be a chunk that its message cannot have",
    ScanError.BATCH_TOO_SHORT: "the batch ends within a message",
    ScanError.MALFORMED_BATCH_METADATA: "the metadata of a message in the batch does not parse",
    ScanError.MISSING_BATCH_FIELD: "the metadata of a message in the batch lacks a field that every message has",
    ScanError.NOT_OPENED: "its payload cannot be opened",
    ScanError.BEYOND_SOURCE: "it lies outside of the memory that it is read from",
}

LEAST_MESSAGE_BYTES = 6
"""Of a message in a batch: four for the size of its metadata, two for the one field that it must have."""
CHECKED_PROPERTIES = 16
"""Up to so many properties of one message are compared with each other; more may always repeat a name."""
