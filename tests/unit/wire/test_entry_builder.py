import crc32c
import pytest

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_builder import build_entry, framed
from pybroker.wire.entry_metadata import is_batch, message_metadata, metadata_span


def test_an_entry_is_what_a_client_would_have_sent() -> None:
    entry = build_entry(
        "broker-1", 7, 1_700_000_000_000, b"value", key="k", replicate_to=["east", "west"], schema_version=bytes(8)
    )
    assert entry[:2] == b"\x0e\x01"
    assert int.from_bytes(entry[2:6], "big") == crc32c.crc32c(entry[6:])
    assert entry[metadata_span(entry)[1] :] == b"value"
    assert not is_batch(entry)
    metadata = message_metadata(entry)
    assert (metadata.producer_name, metadata.sequence_id, metadata.publish_time) == ("broker-1", 7, 1_700_000_000_000)
    assert (metadata.partition_key, metadata.partition_key_b64_encoded) == ("k", False)
    assert list(metadata.replicate_to) == ["east", "west"]
    assert metadata.schema_version == bytes(8)
    assert metadata.uncompressed_size == 5
    assert not metadata.HasField("null_value")


def test_no_value_is_another_thing_than_an_empty_one() -> None:
    nothing, empty = (message_metadata(build_entry("broker-1", 0, 1, payload)) for payload in (None, b""))
    assert (nothing.null_value, empty.null_value) == (True, False)
    assert not empty.HasField("partition_key")
    assert not empty.HasField("schema_version")


def test_what_a_producer_says_of_its_message_is_in_the_metadata() -> None:
    entry = build_entry(
        "p", 0, 1, b"", key="a2V5", is_key_encoded=True, properties={"a": "b"}, event_time_ms=5, deliver_at_ms=9
    )
    metadata = message_metadata(entry)
    assert (metadata.partition_key, metadata.partition_key_b64_encoded) == ("a2V5", True)
    assert [(each.key, each.value) for each in metadata.properties] == [("a", "b")]
    assert (metadata.event_time, metadata.deliver_at_time) == (5, 9)


@pytest.mark.parametrize("payload", [b"", b"value", bytes(100_000)])
def test_a_frame_with_and_without_checksum_holds_the_same(payload: bytes) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    checked, plain = framed(metadata, payload), framed(metadata, payload, has_checksum=False)
    assert checked == b"\x0e\x01" + crc32c.crc32c(plain).to_bytes(4, "big") + plain
    for entry in (checked, plain):
        assert message_metadata(entry) == metadata
        assert entry[metadata_span(entry)[1] :] == payload
