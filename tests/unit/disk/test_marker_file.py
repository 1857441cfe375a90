"""Marker files: their bytes, damaged slots, other sizes, and the content without a sync."""

import struct
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from tests.support.fault_disk import FaultDisk

from pybroker.disk.disk import Disk
from pybroker.disk.marker_file import MarkerFile
from pybroker.local_store.journal.journal_end import JOURNAL_END_NAME, JournalEndFile
from pybroker.metadata.commit_mark import CommitMark, decode_mark
from pybroker.storage_format.journal_end_layout import JournalEnd
from pybroker.storage_format.marker_layout import MARKER_BYTES, MarkerLayout

LAYOUT = MarkerLayout(b"HEAD", 2, slot_count=2, slot_bytes=512)
PATH = Path("/data/marker")


def commit_mark(commits: int) -> bytes:
    """The bytes of `metadata.end`, written without the layout."""
    record = b"PYBMETA1" + struct.pack("<Q", commits)
    return (record + struct.pack("<I", crc32c(record))).ljust(4096, b"\0")


def journal_end_slot(*values: int) -> bytes:
    """The bytes of a slot of `journal.end`, written without the layout."""
    fields = struct.pack("<8sH6xQQQQ", b"PYBJREND", 1, *values)
    return (fields + struct.pack("<I", crc32c(fields))).ljust(512, b"\0")


def test_bytes_of_the_commit_mark_do_not_change(tmp_path: Path) -> None:
    mark = CommitMark(Disk(), tmp_path / "metadata.end")
    mark.write(7)
    mark.write(8)
    mark.close()
    assert (tmp_path / "metadata.end").read_bytes() == commit_mark(8)
    again = CommitMark(Disk(), tmp_path / "metadata.end")
    assert again.read() == 8
    again.close()


def test_bytes_of_the_journal_end_do_not_change(tmp_path: Path) -> None:
    end = JournalEndFile(Disk(), tmp_path, JournalEnd(5, 0, 0, 1))
    end.noted(6, 2, 4608)
    end.noted(7, 2, 5120)
    end.noted(8, 2, 5632)
    end.close()
    slots = journal_end_slot(7, 2, 5120, 1) + journal_end_slot(8, 2, 5632, 1)
    assert (tmp_path / JOURNAL_END_NAME).read_bytes() == slots.ljust(4096, b"\0")


@pytest.mark.parametrize(("kept_bytes", "commits"), [(0, 0), (19, 0), (20, 300), (4095, 300), (5000, 300)])
def test_a_commit_mark_of_another_size_keeps_its_number(tmp_path: Path, kept_bytes: int, commits: int) -> None:
    path = tmp_path / "metadata.end"
    path.write_bytes(commit_mark(300).ljust(kept_bytes, b"\0")[:kept_bytes])
    mark = CommitMark(Disk(), path)
    assert mark.read() == commits
    assert path.stat().st_size == MARKER_BYTES
    mark.close()


def test_each_flipped_bit_of_a_commit_mark_is_noticed() -> None:
    data = commit_mark(8)
    for bit in range(20 * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_mark(bytes(damaged)) is None
    assert (decode_mark(data), decode_mark(bytes(4096)), decode_mark(b""), decode_mark(data[:20])) == (8, 0, 0, None)


def test_a_damaged_slot_leaves_the_values_of_the_other_one() -> None:
    data = bytearray(MARKER_BYTES)
    for number, values in ((0, (3, 4)), (1, (3, 5))):
        slot = LAYOUT.encode(*values)
        data[LAYOUT.slot_offset(number) : LAYOUT.slot_offset(number) + len(slot)] = slot
    assert LAYOUT.decode(bytes(data)) == (3, 5)
    data[LAYOUT.slot_offset(1) + 5] ^= 1
    assert LAYOUT.decode(bytes(data)) == (3, 4)
    assert LAYOUT.decode(bytes(data[:10])) is None


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_marker_survives_a_kill_without_a_sync_and_a_power_failure_after_one(is_synced: bool) -> None:
    disk = FaultDisk()
    marker = MarkerFile(disk.open_mapped(PATH, MARKER_BYTES), LAYOUT)
    marker.write(1, 1)
    if is_synced:
        marker.sync()
    assert LAYOUT.decode(marker.content()) == (1, 1)
    found = {LAYOUT.decode(disk.after_power_loss(Random(seed)).read_whole(PATH.name)) for seed in range(20)}
    assert found == {(1, 1)} if is_synced else None in found
    assert LAYOUT.decode(disk.after_kill().read_whole(PATH.name)) == (1, 1)
