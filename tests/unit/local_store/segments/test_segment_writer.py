"""Segment files: entries are read as written, from any position, and damage is reported with its location."""

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap
from tests.support.fault_disk import FaultDisk

from pybroker.errors import DamagedEntries
from pybroker.ledgers.ledger_store import EntryRun, LedgerTotals
from pybroker.local_store.segments.ledger_location import LedgerLocation
from pybroker.local_store.segments.segment_reader import (
    DamagedSegment,
    LoadedSegment,
    load_sealed,
    message_count_of,
    read_entries,
    scan,
    totals_before,
)
from pybroker.local_store.segments.segment_tail import Leftovers, UnknownEntries
from pybroker.local_store.segments.segment_writer import SegmentWriter, segment_path
from pybroker.storage_format.fields import UnknownVersion
from pybroker.storage_format.segment_layout import (
    EMPTY_EXTENT,
    SEGMENT_HEADER_BYTES,
    LedgerExtent,
    SegmentIndex,
    encode_segment_header,
    no_publish_time,
    split_into_blocks,
)

PATH = segment_path(Path("/ledgers"), 5)


class Segment:
    """One segment file under test."""

    def __init__(self) -> None:
        self.disk = FaultDisk()
        self.extent = EMPTY_EXTENT
        self.index = SegmentIndex()
        self.payloads: list[bytes] = []
        self.leftovers = Leftovers.REFUSE

    def write(self, payloads: list[bytes], *, seals: bool = False) -> None:
        with self.disk.open_for_write(PATH) as file:
            writer = SegmentWriter(file, 5, self.extent, self.index, syncs_slices=True, leftovers=self.leftovers)
            if payloads:
                writer.write(payloads, [len(self.payloads) + number + 1 for number in range(len(payloads))])
            if seals:
                writer.seal()
        self.extent = writer.extent
        self.payloads += payloads

    @property
    def place(self) -> LedgerLocation:
        return LedgerLocation(self.extent, self.index)

    def read(
        self,
        first_entry_id: int,
        max_entries: int = 1000,
        max_bytes: int = 1 << 20,
        place: LedgerLocation | None = None,
    ) -> EntryRun:
        with self.disk.open_for_read(PATH) as file:
            return read_entries(file, PATH, 5, place or self.place, first_entry_id, max_entries, max_bytes)

    def load(self) -> LoadedSegment:
        with self.disk.open_for_read(PATH) as file:
            return load_sealed(file, 5, no_publish_time)

    def scan(self, extent: LedgerExtent | None = None) -> LoadedSegment:
        with self.disk.open_for_read(PATH) as file:
            return scan(file, 5, LedgerLocation(extent or self.extent, SegmentIndex()), no_publish_time)

    def read_around_damage(self, place: LedgerLocation) -> tuple[dict[int, bytes], list[DamagedSegment]]:
        """Return all readable entries, and the damage reported to a reader that continues behind it."""
        found: dict[int, bytes] = {}
        damages: list[DamagedSegment] = []
        entry_id = 0
        while entry_id < len(self.payloads):
            try:
                run = self.read(entry_id, max_entries=len(self.payloads) - entry_id, place=place)
            except DamagedSegment as error:
                damages.append(error)
                entry_id = error.last_entry_id + 1
            else:
                found.update(enumerate(run.payloads, entry_id))
                entry_id += len(run.payloads)
        assert all(first.last_entry_id < second.first_entry_id for first, second in pairwise(damages))
        return found, damages


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
    loaded = segment.load()
    extent = loaded.place.extent
    assert (loaded.faults, loaded.gaps, loaded.place.is_end_known) == ([], [], True)
    assert extent == segment.extent
    assert loaded.place.index.offsets == segment.index.offsets
    assert (extent.entry_count, extent.message_count) == (300, 300 * 301 // 2)
    assert extent.size_bytes == sum(map(len, segment.payloads))


def test_an_empty_ledger_can_be_sealed() -> None:
    segment = Segment()
    segment.write([], seals=True)
    extent = segment.load().place.extent
    assert (extent.entry_count, extent.size_bytes) == (0, 0)


def test_the_index_of_an_open_segment_is_found_again() -> None:
    segment = Segment()
    segment.write(entries(300, 1000))
    segment.write(entries(3, 100_000))
    loaded = segment.scan()
    assert loaded.gaps == []
    index = loaded.place.index
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
    segment.write(entries(50, 100, seed=3) + entries(5, 100, seed=4))
    assert segment.read(0).payloads == segment.payloads
    assert segment.disk.open_for_read(PATH).size() == segment.extent.end_offset


@pytest.mark.parametrize("committed", [0, 20])
@pytest.mark.parametrize("again", ["fewer", "others", "none"])
def test_entries_that_are_not_written_again_are_not_cut_off(committed: int, again: str) -> None:
    segment = Segment()
    if committed:
        segment.write(entries(committed, 100))
    extent, index = segment.extent, segment.index.copy()
    segment.write(entries(50, 100, seed=3))
    before = segment.disk.read_whole(PATH.name)
    segment.extent, segment.index = extent, index
    payloads = {"fewer": entries(49, 100, seed=3), "others": entries(60, 100, seed=4), "none": []}[again]
    with pytest.raises(UnknownEntries, match=rf"entry 5:{committed + 49 if again == 'fewer' else committed} exists"):
        segment.write(payloads, seals=True)
    assert segment.disk.read_whole(PATH.name) == before
    segment.leftovers = Leftovers.CUT
    segment.write(payloads, seals=True)
    assert segment.load().place.extent.entry_count == committed + len(payloads)


def test_a_damaged_entry_is_told_by_file_offset_and_position_and_the_others_are_read() -> None:
    segment = Segment()
    segment.write([b"a" * 100, b"b" * 100, b"c" * 100])
    offset = segment.disk.read_whole(PATH.name).index(b"b" * 100)
    segment.disk.flip_bit(PATH.name, offset + 50)
    assert segment.read(0).payloads == [b"a" * 100]
    with pytest.raises(
        DamagedSegment,
        match=f"{PATH.name} is damaged at offset {offset}, position 5:1: the payload of the entry has a wrong checksum",
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
    with (
        segment.disk.open_for_read(PATH) as file,
        pytest.raises(DamagedSegment, match="begins with entry 5:0, but entry 6:0 is expected"),
    ):
        read_entries(file, PATH, 6, segment.place, 0, 1, 1)


def test_a_segment_that_is_shorter_than_committed_loses_what_is_cut_and_no_more() -> None:
    segment = Segment()
    segment.write(entries(300, 1000))
    with segment.disk.open_for_write(PATH) as file:
        file.truncate(segment.extent.end_offset - 1)
    with pytest.raises(DamagedSegment, match="wrong checksum"):
        segment.read(299)
    with segment.disk.open_for_write(PATH) as file:
        file.truncate(segment.index.offsets[1])
    found, damages = segment.read_around_damage(segment.place)
    end = segment.index.first_entry_ids[1]
    assert list(found) == list(range(end))
    assert [(error.first_entry_id, error.last_entry_id) for error in damages] == [(end, 299)]


def test_blocks_that_hold_less_than_committed_are_a_gap_at_the_end() -> None:
    segment = Segment()
    segment.write(entries(20, 100))
    longer = LedgerExtent(segment.extent.end_offset, 25, segment.extent.message_count, segment.extent.size_bytes)
    gaps = segment.scan(longer).gaps
    assert [(gap.first_entry_id, gap.end_entry_id) for gap in gaps] == [(20, 25)]
    with pytest.raises(DamagedSegment, match="positions 5:20 to 5:24"):
        segment.read(22, place=LedgerLocation(longer, segment.index))


def test_a_file_of_zeros_is_told_as_one_damage() -> None:
    segment = Segment()
    segment.write(entries(200, 1000))
    with segment.disk.open_for_write(PATH) as file:
        file.truncate(0)
        file.truncate(segment.extent.end_offset)
    found, damages = segment.read_around_damage(LedgerLocation(segment.extent, SegmentIndex()))
    assert found == {}
    assert [(error.first_entry_id, error.last_entry_id) for error in damages] == [(0, 199)]


def test_a_segment_without_trailer_is_read_from_its_blocks_and_its_end_is_not_trusted() -> None:
    segment = Segment()
    segment.write(entries(3, 100))
    loaded = segment.load()
    assert [reason for _, reason in loaded.faults] == [
        (
            "the ledger file is truncated or damaged: it does not end with a trailer. Restore the file from a backup, or run "
            "`pybroker ledger repair`"
        )
    ]
    assert (loaded.place.extent, loaded.gaps) == (segment.extent, [])
    assert segment.read_around_damage(loaded.place)[0] == dict(enumerate(segment.payloads))


def test_a_segment_of_a_newer_version_is_refused_and_not_called_damaged() -> None:
    segment = Segment()
    segment.write(entries(3, 100))
    header = bytearray(encode_segment_header(5))
    header[8] = 2
    with segment.disk.open_for_write(PATH) as file:
        file.write_at((bytes(header),), 0, durable=False)
    with pytest.raises(UnknownVersion, match="version 2"):
        segment.load()


def _block_ranges(payloads: list[bytes]) -> list[range]:
    return [range(start, end) for start, end in split_into_blocks(payloads)]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), size=st.sampled_from([0, 20, 3000, 70_000]), count=st.integers(1, 60))
