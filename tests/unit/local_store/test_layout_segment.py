"""Segment bytes: written entries are read, and every damage is detected."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pybroker.storage_format.fields import LayoutError
from pybroker.storage_format.segment_layout import (
    MAX_BLOCK_BYTES,
    MAX_BLOCK_ENTRIES,
    POINT_SPACING_BYTES,
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    Block,
    LedgerExtent,
    SegmentIndex,
    block_length,
    check_segment_header,
    decode_block,
    decode_index,
    decode_trailer,
    encode_block,
    encode_index,
    encode_segment_header,
    split_into_blocks,
)

EXTENT = LedgerExtent(end_offset=1000, entry_count=30, message_count=60, size_bytes=900)


def time_of(payload: bytes) -> int:
    return int(payload)


def index_of(points: int) -> SegmentIndex:
    index = SegmentIndex(time_of)
    for number in range(points):
        payload = str(1000 + number).encode()
        index.add(number * 10, 32 + number * POINT_SPACING_BYTES, number * 20, number * 300, payload)
    return index


def test_a_segment_header_is_checked() -> None:
    data = encode_segment_header(5)
    assert len(data) == SEGMENT_HEADER_BYTES
    check_segment_header(data, 5)
    with pytest.raises(LayoutError, match="the header of the file of ledger 6 is damaged, or the file is of ledger 5"):
        check_segment_header(data, 6)


def test_every_cut_and_every_flipped_byte_of_a_segment_header_is_refused() -> None:
    whole = encode_segment_header(5)
    for offset in range(len(whole)):
        with pytest.raises(LayoutError):
            check_segment_header(whole[:offset], 5)
        data = bytearray(whole)
        data[offset] ^= 1
        with pytest.raises(LayoutError):
            check_segment_header(bytes(data), 5)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20))
def test_a_block_is_read_as_written(payloads: list[bytes]) -> None:
    data = b"xyz" + b"".join(encode_block(5, 70, payloads, list(range(1, len(payloads) + 1))))
    block = decode_block(memoryview(data), 3)
    assert isinstance(block, Block)
    assert (block.ledger_id, block.first_entry_id, block.end_offset) == (5, 70, len(data))
    assert len(data) - 3 == block_length(len(payloads), sum(map(len, payloads)))
    assert data[block.payload_offset :] == b"".join(payloads)
    assert block.lengths.tolist() == [len(payload) for payload in payloads]
    assert block.message_counts.tolist() == list(range(1, len(payloads) + 1))
    assert block.checksums.tolist() == [crc32c(payload) for payload in payloads]


def test_a_cut_block_header_asks_for_its_length() -> None:
    payloads = [b"abc", b"de"]
    data = b"".join(encode_block(5, 70, payloads, [1, 1]))
    columns_end = len(data) - 5
    for length in range(columns_end):
        wanted = decode_block(memoryview(data[:length]), 0)
        assert isinstance(wanted, int)
        assert length < wanted <= columns_end


def test_every_flipped_byte_of_a_block_is_refused_or_seen_in_the_payload() -> None:
    payloads = [b"abc", b"de"]
    whole = b"".join(encode_block(5, 70, payloads, [1, 1]))
    for offset in range(len(whole)):
        data = bytearray(whole)
        data[offset] ^= 1
        try:
            block = decode_block(memoryview(data), 0)
        except LayoutError:
            continue
        if isinstance(block, int):
            assert block > len(whole), "a damaged length asks for more than there is"
            continue
        start = block.payload_offset
        found = [bytes(data[start : start + 3]), bytes(data[start + 3 : start + 5])]
        assert [crc32c(payload) for payload in found] != block.checksums.tolist()


def test_blocks_hold_what_fits_and_a_large_entry_is_alone() -> None:
    small, large = b"x" * 1000, b"y" * (MAX_BLOCK_BYTES + 1)
    assert split_into_blocks([]) == []
    assert split_into_blocks([large]) == [(0, 1)]
    assert split_into_blocks([small] * 130) == [(0, 65), (65, 130)]
    assert split_into_blocks([small, large, large, small]) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert split_into_blocks([b""] * (MAX_BLOCK_ENTRIES + 1)) == [
        (0, MAX_BLOCK_ENTRIES),
        (MAX_BLOCK_ENTRIES, MAX_BLOCK_ENTRIES + 1),
    ]


@pytest.mark.parametrize("points", [0, 1, 3])
def test_an_index_is_read_as_written(points: int) -> None:
    index = index_of(points)
    data = encode_index(5, EXTENT, index)
    assert decode_trailer(data[-TRAILER_BYTES:], 1000 + len(data)) == (1000, len(data) - TRAILER_BYTES)
    extent, found = decode_index(data, 5, 1000)
    assert extent == EXTENT
    assert found.offsets == index.offsets
    assert found.first_entry_ids == index.first_entry_ids
    assert found.messages_before == index.messages_before
    assert found.bytes_before == index.bytes_before
    assert found.publish_times == index.publish_times
    assert len(found.publish_times) == points


def test_an_index_without_publish_times_is_read_and_finds_a_time_anywhere() -> None:
    index = index_of(3)
    del index.publish_times[:]
    _, found = decode_index(encode_index(5, EXTENT, index), 5, 1000)
    assert found.first_entry_ids == index.first_entry_ids
    assert not found.publish_times
    assert found.publish_time_span(1001, 30) == (0, 30)


def test_every_cut_and_every_flipped_byte_of_an_index_is_refused() -> None:
    whole = encode_index(5, EXTENT, index_of(2))
    for offset in range(len(whole)):
        with pytest.raises(LayoutError):
            decode_index(whole[:offset], 5, 1000)
        data = bytearray(whole)
        data[offset] ^= 1
        with pytest.raises(LayoutError):
            decode_index(bytes(data), 5, 1000)


def test_the_index_of_another_ledger_is_refused() -> None:
    with pytest.raises(LayoutError, match="the file of ledger 6 contains the index of ledger"):
        decode_index(encode_index(5, EXTENT, index_of(1)), 6, 1000)


def test_points_are_far_apart() -> None:
    index = SegmentIndex()
    for number in range(10):
        offset = 32 + number * POINT_SPACING_BYTES // 2
        if index.is_point(offset):
            index.add(number, offset, number, number, b"")
    assert index.first_entry_ids.tolist() == [0, 2, 4, 6, 8]


def test_the_place_before_an_entry_is_the_last_point_at_or_before_it() -> None:
    index = index_of(3)  # entries 0, 10 and 20
    assert [index.point_of(entry_id) for entry_id in (0, 9, 10, 19, 20, 25)] == [0, 0, 1, 1, 2, 2]
    assert index.place_of(1) == (32 + POINT_SPACING_BYTES, 10)
    assert index.totals_of(2) == (40, 600)
    assert SegmentIndex().point_of(7) == -1
    assert SegmentIndex().place_of(-1) == (SEGMENT_HEADER_BYTES, 0)
    assert SegmentIndex().totals_of(-1) == (0, 0)


def test_a_publish_time_lies_between_two_points() -> None:
    index = index_of(3)  # entries 0, 10 and 20 at 1000, 1001 and 1002
    assert index.publish_time_span(999, 30) == (0, 0)
    assert index.publish_time_span(1000, 30) == (0, 0)
    assert index.publish_time_span(1001, 30) == (1, 10)
    assert index.publish_time_span(1002, 30) == (11, 20)
    assert index.publish_time_span(1003, 30) == (21, 30)


def test_publish_times_of_points_never_fall_whatever_clients_say() -> None:
    index = SegmentIndex(time_of)
    payloads = [b"no number", b"500", b"400", b"no number", None, b"600", str(1 << 70).encode()]
    for number, payload in enumerate(payloads):
        index.add(number, 32 + number * POINT_SPACING_BYTES, number, number, payload)
    assert index.publish_times.tolist() == [0, 500, 500, 500, 500, 600, (1 << 63) - 1]
    # The time of entry 0 is unknown, so it may be the result.
    assert index.publish_time_span(300, 7) == (0, 1)


def test_a_copy_of_an_index_grows_alone() -> None:
    index = index_of(1)
    other = index.copy()
    other.add(10, 32 + POINT_SPACING_BYTES, 1, 1, b"1500")
    assert (len(index), len(other)) == (1, 2)
    assert other.publish_times.tolist() == [1000, 1500]
