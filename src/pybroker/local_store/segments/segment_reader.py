"""Reader of segment files. Blocking IO, for the store's reading threads and the tools.

Invariants: all data is checked. Damage is reported with file, offset, and positions. A wrong payload makes one entry
unreadable, wrong columns all entries of a block. Entries around damage stay readable: the next block is found by the
length in the damaged header, by the magic bytes of a block, or at the latest at the next index point. Without an intact
index the blocks are scanned. An OSError of the device is not damage, and a retry may succeed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from crc32c import crc32c
from pyroaring import BitMap

from pybroker.disk.disk import DiskFile
from pybroker.errors import DamagedEntries
from pybroker.ledgers.ledger_store import EntryRun, LedgerTotals
from pybroker.local_store.segments.ledger_location import LedgerLocation
from pybroker.storage_format.fields import LayoutError, UnknownVersion
from pybroker.storage_format.segment_layout import (
    BLOCK_ENTRY_BYTES,
    BLOCK_HEADER_BYTES,
    MAX_BLOCK_BYTES,
    POINT_SPACING_BYTES,
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    Block,
    LedgerExtent,
    PublishTimeOf,
    SegmentIndex,
    block_length,
    block_length_said,
    check_segment_header,
    decode_block,
    decode_index,
    decode_trailer,
    find_block,
    is_index_start,
)

_SCAN_BYTES = 1 << 20
_COLUMN_READ_BYTES = 4096
_INDEX_HEAD_BYTES = 64


class DamagedSegment(DamagedEntries):
    """Unreadable entries of a segment file. The message contains file, offset, and positions."""

    def __init__(self, path: Path, offset: int, ledger_id: int, first_id: int, last_id: int, reason: str) -> None:
        positions = f"position {ledger_id}:{first_id}"
        if last_id != first_id:
            positions = f"positions {ledger_id}:{first_id} to {ledger_id}:{last_id}"
        super().__init__(
            ledger_id, first_id, last_id, f"{path.name} is damaged at offset {offset}, {positions}: {reason}"
        )
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Gap:
    """Unreadable blocks of a segment file and their entries, up to, not including, `end_entry_id`."""

    offset: int
    end_offset: int
    first_entry_id: int
    end_entry_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A decoded block with its location in the file."""

    offset: int
    block: Block

    @property
    def end_offset(self) -> int:
        return self.offset + block_length(len(self.block.lengths), self.block.payload_bytes)

    @property
    def end_entry_id(self) -> int:
        return self.block.first_entry_id + len(self.block.lengths)


@dataclass(frozen=True, slots=True)
class LoadedSegment:
    """The location of a ledger in its segment file, and the damage found while loading it."""

    place: LedgerLocation
    faults: list[tuple[int, str]]  # offset and reason of damage that affects no entry
    gaps: list[Gap]


