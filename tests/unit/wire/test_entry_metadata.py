"""Fields read without protobuf objects equal those that protobuf reads."""

import binascii

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.support import EXAMPLES, message, metadata, metadatas

from pybroker.errors import ProtocolViolation
from pybroker.model.chunk import Chunk
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_metadata import (
    NO_KEY,
    chunk_of,
    deliver_at_ms,
    is_batch,
    is_encrypted,
    message_count,
    metadata_span,
    publish_time_ms,
    sticky_key,
    stored_sequence_id,
)


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
    assert deliver_at_ms(entry) == max(0, read.deliver_at_time)
    assert is_encrypted(entry) == bool(read.encryption_keys)


@pytest.mark.parametrize("payload_bytes", [1, 5000])
def test_the_tag_of_the_delivery_time_elsewhere_is_none(payload_bytes: int) -> None:
    entry = message(metadata(partition_key="\u0018\u0001", ordering_key=b"\x98\x01"), b"\x98\x01" * payload_bytes)
    assert deliver_at_ms(entry) == 0
    entry = message(metadata(ordering_key=b"\x98\x01", deliver_at_time=1_700_000_000_000), b"x" * payload_bytes)
    assert deliver_at_ms(entry) == 1_700_000_000_000


@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_have_a_delivery_time(data: bytes, is_framed: bool) -> None:
    entry = len(data).to_bytes(4, "big") + data if is_framed else data
    assert deliver_at_ms(entry + b"\x98") >= 0


def test_an_entry_is_encrypted_when_it_names_a_key() -> None:
    assert is_encrypted(message(metadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])))
    assert not is_encrypted(message(metadata(partition_key="\x6a")))
    assert not is_encrypted(b"\0\0\1\0\x6a")


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


@EXAMPLES
@given(metadatas, st.sampled_from(["good", "none"]))
def test_a_chunk_is_what_protobuf_reads(fields: pb.MessageMetadata, checksum: str) -> None:
    entry = message(fields, b"\xd2\x01payload", checksum)
    read = pb.MessageMetadata.FromString(entry[slice(*metadata_span(entry))])
    is_chunk = bool(read.uuid) and read.num_chunks_from_msg > 1
    assert chunk_of(entry) == (Chunk(read.uuid.encode(), read.chunk_id, read.num_chunks_from_msg) if is_chunk else None)


def test_parts_of_a_message_say_which_they_are() -> None:
    fields = metadata(properties=[pb.KeyValue(key="k", value="v" * 300)], uuid="p-7", num_chunks_from_msg=3, chunk_id=2)
    assert chunk_of(message(fields)) == Chunk(b"p-7", 2, 3)
    assert chunk_of(message(metadata(uuid="p-7", num_chunks_from_msg=1, chunk_id=0))) is None


@EXAMPLES
@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_are_a_chunk_or_not(data: bytes, is_framed: bool) -> None:
    data = b"\xd2\x01" + data
    chunk_of(len(data).to_bytes(4, "big") + data if is_framed else data)


def expected_key(read: pb.MessageMetadata) -> bytes:
    if read.HasField("ordering_key"):
        return read.ordering_key
    if not read.HasField("partition_key"):
        return f"{read.producer_name}-{read.sequence_id}".encode()
    key = read.partition_key.encode()
    if not read.partition_key_b64_encoded:
        return key
    try:
        return binascii.a2b_base64(key)
    except binascii.Error:
        return key


@EXAMPLES
@given(metadatas, st.sampled_from(["good", "none"]))
def test_the_sticky_key_is_what_protobuf_reads(fields: pb.MessageMetadata, checksum: str) -> None:
    entry = message(fields, b"payload", checksum)
    read = pb.MessageMetadata.FromString(entry[slice(*metadata_span(entry))])
    assert sticky_key(entry) == expected_key(read)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"partition_key": "Order-3459134"}, b"Order-3459134"),
        ({"partition_key": "k", "ordering_key": b"o"}, b"o"),
        ({"partition_key": "k", "ordering_key": b""}, b""),
        ({"partition_key": ""}, b""),
        ({"partition_key": "AP8Q", "partition_key_b64_encoded": True}, b"\x00\xff\x10"),
        ({"partition_key": "AP8Q", "partition_key_b64_encoded": False}, b"AP8Q"),
        ({"partition_key": "A", "partition_key_b64_encoded": True}, b"A"),
        ({"partition_key": "k", "num_messages_in_batch": 9}, b"k"),
        ({"partition_key": "ü" * 200}, ("ü" * 200).encode()),
        ({}, b"p-1"),
        ({"num_messages_in_batch": 3}, b"p-1"),
    ],
)
def test_the_ordering_key_goes_before_the_key_and_that_before_the_origin(fields: dict[str, object], key: bytes) -> None:
    assert sticky_key(message(metadata(**fields))) == key


@pytest.mark.parametrize(
    "data", [b"", b"\x0a", b"\x0a\x05abc", b"\x10\x80", b"\x0a\x01p", b"\x10\x01", b"\x93\x01\x05o", b"\x07\x00"]
)
def test_metadata_that_cannot_be_read_has_the_key_of_entries_without_one(data: bytes) -> None:
    assert sticky_key(len(data).to_bytes(4, "big") + data) == NO_KEY
    assert sticky_key(b"\x0e\x01") == NO_KEY


@EXAMPLES
@given(metadatas)
def test_a_whole_message_has_the_sequence_id_that_protobuf_reads(fields: pb.MessageMetadata) -> None:
    fields.ClearField("uuid")
    entry = message(fields, b"x", "good")
    wanted = (fields.producer_name, max(fields.sequence_id, fields.highest_sequence_id))
    assert stored_sequence_id(entry) == (None if fields.HasField("marker_type") else wanted)


def test_a_large_message_has_its_sequence_id_in_its_last_part() -> None:
    def part(chunk_id: int) -> bytes:
        return message(metadata(uuid="u", chunk_id=chunk_id, num_chunks_from_msg=3), b"x")

    assert [stored_sequence_id(part(each)) for each in range(3)] == [None, None, ("p", 1)]


@given(st.binary(max_size=60))
def test_what_does_not_parse_has_no_sequence_id_or_some(entry: bytes) -> None:
    found = stored_sequence_id(entry)
    assert found is None or found[1] >= 0
