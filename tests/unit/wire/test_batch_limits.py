"""The size of a batch limits its number of messages; a batch that claims more is refused before it is stored."""

from __future__ import annotations

import zlib
from typing import Any

import lz4.block
import pytest
import snappy
import zstandard
from tests.unit.wire.support import MAX_BATCH_MESSAGES, connected_decoder, frame, message, metadata, send

from pybroker.errors import NotAllowedError
from pybroker.model.events import SendRefused, SendRun
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.batch_limits import LEAST_MESSAGE_BYTES, batch_refusal

_LEAST = b"\0\0\0\2\x18\0"
"""An empty message: the size of its metadata, and its one required field."""
_COMPRESS = {
    pb.LZ4: lambda data: lz4.block.compress(data, store_size=False),
    pb.ZLIB: lambda data: zlib.compress(data, 9),
    pb.ZSTD: zstandard.ZstdCompressor().compress,
    pb.SNAPPY: snappy.compress,
}


def refusal(payload: bytes, count: int, max_messages: int = 1 << 30, **fields: Any) -> NotAllowedError | None:
    header = metadata(num_messages_in_batch=count, **fields).SerializeToString()
    found = batch_refusal(header, 0, len(header), len(payload), count, max_messages)
    assert found is None or isinstance(found, NotAllowedError)
    return found


def test_the_smallest_message_of_a_batch_takes_as_much_as_is_counted_for_it() -> None:
    assert pb.SingleMessageMetadata.FromString(_LEAST[4:]).payload_size == 0
    assert len(_LEAST) == LEAST_MESSAGE_BYTES


def test_a_batch_of_the_smallest_messages_is_taken_and_one_more_is_not() -> None:
    assert refusal(_LEAST * 100, 100) is None
    assert "cannot hold 101 messages" in str(refusal(_LEAST * 100, 101))


@pytest.mark.parametrize("codec", _COMPRESS)
def test_whatever_a_codec_makes_of_a_real_batch_is_taken(codec: Any) -> None:
    """Repeated data compresses best."""
    for count in (2, 100, 200_000):
        packed = _COMPRESS[codec](_LEAST * count)
        assert refusal(packed, count, compression=codec, uncompressed_size=6 * count) is None
        assert refusal(packed, count + 1, compression=codec, uncompressed_size=6 * count) is not None


@pytest.mark.parametrize("codec", [codec for codec in _COMPRESS if codec != pb.ZSTD])
def test_a_size_that_the_codec_cannot_reach_is_not_believed(codec: Any) -> None:
    """Nor for an encrypted batch, which cannot be opened: there is no other bound."""
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    claimed = {"compression": codec, "uncompressed_size": (1 << 32) - 1}
    assert refusal(b"x" * 100, 20_000, **claimed) is not None
    assert refusal(b"x" * 100, 20_000, encryption_keys=keys, **claimed) is not None


def test_no_batch_is_over_the_limit_whatever_size_it_claims() -> None:
    assert refusal(b"?", 1001, 1000, compression=pb.ZSTD, uncompressed_size=1 << 30) is not None
    assert refusal(b"?", 1000, 1000, compression=pb.ZSTD, uncompressed_size=1 << 30) is None


def test_no_batch_comes_out_of_nothing() -> None:
    assert refusal(b"", 2, 1000, compression=pb.ZSTD, uncompressed_size=12) is not None


def test_a_batch_that_cannot_be_is_answered_and_the_next_message_is_taken() -> None:
    sound = message(metadata(num_messages_in_batch=3), _LEAST * 3)
    events = connected_decoder().feed(
        frame(send(1, 4), sound)
        + frame(send(1, 5), message(metadata(num_messages_in_batch=(1 << 31) - 1), _LEAST))
        + frame(send(1, 6), message(metadata(num_messages_in_batch=MAX_BATCH_MESSAGES + 1), _LEAST * 2000))
        + frame(send(1, 7), sound)
    )
    first, *refused, last = events
    assert isinstance(first, SendRun)
    assert first.message_counts == [3]
    assert [each.sequence_id for each in refused if isinstance(each, SendRefused)] == [5, 6]
    assert all(isinstance(each, SendRefused) and isinstance(each.error, NotAllowedError) for each in refused)
    assert isinstance(last, SendRun)
    assert last.message_counts == [3]