class BlockWalk:
    """Iterates over the blocks of a segment file, and returns damage as gaps.

    Invariant: results are consecutive in offsets and entry ids.
    """

    def __init__(
        self, file: DiskFile, ledger_id: int, place: LedgerLocation, point: int = -1, read_bytes: int = _SCAN_BYTES
    ) -> None:
        self.offset, self.entry_id = place.index.place_of(point)
        self.window = Window(file, place.extent.end_offset)
        self._ledger_id = ledger_id
        self._place = place
        self._point = max(0, point)
        self._read_bytes = read_bytes

    def next(self) -> FoundBlock | Gap | None:
        extent = self._place.extent
        if self.offset >= extent.end_offset:
            if self.entry_id >= extent.entry_count or not self._place.is_end_known:
                return None
            return self._pass(Gap(self.offset, self.offset, self.entry_id, extent.entry_count, "the blocks end here"))
        try:
            found = FoundBlock(self.offset, self.window.block_at(self.offset, self._read_bytes))
            block = found.block
            if (block.ledger_id, block.first_entry_id) != (self._ledger_id, self.entry_id):
                raise LayoutError(
                    f"the block at this offset begins with entry {block.ledger_id}:{block.first_entry_id}, but entry "
                    f"{self._ledger_id}:{self.entry_id} is expected"
                )
        except LayoutError as error:
            gap = self._gap(str(error))
            return None if gap is None else self._pass(gap)
        self.offset, self.entry_id = found.end_offset, found.end_entry_id
        return found

    def _pass(self, gap: Gap) -> Gap:
        self.offset, self.entry_id = gap.end_offset, gap.end_entry_id
        return gap

    def _gap(self, reason: str) -> Gap | None:
        offset, entry_id = self.offset, self.entry_id
        extent = self._place.extent
        end_offset, end_entry_id = self._next_known()
        is_end_known = self._place.is_end_known or end_offset < extent.end_offset
        if not is_end_known and self._is_index_at(offset):
            return None
        following = self._following_block(offset, entry_id, end_offset, end_entry_id if is_end_known else None)
        if following is not None:
            end_offset, end_entry_id = following
        elif not self.window.bytes_at(offset, 1):
            # The file ends here: all later entries are missing too.
            end_offset, end_entry_id = extent.end_offset, extent.entry_count
        return Gap(offset, end_offset, entry_id, max(entry_id, end_entry_id), reason)

    def _next_known(self) -> tuple[int, int]:
        offsets = self._place.index.offsets
        while self._point < len(offsets) and offsets[self._point] <= self.offset:
            self._point += 1
        if self._point < len(offsets):
            return self._place.index.place_of(self._point)
        return self._place.extent.end_offset, self._place.extent.entry_count

    def _following_block(
        self, offset: int, entry_id: int, end_offset: int, end_entry_id: int | None
    ) -> tuple[int, int] | None:
        """Return offset and first entry of the next whole block before `end_offset` that can follow the damaged one."""
        count, length = block_length_said(memoryview(self.window.bytes_at(offset, BLOCK_HEADER_BYTES)), 0)
        if 0 < length <= end_offset - offset:
            if offset + length == end_offset and end_entry_id in {None, entry_id + count}:
                return end_offset, entry_id + count
            is_end = end_entry_id is None and self._is_index_at(offset + length)
            if is_end or self._first_id_at(offset + length) == entry_id + count:
                return offset + length, entry_id + count
        start = offset + 1
        while start < end_offset:
            data = self.window.bytes_at(start, min(_SCAN_BYTES, end_offset - start))
            found = find_block(data, 0)
            while found >= 0:
                first_id = self._first_id_at(start + found)
                if first_id is not None and entry_id < first_id and (end_entry_id is None or first_id < end_entry_id):
                    return start + found, first_id
                found = find_block(data, found + 1)
            if len(data) < 4:
                break
            start += len(data) - 3  # the magic bytes may span two reads
        return None

    def _is_index_at(self, offset: int) -> bool:
        return is_index_start(self.window.bytes_at(offset, _INDEX_HEAD_BYTES), self._ledger_id)

    def _first_id_at(self, offset: int) -> int | None:
        try:
            block = self.window.block_at(offset, _COLUMN_READ_BYTES)
        except LayoutError:
            return None
        return block.first_entry_id if block.ledger_id == self._ledger_id else None


class Window:
    """The part of a segment file that is in memory. A request outside of it reads another part."""

    def __init__(self, file: DiskFile, end_offset: int) -> None:
        self._file = file
        self._end_offset = end_offset
        self._start = 0
        self._data = b""
        self._view = memoryview(b"")

    def holds_block(self, offset: int) -> bool:
        """Return whether the first byte of the block at `offset` is in memory."""
        return self._start <= offset < self._start + len(self._data)

    def holds_payloads(self, found: FoundBlock) -> bool:
        return found.end_offset <= self._start + len(self._data)

    def bytes_at(self, offset: int, length: int) -> bytes:
        return self._file.read_at(min(length, max(0, self._end_offset - offset)), offset)

    def block_at(self, offset: int, read_bytes: int) -> Block:
        """Decode the head of the block at `offset`. Its payloads may be outside of the window. If the head is outside
        too, read `read_bytes` from there, or more if necessary. Raises LayoutError.
        """
        if not self.holds_block(offset):
            self._move(offset, read_bytes)
        found = decode_block(self._view, offset - self._start)
        for _ in range(2):  # the first length may cover the header only, the second the columns too
            if isinstance(found, Block):
                return found
            self._move(offset, max(read_bytes, found))
            found = decode_block(self._view, 0)
        if isinstance(found, Block):
            return found
        raise LayoutError("the ledger file is truncated within the head of this block of entries")

    def payloads(self, found: FoundBlock, skip: int, take: int) -> tuple[list[bytes], list[bool]]:
        """Return `take` payloads of a block after the first `skip` ones, and for each whether its checksum is right."""
        block = found.block
        # The window may have moved since the block was decoded.
        first_offset = found.end_offset - block.payload_bytes
        ends = list(accumulate(block.lengths[: skip + take], initial=first_offset - self._start))
        if ends[skip] < 0 or ends[-1] > len(self._data):
            self._move(first_offset, block.payload_bytes)
            ends = list(accumulate(block.lengths[: skip + take], initial=0))
        data = self._data
        payloads = [data[start:end] for start, end in zip(ends[skip:], ends[skip + 1 :], strict=False)]
        wanted = block.checksums[skip : skip + take].tolist()
        checksums = list(map(crc32c, payloads))
        if checksums == wanted and ends[-1] <= len(data):
            return payloads, [True] * len(payloads)
        is_whole = [end <= len(data) for end in ends[skip + 1 :]]
        return payloads, [
            whole and checksum == right for whole, checksum, right in zip(is_whole, checksums, wanted, strict=True)
        ]

    def _move(self, offset: int, length: int) -> None:
        self._start = offset
        self._data = self.bytes_at(offset, length)
        self._view = memoryview(self._data)


