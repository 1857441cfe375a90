"""Decompression of payloads with limits, and compression after messages were removed.

Invariant: no function allocates or returns much more than the size passed to it. Data that does not decompress to
exactly that size is damaged.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import lz4.block
import snappy
import zstandard

from pybroker.errors import ProtocolViolation
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.batch_limits import MOST_BYTES_OUT_OF_ONE
from pybroker.wire.varint import decode

NOT_COMPRESSED = pb.NONE
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""The window that every Zstandard decoder must support."""


class DamagedPayload(Exception):
    """The payload does not match its metadata."""


def compression_name(kind: pb.CompressionType) -> str:
    return pb.CompressionType.Name(kind)


def decompress(kind: pb.CompressionType, data: bytes, size: int) -> bytes:
    if kind == NOT_COMPRESSED:
        return data
    name = compression_name(kind)
    ratio = MOST_BYTES_OUT_OF_ONE.get(kind)
    if ratio is not None and size > len(data) * ratio:  # before memory is allocated
        raise DamagedPayload(f"{len(data)} bytes of {name} data cannot decompress to the {size} bytes in the metadata")
    try:
        opened = _DECOMPRESS[kind](data, size)
    except _FAILURES as error:
        raise DamagedPayload(f"the payload is not valid {name} data: {error}") from error
    if len(opened) != size:
        raise DamagedPayload(
            f"the payload has {len(opened)} bytes after {name} decompression, but {size} according to its metadata"
        )
    return opened


def compress(kind: pb.CompressionType, data: bytes) -> bytes:
    return data if kind == NOT_COMPRESSED else _COMPRESS[kind](data)


def _to_lz4(data: bytes) -> bytes:
    compressed: bytes = lz4.block.compress(data, store_size=False)
    return compressed


def _to_zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def _to_snappy(data: bytes) -> bytes:
    compressed: bytes = snappy.compress(data)
    return compressed


_COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    pb.ZLIB: zlib.compress,
    pb.LZ4: _to_lz4,
    pb.ZSTD: _to_zstd,
    pb.SNAPPY: _to_snappy,
}


def _zlib(data: bytes, size: int) -> bytes:
    # a length of 0 would mean no limit
    return zlib.decompressobj().decompress(data, size) if size else b""


def _lz4(data: bytes, size: int) -> bytes:
    opened: bytes = lz4.block.decompress(data, uncompressed_size=size)
    return opened


def _zstd(data: bytes, size: int) -> bytes:
    # Read as a stream: a single call would allocate the size that the data claims.
    with zstandard.ZstdDecompressor(max_window_size=max(size, _ZSTD_WINDOW_BYTES)).stream_reader(data) as reader:
        opened: bytes = reader.read(size)
        return opened


def _snappy(data: bytes, size: int) -> bytes:
    claimed, _ = decode(data, 0, len(data))
    if claimed != size:
        raise ValueError(f"the compressed data claims {claimed} bytes, but the message metadata claims {size} bytes")
    opened: bytes = snappy.uncompress(data)
    return opened


_DECOMPRESS = {pb.ZLIB: _zlib, pb.LZ4: _lz4, pb.ZSTD: _zstd, pb.SNAPPY: _snappy}
_FAILURES = (
    zlib.error,
    lz4.block.LZ4BlockError,
    zstandard.ZstdError,
    snappy.UncompressError,
    ProtocolViolation,
    ValueError,
)