def test_a_flipped_bit_costs_one_entry_or_one_block_and_never_gives_a_wrong_entry(
    data: st.DataObject, size: int, count: int
) -> None:
    segment = Segment()
    segment.write(entries(count, size), seals=True)
    whole = segment.load()
    assert segment.read_around_damage(whole.place) == (dict(enumerate(segment.payloads)), [])
    file_bytes = segment.disk.read_whole(PATH.name)
    offset = data.draw(st.integers(0, len(file_bytes) - 1), label="offset")
    segment.disk.flip_bit(PATH.name, offset)
    loaded = segment.load()
    found, damages = segment.read_around_damage(loaded.place)
    assert all(payload == segment.payloads[entry_id] for entry_id, payload in found.items())
    lost = set(range(count)) - set(found)
    assert {entry_id for error in damages for entry_id in range(error.first_entry_id, error.last_entry_id + 1)} == lost
    if SEGMENT_HEADER_BYTES <= offset < segment.extent.end_offset:
        assert not loaded.faults
        assert any(lost == set(block) for block in _block_ranges(segment.payloads)) or len(lost) == 1
    else:
        assert loaded.faults
        assert not lost


@settings(deadline=None, max_examples=40)
@given(data=st.data(), size=st.sampled_from([20, 3000, 70_000]))
def test_damage_is_told_as_well_without_the_index(data: st.DataObject, size: int) -> None:
    segment = Segment()
    segment.write(entries(50, size), seals=True)
    end = len(segment.disk.read_whole(PATH.name))
    segment.disk.flip_bit(PATH.name, data.draw(st.integers(segment.extent.end_offset, end - 1)))
    segment.disk.flip_bit(PATH.name, data.draw(st.integers(SEGMENT_HEADER_BYTES, segment.extent.end_offset - 1)))
    loaded = segment.load()
    assert loaded.faults
    assert loaded.place.extent.entry_count <= 50
    # Damage that hides the number of entries is reported up to the last requested entry.
    found, damages = segment.read_around_damage(loaded.place)
    assert all(payload == segment.payloads[entry_id] for entry_id, payload in found.items())
    lost = set(range(50)) - set(found)
    assert any(lost == set(block) for block in _block_ranges(segment.payloads)) or len(lost) == 1
    assert len(damages) == 1