# Loading


def load_sealed(file: DiskFile, ledger_id: int, publish_time_of: PublishTimeOf) -> LoadedSegment:
    """Return the location and index of a sealed ledger in its segment file. If the index is damaged, scan the blocks.
    Raises UnknownVersion.
    """
    size = file.size()
    faults: list[tuple[int, str]] = []
    version: UnknownVersion | None = None
    try:
        check_segment_header(file.read_at(SEGMENT_HEADER_BYTES, 0), ledger_id)
    except LayoutError as error:
        faults.append((0, str(error)))
        version = error if isinstance(error, UnknownVersion) else None
    end_offset = size
    try:
        end_offset, length = decode_trailer(file.read_at(TRAILER_BYTES, max(0, size - TRAILER_BYTES)), size)
        place = LedgerLocation(*decode_index(file.read_at(length + TRAILER_BYTES, end_offset), ledger_id, end_offset))
        return LoadedSegment(place, faults, [])
    except LayoutError as error:
        if version is not None:
            raise version from error
        faults.append((end_offset, str(error)))
    unknown = LedgerLocation(LedgerExtent(end_offset, 0, 0, 0), SegmentIndex(), is_end_known=False)
    loaded = scan(file, ledger_id, unknown, publish_time_of)
    return LoadedSegment(loaded.place, faults, loaded.gaps)


def scan(file: DiskFile, ledger_id: int, known: LedgerLocation, publish_time_of: PublishTimeOf) -> LoadedSegment:
    """Create the index of a ledger from the blocks of its segment file up to the offset `known.extent.end_offset`. If
    `known.is_end_known`, the result contains `known.extent` unchanged. Otherwise the scan determines the end of the
    blocks and the numbers of entries, messages and bytes.

    Each entry of a damaged block counts as one message; the bytes of the block count as payload.
    """
    index = SegmentIndex(publish_time_of)
    gaps: list[Gap] = []
    walk = BlockWalk(file, ledger_id, known)
    messages, size_bytes = 0, 0
    while (step := walk.next()) is not None:
        if isinstance(step, Gap):
            gaps.append(step)
            count = step.end_entry_id - step.first_entry_id
            messages += count
            size_bytes += max(0, step.end_offset - step.offset - block_length(count, 0))
            continue
        if index.is_point(step.offset):
            payloads, is_right = walk.window.payloads(step, 0, 1)
            index.add(
                step.block.first_entry_id, step.offset, messages, size_bytes, payloads[0] if is_right[0] else None
            )
        messages += sum(step.block.message_counts)
        size_bytes += step.block.payload_bytes
    if known.is_end_known:
        return LoadedSegment(LedgerLocation(known.extent, index), [], gaps)
    # The scan saw all blocks only if an index follows whole blocks.
    is_end_known = (not gaps or gaps[-1].end_offset < walk.offset) and is_index_start(
        file.read_at(_INDEX_HEAD_BYTES, walk.offset), ledger_id
    )
    extent = LedgerExtent(walk.offset, walk.entry_id, messages, size_bytes)
    return LoadedSegment(LedgerLocation(extent, index, is_end_known), [], gaps)


# Reading


