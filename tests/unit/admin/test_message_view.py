"""Stored entries in REST: each field in its header, the decompressed payload, and no content that breaks HTTP."""

import json
import zlib
from base64 import b64decode
from typing import Any

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.admin.entries.message_view import MAX_HEADER_BYTES, MessageView, is_slow_to_view
from pybroker.admin.entries.message_view import message_view as message_view_within
from pybroker.errors import AdminError
from pybroker.model.position import Position
from pybroker.wire import pulsar_api_pb2 as pb

MAX_BYTES = 5 * 1024 * 1024
POSITION = Position(5, 7)
PUBLISHED_MS = 1_700_000_000_120
ALWAYS = {
    "X-Pulsar-Message-ID": "5:7",
    "X-Pulsar-PROPERTY": "{}",
    "X-Pulsar-publish-time": "2023-11-14T22:13:20.12Z",
    "X-Pulsar-Is-Encrypted": "false",
    "X-Pulsar-producer-name": "p",
    "X-Pulsar-sequence-id": "3",
    "X-Pulsar-txn-uncommitted": "false",
}


def message_view(position: Position, stored: bytes) -> MessageView:
    return message_view_within(position, stored, MAX_BYTES)


def entry(payload: bytes = b"payload", **fields: Any) -> bytes:
    required = {"producer_name": "p", "sequence_id": 3, "publish_time": PUBLISHED_MS}
    metadata = pb.MessageMetadata(**{**required, **fields}).SerializeToString()
    return b"\x0e\x01\0\0\0\0" + len(metadata).to_bytes(4, "big") + metadata + payload


def headers_of(**fields: Any) -> dict[str, str]:
    return dict(message_view(POSITION, entry(**fields)).headers)


def property_of(key: str, value: str) -> pb.KeyValue:
    return pb.KeyValue(key=key, value=value)


def test_a_plain_message_has_the_headers_that_every_message_has() -> None:
    view = message_view(POSITION, entry())
    assert (dict(view.headers), view.body) == (ALWAYS, b"payload")


@pytest.mark.parametrize(
    ("field", "value", "headers"),
    [
        ("event_time", 5, {"event-time": "1970-01-01T00:00:00.005Z"}),
        ("event_time", (1 << 63) + 5, {"event-time": "-292275055-05-16T16:47:04.197Z"}),
        ("deliver_at_time", 253_402_300_800_000, {"deliver-at-time": "+10000-01-01T00:00:00Z"}),
        ("null_value", True, {"null-value": "true"}),
        ("null_partition_key", True, {"null-partition-key": "true"}),
        ("partition_key", "key", {"partition-key": "key"}),
        ("partition_key_b64_encoded", True, {"partition-key-b64-encoded": "true"}),
        ("ordering_key", b"\xff\0", {"Base64-ordering-key": "/wA="}),
        ("highest_sequence_id", 9, {"highest-sequence-id": "9"}),
        ("highest_sequence_id", (1 << 64) - 1, {"highest-sequence-id": "-1"}),
        ("replicated_from", "east", {"replicated-from": "east"}),
        ("marker_type", 10, {"marker-type": "10"}),
        ("compression", pb.NONE, {"compression": "NONE"}),
        ("uncompressed_size", 7, {"uncompressed-size": "7"}),
        ("encryption_algo", "AES", {"encryption-algo": "AES"}),
        ("encryption_param", b"\x09\x08", {"Base64-encryption-param": "CQg="}),
        ("schema_version", b"\0\0\0\1", {"Base64-schema-version": "AAAAAQ=="}),
        ("uuid", "u", {"uuid": "u"}),
        ("total_chunk_msg_size", 9, {"total-chunk-msg-size": "9"}),
        ("chunk_id", 1, {"chunk-id": "1"}),
    ],
)
def test_a_field_that_is_set_has_its_header(field: str, value: object, headers: dict[str, str]) -> None:
    found = headers_of(**{field: value})
    assert {name: found[name] for name in found if name not in ALWAYS} == {
        f"X-Pulsar-{name}": text for name, text in headers.items()
    }


def test_a_chunk_says_which_and_of_how_many() -> None:
    found = headers_of(uuid="u", chunk_id=1, num_chunks_from_msg=3)
    assert (found["X-Pulsar-PROPERTY-CHUNK-ID"], found["X-Pulsar-PROPERTY-TOTAL-CHUNKS"]) == ("1", "3")
    assert (found["X-Pulsar-chunk-id"], found["X-Pulsar-num-chunks-from-msg"]) == ("1", "3")


