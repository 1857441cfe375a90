"""Messages of an entry for display: for any bytes, the result is bounded and no exception is raised."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import compress
from pybroker.wire.entry_builder import build_entry
from pybroker.wire.entry_view import MAX_KEY_BYTES, MAX_PROPERTIES_CHARACTERS, entry_view, is_slow_to_open, key_of_entry

MOST = 1 << 20


def framed(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    header = metadata.SerializeToString()
    return len(header).to_bytes(4, "big") + header + payload


def batch(payload: bytes, count: int, compression: pb.CompressionType = pb.NONE) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=7, num_messages_in_batch=count)
    if compression != pb.NONE:
        metadata.compression, metadata.uncompressed_size = compression, len(payload)
        payload = compress(compression, payload)
    return framed(metadata, payload)


def single(key: str, value: bytes) -> bytes:
    header = pb.SingleMessageMetadata(payload_size=len(value), partition_key=key).SerializeToString()
    return len(header).to_bytes(4, "big") + header + value


def test_a_message_of_its_own_has_one_row_with_the_key_that_key_shared_goes_by() -> None:
    entry = build_entry("p", 0, 5, b"abc", key="k", properties={"a": "b"}, deliver_at_ms=9)
    view = entry_view(entry, None, MOST)
    (message,) = view.messages
    assert (message.batch_index, message.key, message.size_bytes, message.properties) == (
        -1,
        b"k",
        len(entry),
        {"a": "b"},
    )
    assert (view.publish_time_ms, view.deliver_at_ms, view.batch_size, view.problem) == (5, 9, 1, "")
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=5, partition_key="YQ==")
    metadata.partition_key_b64_encoded = True
    assert key_of_entry(framed(metadata, b"")) == b"a"
    metadata.ordering_key = b"\xff"
    assert key_of_entry(framed(metadata, b"")) == b"\xff"
    assert key_of_entry(build_entry("p", 0, 5, b"abc")) is None


def test_only_the_wanted_messages_of_a_batch_are_shown() -> None:
    payload = b"".join(single(f"k{index}", b"x" * index) for index in range(5))
    for compression in (pb.NONE, pb.ZLIB, pb.SNAPPY):
        view = entry_view(batch(payload, 5, compression), [1, 4], MOST)
        assert [(each.batch_index, each.key, each.size_bytes) for each in view.messages] == [
            (1, b"k1", 1),
            (4, b"k4", 4),
        ]
    assert len(entry_view(batch(payload, 5), None, MOST).messages) == 5


def test_a_batch_that_says_it_is_too_large_or_ends_early_is_shown_by_its_own_metadata() -> None:
    payload = b"".join(single("k", b"x") for _ in range(3))
    large = entry_view(batch(payload, 3, pb.ZSTD), [0, 1], 10)
    assert [(each.batch_index, each.size_bytes) for each in large.messages] == [(0, -1), (1, -1)]
    assert "too large to open" in large.problem
    for cut in range(1, len(payload)):
        found = entry_view(batch(payload[:-cut], 3), [2], MOST)
        assert found.problem
        assert [each.batch_index for each in found.messages] == [2]
    claimed = entry_view(batch(payload, (1 << 31) - 1), [0, 1 << 30], MOST)
    assert claimed.problem
    assert len(claimed.messages) == 2


def test_keys_and_properties_are_cut() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=5, partition_key="k" * 5000)
    for index in range(100):
        metadata.properties.add(key=f"{index}", value="v" * 1000)
    (message,) = entry_view(framed(metadata, b""), None, MOST).messages
    assert (message.key, message.is_key_cut, message.are_properties_cut) == (b"k" * MAX_KEY_BYTES, True, True)
    assert sum(len(name) + len(value) for name, value in message.properties.items()) <= MAX_PROPERTIES_CHARACTERS


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.binary(max_size=200),
    st.integers(min_value=0, max_value=1 << 31),
    st.sampled_from(list(pb.CompressionType.values())),
)
def test_no_bytes_make_it_raise(noise: bytes, claimed: int, compression: pb.CompressionType) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=(1 << 64) - 1)
    metadata.num_messages_in_batch = min(claimed, (1 << 31) - 1)
    metadata.compression, metadata.uncompressed_size = compression, claimed % 5000
    for entry in (noise, framed(metadata, noise), b"\x0e\x01" + noise, b"\x0e\x02" + noise):
        view = entry_view(entry, [0, 3], 4096)
        assert len(view.messages) <= 2
        is_slow_to_open(entry, 100)
        key_of_entry(entry)
