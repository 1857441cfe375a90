"""Payloads are decompressed exactly, and never beyond their stated size."""

import tracemalloc
import zlib
from collections.abc import Callable

import lz4.block
import pytest
import snappy
import zstandard

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import DamagedPayload, decompress

PLAIN = b"a message that is worth its compression, compression, compression" * 10
BOMB_BYTES = 64 * 1024 * 1024


def zstd_without_size(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    return bytes(stream.compress(data) + stream.flush())


COMPRESS: dict[pb.CompressionType, Callable[[bytes], bytes]] = {
    pb.ZLIB: zlib.compress,
    pb.LZ4: lambda data: lz4.block.compress(data, store_size=False),
    pb.ZSTD: lambda data: zstandard.ZstdCompressor().compress(data),
    pb.SNAPPY: snappy.compress,
}


@pytest.mark.parametrize("plain", [b"", b"x", PLAIN])
@pytest.mark.parametrize("kind", COMPRESS)
def test_what_was_compressed_comes_back(kind: pb.CompressionType, plain: bytes) -> None:
    assert decompress(kind, COMPRESS[kind](plain), len(plain)) == plain


def test_what_was_not_compressed_stays_as_it_is() -> None:
    assert decompress(pb.NONE, PLAIN, 7) == PLAIN


def test_a_stream_that_does_not_say_its_size_is_opened() -> None:
    assert decompress(pb.ZSTD, zstd_without_size(PLAIN), len(PLAIN)) == PLAIN


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("damage", [lambda data: b"junk", lambda data: b"", lambda data: data[: len(data) // 2]])
def test_what_is_damaged_is_refused(kind: pb.CompressionType, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(DamagedPayload):
        decompress(kind, damage(COMPRESS[kind](PLAIN)), len(PLAIN))


@pytest.mark.parametrize("kind", COMPRESS)
def test_what_is_shorter_than_it_should_be_is_refused(kind: pb.CompressionType) -> None:
    with pytest.raises(DamagedPayload):
        decompress(kind, COMPRESS[kind](PLAIN), len(PLAIN) + 1)


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_bomb_does_not_go_off(kind: pb.CompressionType) -> None:
    bomb = COMPRESS[kind](bytes(BOMB_BYTES))
    tracemalloc.start()
    try:
        _open(kind, bomb)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < BOMB_BYTES // 4


def _open(kind: pb.CompressionType, bomb: bytes) -> None:
    try:
        assert len(decompress(kind, bomb, 1000)) == 1000, "cut where it should end, as Pulsar does"
    except DamagedPayload:
        pass
