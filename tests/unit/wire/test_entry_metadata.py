"""The fields of a stored entry that are read without protobuf objects are what protobuf reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.support import EXAMPLES, message, metadata, metadatas

from pybroker.errors import ProtocolViolation
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_metadata import is_batch, message_count, metadata_span, publish_time_ms


@EXAMPLES
@given(metadatas, st.binary(max_size=20), st.sampled_from(["good", "none"]))
def test_any_entry_is_read_as_protobuf_reads_it(fields: pb.MessageMetadata, payload: bytes, checksum: str) -> None:
    entry = message(fields, payload, checksum)
    start, end = metadata_span(entry)
    assert entry[end:] == payload
    read = pb.MessageMetadata.FromString(entry[start:end])
    assert message_count(entry, start, end) == read.num_messages_in_batch
    assert is_batch(entry) == read.HasField("num_messages_in_batch")
    assert publish_time_ms(entry) == read.publish_time


def test_the_tag_of_the_count_inside_another_field_is_no_count() -> None:
    entry = message(metadata(partition_key="X\x05", replicated_from="X"))
    assert message_count(entry, *metadata_span(entry)) == 1


def test_the_last_of_several_counts_is_valid() -> None:
    data = b"\x58\x05\x58\x03"
    assert message_count(data, 0, len(data)) == 3


@pytest.mark.parametrize("count", [0, -1, -(1 << 31)])
def test_a_count_below_one_is_refused(count: int) -> None:
    entry = message(metadata(num_messages_in_batch=count))
    with pytest.raises(ProtocolViolation):
        message_count(entry, *metadata_span(entry))


@pytest.mark.parametrize(
    "entry", [b"", b"\0\0\0", b"\0\0\0\x05abcd", b"\x0e\x01\0\0\0\0", b"\x0e\x01\0\0\0\0\0\0\0\x01"]
)
def test_metadata_longer_than_its_entry_is_refused(entry: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        metadata_span(entry)
    assert publish_time_ms(entry) == 0


@EXAMPLES
@given(st.binary(max_size=30).map(lambda data: b"\x58" + data))
def test_malformed_metadata_raises_nothing_but_a_violation(data: bytes) -> None:
    try:
        assert message_count(data, 0, len(data)) > 0
    except ProtocolViolation:
        return


@EXAMPLES
@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_have_a_publish_time(data: bytes, is_framed: bool) -> None:
    entry = len(data).to_bytes(4, "big") + data if is_framed else data
    assert publish_time_ms(entry) >= 0
