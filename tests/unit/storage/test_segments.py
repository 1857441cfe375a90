"""Segment files: entries are read as written, from any place, and damage is told by its place."""

from pathlib import Path
from random import Random

import pytest

from pybroker.errors import NoSuchLedger
from pybroker.storage.fault_disk import FaultDisk
from pybroker.storage.layout.segment import EMPTY_EXTENT, LedgerExtent, SegmentIndex
from pybroker.storage.ledger_store import EntryRun
from pybroker.storage.segments import (
    DamagedSegment,
    SegmentWriter,
    load_sealed,
    read_entries,
    scan_unsealed,
    segment_path,
)

PATH = segment_path(Path("/ledgers"), 5)


class Segment:
    """One segment file under test."""

    def __init__(self) -> None:
        self.disk = FaultDisk()
        self.extent = EMPTY_EXTENT
        self.index = SegmentIndex()
        self.payloads: list[bytes] = []

    def write(self, payloads: list[bytes], *, seals: bool = False) -> None:
        with self.disk.open_for_write(PATH) as file:
            writer = SegmentWriter(file, 5, self.extent, self.index, syncs_slices=True)
            if payloads:
                writer.write(payloads, [len(self.payloads) + number + 1 for number in range(len(payloads))])
            if seals:
                writer.seal()
        self.extent = writer.extent
        self.payloads += payloads

    def read(self, first_entry_id: int, max_entries: int = 1000, max_bytes: int = 1 << 20) -> EntryRun:
        span = self.index.span(first_entry_id, max_entries, self.extent.end_offset)
        return read_entries(self.disk, PATH, 5, span, first_entry_id, max_entries, max_bytes)


def entries(count: int, size: int, seed: int = 1) -> list[bytes]:
    random = Random(seed)
    return [random.randbytes(size + number % 7) for number in range(count)]


@pytest.mark.parametrize("size", [0, 10, 1000, 70_000])
def test_every_entry_is_read_from_every_place(size: int) -> None:
    segment = Segment()
    segment.write(entries(100, size))
    segment.write(entries(50, size, seed=2))
    for first in (0, 1, 63, 64, 99, 100, 149):
        run = segment.read(first, max_entries=7)
        assert run.payloads == segment.payloads[first : first + 7]
        assert run.message_counts == [number + 1 for number in range(first, min(first + 7, 150))]
        assert (run.ledger_id, run.first_entry_id) == (5, first)


def test_a_read_stops_at_the_entry_that_reaches_its_bytes_but_gives_one() -> None:
    segment = Segment()
    segment.write([b"x" * 100] * 10 + [b"y" * 3_000_000])
    assert len(segment.read(0, max_bytes=250).payloads) == 3
    assert len(segment.read(4, max_bytes=1).payloads) == 1
    assert len(segment.read(10, max_bytes=1).payloads[0]) == 3_000_000


def test_a_sealed_segment_tells_all_about_itself() -> None:
    segment = Segment()
    segment.write(entries(300, 1000), seals=True)
    extent, index = load_sealed(segment.disk, PATH, 5)
    assert extent == segment.extent
    assert index.offsets == segment.index.offsets
    assert (extent.entry_count, extent.message_count) == (300, 300 * 301 // 2)
    assert extent.size_bytes == sum(map(len, segment.payloads))


def test_an_empty_ledger_can_be_sealed() -> None:
    segment = Segment()
    segment.write([], seals=True)
    extent, _ = load_sealed(segment.disk, PATH, 5)
    assert (extent.entry_count, extent.size_bytes) == (0, 0)


def test_the_index_of_an_open_segment_is_found_again() -> None:
    segment = Segment()
    segment.write(entries(300, 1000))
    segment.write(entries(3, 100_000))
    index = scan_unsealed(segment.disk, PATH, 5, segment.extent)
    assert index.offsets == segment.index.offsets
    assert index.first_entry_ids == segment.index.first_entry_ids
    assert index.messages_before == segment.index.messages_before
    assert index.bytes_before == segment.index.bytes_before


def test_writing_again_from_an_extent_replaces_what_a_crash_left() -> None:
    segment = Segment()
    segment.write(entries(20, 100))
    extent, index, payloads = segment.extent, segment.index.copy(), list(segment.payloads)
    segment.write(entries(50, 100, seed=3), seals=True)
    segment.extent, segment.index, segment.payloads = extent, index, payloads
    segment.write(entries(5, 100, seed=4))
    assert segment.read(0).payloads == segment.payloads
    assert segment.disk.open_for_read(PATH).size() == segment.extent.end_offset


def test_a_damaged_entry_is_told_by_file_offset_and_position_and_the_others_are_read() -> None:
    segment = Segment()
    segment.write([b"a" * 100, b"b" * 100, b"c" * 100])
    offset = segment.disk.read_whole(PATH.name).index(b"b" * 100)
    segment.disk.flip_bit(PATH.name, offset + 50)
    assert segment.read(0).payloads == [b"a" * 100]
    with pytest.raises(
        DamagedSegment, match=f"{PATH.name} is damaged at offset {offset}, position 5:1: wrong checksum"
    ):
        segment.read(1)
    assert segment.read(2).payloads == [b"c" * 100]


def test_no_flipped_byte_of_a_segment_gives_a_wrong_entry() -> None:
    segment = Segment()
    segment.write([b"first", b"second"])
    segment.write([b"third"])
    for offset in range(32, segment.extent.end_offset):
        segment.disk.flip_bit(PATH.name, offset)
        for first in range(3):
            try:
                found = segment.read(first).payloads
            except DamagedSegment:
                continue
            assert found == segment.payloads[first : first + len(found)]
        segment.disk.flip_bit(PATH.name, offset)


def test_a_block_of_another_ledger_is_damage() -> None:
    segment = Segment()
    segment.write([b"first"])
    span = (32, segment.extent.end_offset)
    with pytest.raises(DamagedSegment, match="holds the block of 5:0"):
        read_entries(segment.disk, PATH, 6, span, 0, 1, 1)


def test_a_segment_that_is_shorter_than_committed_is_damage() -> None:
    segment = Segment()
    segment.write(entries(20, 100))
    with segment.disk.open_for_write(PATH) as file:
        file.truncate(segment.extent.end_offset - 1)
    with pytest.raises(DamagedSegment, match="the file is cut"):
        segment.read(19)
    longer = LedgerExtent(segment.extent.end_offset, 21, segment.extent.message_count, segment.extent.size_bytes)
    with pytest.raises(DamagedSegment):
        scan_unsealed(segment.disk, PATH, 5, longer)


def test_a_missing_segment_is_no_such_ledger() -> None:
    with pytest.raises(NoSuchLedger):
        load_sealed(FaultDisk(), PATH, 5)


def test_a_segment_without_trailer_is_not_taken_for_sealed() -> None:
    segment = Segment()
    segment.write(entries(3, 100))
    with pytest.raises(DamagedSegment, match="has no trailer"):
        load_sealed(segment.disk, PATH, 5)