def test_totals_and_message_counts_are_exact_at_every_entry() -> None:
    segment = Segment()
    segment.write(entries(150, 2000))
    segment.write(entries(3, 100_000))
    with segment.disk.open_for_read(PATH) as file:
        messages = size_bytes = 0
        for entry_id, payload in enumerate(segment.payloads):
            assert totals_before(file, 5, segment.place, entry_id) == LedgerTotals(messages, size_bytes)
            assert message_count_of(file, 5, segment.place, BitMap((entry_id,))) == entry_id + 1
            messages += entry_id + 1
            size_bytes += len(payload)
        assert totals_before(file, 5, segment.place, 153) == LedgerTotals(messages, size_bytes)
        odd = BitMap(range(1, 153, 2))
        assert message_count_of(file, 5, segment.place, odd) == sum(number + 1 for number in odd)
        assert message_count_of(file, 5, segment.place, BitMap(range(153))) == messages


def test_an_entry_of_a_damaged_block_counts_as_one_message() -> None:
    segment = Segment()
    segment.write(entries(10, 1000))
    segment.disk.flip_bit(PATH.name, SEGMENT_HEADER_BYTES + 10)
    with segment.disk.open_for_read(PATH) as file:
        assert totals_before(file, 5, segment.place, 4) == LedgerTotals(4, 0)
        assert message_count_of(file, 5, segment.place, BitMap((2, 3, 7))) == 3


def test_damage_is_the_kind_of_error_that_readers_handle() -> None:
    segment = Segment()
    segment.write([b"abc"])
    segment.disk.flip_bit(PATH.name, segment.extent.end_offset - 1)
    with pytest.raises(DamagedEntries) as caught:
        segment.read(0)
    assert (caught.value.ledger_id, caught.value.first_entry_id, caught.value.last_entry_id) == (5, 0, 0)