def read_entries(
    file: DiskFile,
    path: Path,
    ledger_id: int,
    place: LedgerLocation,
    first_entry_id: int,
    max_entries: int,
    max_bytes: int,
) -> EntryRun:
    """Read the entry `first_entry_id` of a ledger from its segment file, and the following entries that the same read
    of the disk covers, within the limits. Raises DamagedSegment if the first entry is unreadable.
    """
    if first_entry_id >= place.extent.entry_count:
        assert not place.is_end_known, "asked for an entry that does not exist"
        # the caller's extent is newer than the file's
        first_id, last_id = place.extent.entry_count, first_entry_id + max_entries - 1
        reason = "the entry was in the damaged end of the file"
        raise DamagedSegment(path, place.extent.end_offset, ledger_id, first_id, last_id, reason)
    payloads: list[bytes] = []
    message_counts: list[int] = []
    # The index point is up to one spacing and one block before the entry; columns are read in addition to the payloads.
    read_bytes = POINT_SPACING_BYTES + 2 * MAX_BLOCK_BYTES + max_bytes + BLOCK_ENTRY_BYTES * max_entries
    total_bytes = 0
    walk = BlockWalk(file, ledger_id, place, place.index.point_of(first_entry_id), read_bytes)
    while not payloads or (len(payloads) < max_entries and total_bytes < max_bytes):
        if payloads and not walk.window.holds_block(walk.offset):
            break
        found = walk.next()
        if found is None:
            break
        if isinstance(found, Gap):
            if found.end_entry_id <= first_entry_id and not payloads:
                continue
            if payloads:
                break  # reported to the reader of the next entry
            raise _damage_of_gap(path, ledger_id, found)
        if payloads and not walk.window.holds_payloads(found):
            break
        skip = first_entry_id + len(payloads) - found.block.first_entry_id
        if skip >= len(found.block.lengths):
            continue
        take = _entries_to_take(found.block, skip, max_entries - len(payloads), max_bytes - total_bytes)
        taken, is_right = walk.window.payloads(found, skip, take)
        if False in is_right:
            take = is_right.index(False)
            if take == 0 and not payloads:
                offset = found.end_offset - sum(found.block.lengths[skip:])
                # A truncated file has many consecutive damaged entries.
                count = is_right.index(True) if True in is_right else len(is_right)
                last_id = first_entry_id + count - 1
                raise DamagedSegment(
                    path,
                    offset,
                    ledger_id,
                    first_entry_id,
                    last_id,
                    "the payload of the entry has a wrong checksum",
                )
            del taken[take:]
        payloads += taken
        message_counts += found.block.message_counts[skip : skip + take].tolist()
        if False in is_right:
            break
        total_bytes += sum(found.block.lengths[skip : skip + take])
    if not payloads:
        last_id = max(first_entry_id, place.extent.entry_count - 1)
        raise DamagedSegment(
            path, walk.offset, ledger_id, first_entry_id, last_id, "no block of the file contains the entry"
        )
    return EntryRun(ledger_id, first_entry_id, payloads, message_counts)


def totals_before(file: DiskFile, ledger_id: int, place: LedgerLocation, entry_id: int) -> LedgerTotals:
    """Return the number of messages and bytes of a ledger before the entry `entry_id`, from the index and at most some
    block heads.
    """
    index, extent = place.index, place.extent
    if entry_id >= extent.entry_count:
        return LedgerTotals(extent.message_count, extent.size_bytes)
    point = index.point_of(entry_id)
    messages, size_bytes = index.totals_of(point)
    walk = BlockWalk(file, ledger_id, place, point, _COLUMN_READ_BYTES)
    while walk.entry_id < entry_id and (found := walk.next()) is not None:
        if isinstance(found, Gap):
            messages += min(found.end_entry_id, entry_id) - found.first_entry_id
            continue
        count = entry_id - found.block.first_entry_id
        messages += sum(found.block.message_counts[:count])
        size_bytes += sum(found.block.lengths[:count])
    return LedgerTotals(messages, size_bytes)


def message_count_of(file: DiskFile, ledger_id: int, place: LedgerLocation, entry_ids: BitMap) -> int:
    """Return the number of messages in the entries `entry_ids` of a ledger. Blocks are read only if some entries are
    batches.
    """
    index, extent = place.index, place.extent
    total = 0
    for point in range(index.point_of(entry_ids.min()), index.point_of(entry_ids.max()) + 1):
        first_id = index.place_of(point)[1]
        is_last = point + 1 >= len(index)
        end_id = extent.entry_count if is_last else index.first_entry_ids[point + 1]
        wanted = entry_ids.range_cardinality(first_id, end_id)
        messages = (extent.message_count if is_last else index.messages_before[point + 1]) - index.totals_of(point)[0]
        if messages == end_id - first_id:
            total += wanted  # each entry contains at least one message
        elif wanted == end_id - first_id:
            total += messages
        elif wanted:
            total += _messages_in_blocks(
                BlockWalk(file, ledger_id, place, point, _COLUMN_READ_BYTES), end_id, entry_ids
            )
    return total


def _messages_in_blocks(walk: BlockWalk, end_id: int, entry_ids: BitMap) -> int:
    total = 0
    while walk.entry_id < end_id and (found := walk.next()) is not None:
        if isinstance(found, Gap):
            total += entry_ids.range_cardinality(found.first_entry_id, found.end_entry_id)
            continue
        counts, first_id = found.block.message_counts, found.block.first_entry_id
        here = entry_ids & BitMap(range(first_id, found.end_entry_id))
        total += sum([counts[entry_id - first_id] for entry_id in here])
    return total


def _damage_of_gap(path: Path, ledger_id: int, gap: Gap) -> DamagedSegment:
    last_id = max(gap.first_entry_id, gap.end_entry_id - 1)
    return DamagedSegment(path, gap.offset, ledger_id, gap.first_entry_id, last_id, gap.reason)


def _entries_to_take(block: Block, skip: int, max_entries: int, max_bytes: int) -> int:
    count = 0
    for total in accumulate(block.lengths[skip : skip + max_entries]):
        count += 1
        if total >= max_bytes:
            break
    return count
