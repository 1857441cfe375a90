"""The bytes after the committed end of a segment file, left by a crash between a write and its commit.

Invariants: a whole entry in the file is truncated only in order to be written again with the same bytes. A file with
any other entry stays unchanged, because truncation would lose that entry. The search ends at the first incomplete
entry, because only an interrupted write leaves one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from crc32c import crc32c

from pybroker.disk.disk import DiskFile
from pybroker.errors import StoreError
from pybroker.storage_format.fields import LayoutError
from pybroker.storage_format.segment_layout import SEGMENT_HEADER_BYTES, Block, LedgerExtent, decode_block

_READ_BYTES = 1 << 20


class HeldEntry(NamedTuple):
    """A whole entry after the committed extent."""

    ledger_id: int
    entry_id: int
    offset: int
    payload: bytes


class UnknownEntries(StoreError):
    """A segment file contains entries that neither its committed extent nor the journal contains."""

    def __init__(self, ledger_id: int, held: HeldEntry) -> None:
        super().__init__(
            f"{ledger_id:020d}.ledger is damaged at offset {held.offset}: {unknown_entry(held)}. The broker does "
            "not delete the file: checkpoint.db or journal files are lost or older than the file. Restore them from the same backup"
        )


class Leftovers(Enum):
    """How a writer treats unexpected entries after the committed extent."""

    REFUSE = "refuse"
    CUT = "cut"  # truncate and log: a power failure may have removed them from a journal without sync
    CHECKED = "checked"  # a later part of the journal contains them


def held_entries(file: DiskFile, extent: LedgerExtent) -> Iterator[HeldEntry]:
    size = file.size()
    offset = extent.end_offset or SEGMENT_HEADER_BYTES
    while offset < size and (block := _block_at(file, offset)) is not None:
        offset += block.payload_offset
        payloads, start = file.read_at(block.payload_bytes, offset), 0
        for number, length in enumerate(block.lengths):
            payload = payloads[start : start + length]
            start += length
            if len(payload) != length or crc32c(payload) != block.checksums[number]:
                return
            yield HeldEntry(block.ledger_id, block.first_entry_id + number, offset, payload)
            offset += length


def check_leftovers(
    file: DiskFile, ledger_id: int, extent: LedgerExtent, payloads: Sequence[bytes | memoryview] = ()
) -> None:
    """Raise UnknownEntries if the segment file contains an entry after its committed `extent` that is not among
    `payloads`, the entries that are to be written there.
    """
    for held in held_entries(file, extent):
        index = held.entry_id - extent.entry_count
        if held.ledger_id != ledger_id or not 0 <= index < len(payloads) or payloads[index] != held.payload:
            raise UnknownEntries(ledger_id, held)


def unknown_entry(held: HeldEntry) -> str:
    return f"entry {held.ledger_id}:{held.entry_id} exists, but is neither in checkpoint.db nor in the journal"


def _block_at(file: DiskFile, offset: int) -> Block | None:
    found: Block | int = _READ_BYTES
    try:
        for _ in range(3):  # the first length may cover the header only, the second the columns too
            if isinstance(found, Block):
                break
            found = decode_block(memoryview(file.read_at(max(_READ_BYTES, found), offset)), 0)
    except LayoutError:
        return None
    return found if isinstance(found, Block) else None
