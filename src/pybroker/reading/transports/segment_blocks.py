"""Conversion of segment file blocks in a buffer to runs of entries, with verification of each block.

`storage_format.segment_layout` describes the layout. Invariant: a run contains an entry only if the checksums of its
block header and of its own bytes are correct, and entry ids are consecutive. Everything else raises an error with the
affected entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from pybroker.columns.entry_run import EntryRun
from pybroker.storage_format.fields import LayoutError
from pybroker.storage_format.segment_layout import BLOCK_HEADER_BYTES, block_length_said, decode_block

if TYPE_CHECKING:
    import numpy.typing as npt

    from pybroker.storage_format.segment_layout import Block


WRONG_CHECKSUM = "wrong checksum of the payload"


class DamagedBlocks(Exception):
    """Blocks are damaged: the entries from `first_entry_id` to `last_entry_id` (inclusive) cannot be read here."""

    def __init__(self, first_entry_id: int, last_entry_id: int, reason: str) -> None:
        super().__init__(reason)
        self.first_entry_id = first_entry_id
        self.last_entry_id = last_entry_id


@dataclass(slots=True)
class _Found:
    starts: list[npt.NDArray[np.int64]]
    lengths: list[npt.NDArray[np.int64]]
    first_entry_id: int
    offset: int


class BlockReader:
    """Reads the entries from `next_entry_id` to `end_entry_id` (exclusive) of one ledger from its blocks, buffer by
    buffer.

    A block that is incomplete at the end of a buffer is not read; the caller passes it again with the next buffer.
    """

    def __init__(self, ledger_id: int, first_entry_id: int, end_entry_id: int) -> None:
        self.ledger_id = ledger_id
        self.next_entry_id = first_entry_id
        self.end_entry_id = end_entry_id

    @property
    def is_done(self) -> bool:
        return self.next_entry_id >= self.end_entry_id

    def read(self, data: memoryview, offset: int = 0) -> tuple[EntryRun | None, int]:
        """Return the entries of the complete blocks from `offset` on (None without entries), and the offset of the
        first incomplete block. Entries in front of damage are returned first; the next call raises DamagedBlocks.
        """
        found = _Found([], [], self.next_entry_id, offset)
        try:
            while not self.is_done and self._read_block(data, found):
                pass
        except DamagedBlocks:
            if not found.starts:
                raise
        if not found.starts:
            return None, found.offset
        run = EntryRun(
            self.ledger_id,
            found.first_entry_id,
            data,
            np.concatenate(found.starts),
            np.concatenate(found.lengths),
        )
        return run, found.offset

    def _read_block(self, data: memoryview, found: _Found) -> bool:
        offset = found.offset
        if offset + BLOCK_HEADER_BYTES > len(data):
            return False
        try:
            block = decode_block(data, offset)
        except LayoutError as error:
            raise self._damage(str(error)) from error
        if isinstance(block, int):
            return False
        if block.ledger_id != self.ledger_id or block.first_entry_id > self.next_entry_id:
            raise self._damage(
                f"the block at this offset begins with entry {block.ledger_id}:{block.first_entry_id}, but entry "
                f"{self.ledger_id}:{self.next_entry_id} is expected"
            )
        if block.end_offset > len(data):
            return False
        skip = self.next_entry_id - block.first_entry_id
        take = min(self.end_entry_id - self.next_entry_id, len(block.lengths) - skip)
        if take > 0:
            self._take(data, block, skip, take, found)
        found.offset = block.end_offset  # not before damage: the next call reads the block again and raises
        return True

    def _take(self, data: memoryview, block: Block, skip: int, take: int, found: _Found) -> None:
        if len(block.lengths) == 1:  # a single large entry, such as a batch: arrays would cost as much as its checksum
            if crc32c(data[block.payload_offset : block.end_offset]) != block.checksums[0]:
                raise DamagedBlocks(self.next_entry_id, self.next_entry_id, WRONG_CHECKSUM)
            found.starts.append(np.array((block.payload_offset,), np.int64))
            found.lengths.append(np.array((block.payload_bytes,), np.int64))
            self.next_entry_id += 1
            return
        lengths = np.frombuffer(block.lengths, dtype=np.uint32).astype(np.int64)
        ends = block.payload_offset + np.cumsum(lengths)
        starts = (ends - lengths)[skip : skip + take]
        stops = ends[skip : skip + take]
        slices = map(slice, starts.tolist(), stops.tolist())
        sums = list(map(crc32c, map(memoryview.__getitem__, repeat(data), slices)))
        right = block.checksums[skip : skip + take].tolist()
        wrong = None
        if sums != right:
            wrong = next(index for index in range(take) if sums[index] != right[index])
            take = wrong
        if take:
            found.starts.append(starts[:take])
            found.lengths.append(lengths[skip : skip + take])
            self.next_entry_id += take
        if wrong is not None:
            raise DamagedBlocks(self.next_entry_id, self.next_entry_id, WRONG_CHECKSUM)

    def _damage(self, reason: str) -> DamagedBlocks:
        return DamagedBlocks(self.next_entry_id, self.end_entry_id - 1, reason)


def bytes_needed(data: memoryview, offset: int) -> int:
    return max(BLOCK_HEADER_BYTES, block_length_said(data, offset)[1])
