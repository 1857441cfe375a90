"""Segment files: where the entries of one ledger rest after a checkpoint. Blocking IO, called in the store's threads.

What must always hold: bytes before a ledger's committed extent never change; a sealed file never changes at all; what is
read is checked, and damage is told with file, offset and position, never skipped.
Which extent is committed, and who may write when, is the checkpoint's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from crc32c import crc32c

from pybroker.errors import NoSuchLedger, StoreError
from pybroker.storage.disk import Disk, DiskFile
from pybroker.storage.layout.fields import LayoutError
from pybroker.storage.layout.segment import (
    BLOCK_ENTRY_BYTES,
    MAX_BLOCK_BYTES,
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
from pybroker.storage.ledger_store import EntryRun

_SUFFIX = ".ledger"
# A write of this size keeps neither the disk nor the interpreter from the journal for long.
_SLICE_BYTES = 1 << 20
_SLICE_PIECES = 900
_CHUNK_ENTRIES = 4096
_SCAN_BYTES = 1 << 20


class DamagedSegment(StoreError):
    """A segment file does not hold what was written: the text names file, offset and position."""

    def __init__(self, path: Path, offset: int, ledger_id: int, entry_id: int, reason: str) -> None:
        super().__init__(f"{path.name} is damaged at offset {offset}, position {ledger_id}:{entry_id}: {reason}")
        self.offset = offset
        self.ledger_id = ledger_id
        self.entry_id = entry_id


def segment_path(directory: Path, ledger_id: int) -> Path:
    """One flat directory: file systems of today index it, and a listing is one scan."""
    return directory / f"{ledger_id:020d}{_SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    stem = name.removesuffix(_SUFFIX)
    return int(stem) if stem != name and stem.isdecimal() else None


class SegmentWriter:
    """Appends to one segment file behind a committed extent; the result counts once it is synced and committed.

    Writing again from the same extent (after a crash, or when there was no room) gives the same file.
    """

    def __init__(
        self, file: DiskFile, ledger_id: int, extent: LedgerExtent, index: SegmentIndex, *, syncs_slices: bool
    ) -> None:
        self._file = file
        self._ledger_id = ledger_id
        self.extent = extent
        self.index = index
        self._syncs_slices = syncs_slices
        if file.size() != extent.end_offset:
            # What lies behind was never committed: a crash came between write and commit.
            file.truncate(extent.end_offset)

    def write(self, payloads: Sequence[bytes | memoryview], message_counts: Sequence[int]) -> None:
        """Add entries as blocks, in slices."""
        offset, entries, messages, size = self._start()
        pieces: list[bytes | memoryview] = (
            [encode_segment_header(self._ledger_id)] if offset != self.extent.end_offset else []
        )
        slice_offset = self.extent.end_offset
        for chunk in range(0, len(payloads), _CHUNK_ENTRIES):
            chunk_payloads = payloads[chunk : chunk + _CHUNK_ENTRIES]
            chunk_counts = message_counts[chunk : chunk + _CHUNK_ENTRIES]
            for start, end in split_into_blocks(chunk_payloads):
                block_payloads = chunk_payloads[start:end]
                block_counts = chunk_counts[start:end]
                self.index.add(entries, offset, messages, size)
                pieces += encode_block(self._ledger_id, entries, block_payloads, block_counts)
                block_bytes = sum(map(len, block_payloads))
                offset += block_length(end - start, block_bytes)
                entries += end - start
                messages += sum(block_counts)
                size += block_bytes
                if offset - slice_offset >= _SLICE_BYTES or len(pieces) >= _SLICE_PIECES:
                    self._file.write_at(pieces, slice_offset, durable=False)
                    pieces, slice_offset = [], offset
                    if self._syncs_slices:
                        # A large sync at the end would stand in the way of the journal: publish p99 10 ms against 5.5.
                        self._file.sync()
        if pieces:
            self._file.write_at(pieces, slice_offset, durable=False)
        self.extent = LedgerExtent(offset, entries, messages, size)

    def seal(self) -> None:
        """Add index and trailer. The extent stays: it says where the blocks end."""
        if self.extent.end_offset == 0:
            self.write((), ())
        self._file.write_at(
            (encode_index(self._ledger_id, self.extent, self.index),), self.extent.end_offset, durable=False
        )

    def _start(self) -> tuple[int, int, int, int]:
        extent = self.extent
        offset = extent.end_offset or SEGMENT_HEADER_BYTES
        return offset, extent.entry_count, extent.message_count, extent.size_bytes


def load_sealed(disk: Disk, path: Path, ledger_id: int) -> tuple[LedgerExtent, SegmentIndex]:
    """Extent and index of a sealed ledger. Raises NoSuchLedger, or DamagedSegment when it has no whole index."""
    with _open(disk, path, ledger_id) as file:
        size = file.size()
        try:
            check_segment_header(file.read_at(SEGMENT_HEADER_BYTES, 0), ledger_id)
            offset, length = decode_trailer(file.read_at(TRAILER_BYTES, max(0, size - TRAILER_BYTES)), size)
            return decode_index(file.read_at(length + TRAILER_BYTES, offset), ledger_id, offset)
        except LayoutError as error:
            raise DamagedSegment(path, size, ledger_id, -1, str(error)) from error


def scan_unsealed(disk: Disk, path: Path, ledger_id: int, extent: LedgerExtent) -> SegmentIndex:
    """The index of a ledger that was left open, made from its block headers up to the committed extent."""
    index = SegmentIndex()
    if extent.end_offset == 0:
        return index
    entries, messages, size, offset = 0, 0, 0, SEGMENT_HEADER_BYTES
    with _open(disk, path, ledger_id) as file:
        try:
            check_segment_header(file.read_at(SEGMENT_HEADER_BYTES, 0), ledger_id)
        except LayoutError as error:
            raise DamagedSegment(path, 0, ledger_id, -1, str(error)) from error
        window = _Window(file, path, ledger_id, extent.end_offset)
        while offset < extent.end_offset:
            block = window.block_at(offset, entries, _SCAN_BYTES)
            index.add(entries, offset, messages, size)
            offset += block_length(len(block.lengths), block.payload_bytes)
            entries += len(block.lengths)
            messages += sum(block.message_counts)
            size += block.payload_bytes
    found = LedgerExtent(offset, entries, messages, size)
    if found != extent:
        raise DamagedSegment(path, offset, ledger_id, entries, f"holds {found}, committed was {extent}")
    return index


def read_entries(
    disk: Disk, path: Path, ledger_id: int, span: tuple[int, int], first_entry_id: int, max_entries: int, max_bytes: int
) -> EntryRun:
    """Entries from `first_entry_id` on, at least one, out of the blocks between the offsets `span`: one read as a rule."""
    offset, end_offset = span
    payloads: list[bytes] = []
    message_counts: list[int] = []
    # The point lies up to a spacing and a block before the entry, and columns come on top of the payloads.
    read_bytes = POINT_SPACING_BYTES + 2 * MAX_BLOCK_BYTES + max_bytes + BLOCK_ENTRY_BYTES * max_entries
    total_bytes = 0
    expected_id: int | None = None
    with _open(disk, path, ledger_id) as file:
        window = _Window(file, path, ledger_id, end_offset)
        while offset < end_offset and len(payloads) < max_entries and total_bytes < max_bytes:
            if payloads and not window.holds(offset):
                break
            block = window.block_at(offset, expected_id, read_bytes)
            if payloads and window.payloads_end(block) > window.end:
                break
            count = len(block.lengths)
            skip = first_entry_id + len(payloads) - block.first_entry_id
            if skip < 0:
                raise DamagedSegment(path, offset, ledger_id, first_entry_id, f"block starts at {block.first_entry_id}")
            if skip < count:
                take = _entries_to_take(block, skip, max_entries - len(payloads), max_bytes - total_bytes)
                taken = window.payloads(block, offset, skip, take)
                payloads += taken
                message_counts += block.message_counts[skip : skip + len(taken)].tolist()
                if len(taken) < take:
                    break  # damaged behind: told to whoever asks for that entry
                total_bytes = sum(map(len, payloads))
            expected_id = block.first_entry_id + count
            offset += block_length(count, block.payload_bytes)
    if not payloads:
        raise DamagedSegment(path, offset, ledger_id, first_entry_id, "the entry is not where the index says")
    return EntryRun(ledger_id, first_entry_id, payloads, message_counts)


def _entries_to_take(block: Block, skip: int, max_entries: int, max_bytes: int) -> int:
    """How many entries of the block from number `skip` on: up to and with the one that reaches `max_bytes`."""
    count = 0
    for total in accumulate(block.lengths[skip : skip + max_entries]):
        count += 1
        if total >= max_bytes:
            break
    return count


def _open(disk: Disk, path: Path, ledger_id: int) -> DiskFile:
    try:
        return disk.open_for_read(path)
    except FileNotFoundError:
        raise NoSuchLedger(f"ledger {ledger_id} does not exist") from None


class _Window:
    """The part of a segment file that is in memory; it moves when something outside is asked for."""

    def __init__(self, file: DiskFile, path: Path, ledger_id: int, end_offset: int) -> None:
        self._file = file
        self._path = path
        self._ledger_id = ledger_id
        self._end_offset = end_offset
        self._start = 0
        self._data = b""
        self._view = memoryview(b"")

    @property
    def end(self) -> int:
        return self._start + len(self._data)

    def holds(self, offset: int) -> bool:
        return self._start <= offset < self.end

    def payloads_end(self, block: Block) -> int:
        return self._start + block.end_offset

    def block_at(self, offset: int, expected_id: int | None, read_bytes: int) -> Block:
        """The checked block header at a file offset; its payloads may lie outside the window."""
        entry_id = -1 if expected_id is None else expected_id
        if not self.holds(offset):
            self._move(offset, read_bytes)
        try:
            block = decode_block(self._view, offset - self._start)
            for _ in range(2):  # the first length may be that of the header alone, the second that of the columns too
                if isinstance(block, Block):
                    break
                self._move(offset, max(read_bytes, block))
                block = decode_block(self._view, 0)
        except LayoutError as error:
            raise DamagedSegment(self._path, offset, self._ledger_id, entry_id, str(error)) from error
        if not isinstance(block, Block):
            raise DamagedSegment(self._path, offset, self._ledger_id, entry_id, "the file is cut")
        if block.ledger_id != self._ledger_id or expected_id not in {None, block.first_entry_id}:
            reason = f"holds the block of {block.ledger_id}:{block.first_entry_id}"
            raise DamagedSegment(self._path, offset, self._ledger_id, entry_id, reason)
        return block

    def payloads(self, block: Block, offset: int, skip: int, take: int) -> list[bytes]:
        """Checked payloads `skip` to `skip + take` of the block at file offset `offset`; fewer before a damaged one."""
        ends = list(accumulate(block.lengths[: skip + take], initial=block.payload_offset))
        if ends[-1] > len(self._data):
            shift = offset - self._start
            self._move(offset, block.end_offset - shift)
            ends = [end - shift for end in ends]
        if ends[-1] > len(self._data):
            raise DamagedSegment(self._path, offset, self._ledger_id, block.first_entry_id, "the file is cut")
        data = self._data
        found = [data[start:end] for start, end in zip(ends[skip:], ends[skip + 1 :], strict=False)]
        wanted = block.checksums[skip : skip + take].tolist()
        checksums = list(map(crc32c, found))
        if checksums == wanted:
            return found
        good = next(number for number, checksum in enumerate(checksums) if checksum != wanted[number])
        if good == 0:
            entry_id = block.first_entry_id + skip
            where = self._start + ends[skip]
            raise DamagedSegment(self._path, where, self._ledger_id, entry_id, "wrong checksum of the entry")
        return found[:good]

    def _move(self, offset: int, length: int) -> None:
        self._start = offset
        self._data = self._file.read_at(min(length, self._end_offset - offset), offset)
        self._view = memoryview(self._data)
