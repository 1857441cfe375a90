"""Decompression of managed ledger documents that Java brokers wrote, in the format: 0x4778, size of the header (u32),
header, compressed bytes. Pure.

Java brokers write them if `managedLedgerInfoCompressionType` or `managedCursorInfoCompressionType` is set. This broker
reads them, and writes uncompressed documents, which every Java broker reads.
"""

from __future__ import annotations

import struct
from typing import cast

from google.protobuf.message import DecodeError

from pybroker.bookkeeper_store.documents.ml_data_formats_pb2 import CompressionMetadata
from pybroker.errors import StoreError
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import DamagedPayload, decompress

_HEAD = struct.Struct(">HI")
_MAGIC = 0x4778
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
"""A document that claims to be larger is damaged: a node of ZooKeeper has at most a few megabytes."""


def plain(path: str, value: bytes) -> bytes:
    """Return the uncompressed form of `value`, the document at `path`. A document that is not compressed is returned
    unchanged. Raises StoreError.
    """
    if len(value) < _HEAD.size or int.from_bytes(value[:2], "big") != _MAGIC:
        return value
    _, size = _HEAD.unpack_from(value)
    head = CompressionMetadata()
    try:
        head.ParseFromString(value[_HEAD.size : _HEAD.size + size])
        if not 0 <= head.uncompressed_size <= MAX_DOCUMENT_BYTES:
            raise StoreError(
                f"the compressed metadata of {path} is damaged or too large: its header states "
                f"{head.uncompressed_size} bytes"
            )
        kind = cast("pb.CompressionType", pb.CompressionType.Name(head.compression_type) and head.compression_type)
        return decompress(kind, value[_HEAD.size + size :], head.uncompressed_size)
    except (DecodeError, ValueError, DamagedPayload) as error:
        raise StoreError(f"the compressed metadata of {path} is damaged: {error}") from error