def test_a_message_of_a_transaction_says_of_which() -> None:
    found = headers_of(txnid_least_bits=3, txnid_most_bits=4)
    assert (found["X-Pulsar-txnid-least-bits"], found["X-Pulsar-txnid-most-bits"]) == ("3", "4")
    assert found["X-Pulsar-txn-aborted"] == "false"


def test_what_comes_more_than_once_has_a_header_each() -> None:
    keys = [pb.EncryptionKeys(key="a", value=b"1"), pb.EncryptionKeys(key="b", value=b"2")]
    headers = message_view(POSITION, entry(replicate_to=["c1", "c2"], encryption_keys=keys)).headers
    assert [value for name, value in headers if name == "X-Pulsar-replicated-to"] == ["c1", "c2"]
    shown = [value for name, value in headers if name == "X-Pulsar-Base64-encryption-keys"]
    assert [pb.EncryptionKeys.FromString(b64decode(value)) for value in shown] == keys
    assert ("X-Pulsar-Is-Encrypted", "true") in headers


def test_a_batch_is_shown_whole_with_its_count_and_its_size_with_the_frame_around() -> None:
    view = message_view(POSITION, entry(b"\0\0\0\2\x18\1x", num_messages_in_batch=1))
    found = dict(view.headers)
    assert (found["X-Pulsar-num-batch-message"], found["X-Pulsar-batch-size"]) == ("1", "17")
    assert view.body == b"\0\0\0\2\x18\1x"


def test_properties_are_json_of_ascii_of_which_the_last_of_a_name_counts() -> None:
    pairs = [property_of("a", "1"), property_of("a", "2"), property_of('q"', "é✓\r\nX-Evil: 1")]
    shown = headers_of(properties=pairs)["X-Pulsar-PROPERTY"]
    assert json.loads(shown) == {"a": "2", 'q"': "é✓\r\nX-Evil: 1"}
    assert shown.isascii()
    assert shown.isprintable()


def test_a_header_is_one_line_of_latin_1() -> None:
    assert headers_of(partition_key=" kü✓\r\nX-Evil: 2\x7f\x85 ")["X-Pulsar-partition-key"] == "kü?  X-Evil: 2"


@settings(deadline=None, database=None, derandomize=True)
@given(st.text(), st.text())
def test_whatever_a_producer_wrote_http_takes_the_headers(key: str, value: str) -> None:
    view = message_view(POSITION, entry(partition_key=key, producer_name=value, properties=[property_of(key, value)]))
    raw = [(name.encode("ascii"), text.encode("latin-1")) for name, text in view.headers]
    h11.Response(status_code=200, headers=raw)


def test_a_compressed_payload_is_opened() -> None:
    view = message_view(POSITION, entry(zlib.compress(b"hello"), compression=pb.ZLIB, uncompressed_size=5))
    assert view.body == b"hello"
    assert dict(view.headers)["X-Pulsar-compression"] == "ZLIB"


def test_what_is_encrypted_stays_closed() -> None:
    keys = [pb.EncryptionKeys(key="a", value=b"1")]
    assert message_view(POSITION, entry(b"xyz", compression=pb.ZLIB, encryption_keys=keys)).body == b"xyz"


@pytest.mark.parametrize(
    ("stored", "status"),
    [
        (entry(b"junk", compression=pb.LZ4, uncompressed_size=9), 422),
        (entry(b"junk", compression=pb.ZLIB, uncompressed_size=MAX_BYTES + 1), 413),
        (entry(properties=[property_of("k", "é" * (MAX_HEADER_BYTES // 6))]), 413),
        (b"\0\0\0\2\xff\xff", 422),
        (b"\0\0\1\0", 422),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(stored: bytes, status: int) -> None:
    with pytest.raises(AdminError) as refused:
        message_view(POSITION, stored)
    assert refused.value.status == status


def test_what_is_large_or_becomes_large_is_slow_to_view() -> None:
    assert not is_slow_to_view(entry())
    assert is_slow_to_view(entry(bytes(100_000)))
    assert is_slow_to_view(entry(b"", uncompressed_size=100_000))
