"""Byte layout of `journal.end`: up to where the journal was durable.

Two slots, written in turn, each in a sector of its own, so that one of them is whole whenever the process ends.

    slot, at offset 0 and at SLOT_BYTES; zeros behind it
    0          8         10     16              24           32           40       48
    | PYBJREND | version | zero | next sequence | generation | end offset | commit | crc32c
    | 8 bytes  | u16     | 6 B  | u64           | u64        | u64        | u64    | u32
    next sequence: batches below it were durable; the last of them ends at `end offset` of the file `generation`, 0 if not known
    commit: this transaction of checkpoint.db was durable
    crc32c: of the 48 bytes before it
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

JOURNAL_END_VERSION = 1
SLOT_BYTES = 512
JOURNAL_END_BYTES = 4096
_SLOTS = 2
_MAGIC = b"PYBJREND"
_SLOT = struct.Struct("<8sH6xQQQQ")
_CHECKSUM = struct.Struct("<I")


class JournalEnd(NamedTuple):
    """What is known to have been durable. Rises with time, so an older one is as true."""

    next_sequence: int
    generation: int
    end_offset: int
    commit: int


def slot_offset(number: int) -> int:
    """Where the slot written `number`th goes."""
    return number % _SLOTS * SLOT_BYTES


def encode_slot(end: JournalEnd) -> bytes:
    fields = _SLOT.pack(_MAGIC, JOURNAL_END_VERSION, *end)
    return fields + _CHECKSUM.pack(crc32c(fields))


def decode_journal_end(data: bytes) -> JournalEnd | None:
    """The newest slot that holds; None when neither does: then nothing is known."""
    found = []
    for offset in range(0, _SLOTS * SLOT_BYTES, SLOT_BYTES):
        slot = data[offset : offset + _SLOT.size + _CHECKSUM.size]
        if len(slot) < _SLOT.size + _CHECKSUM.size:
            continue
        magic, version, *values = _SLOT.unpack_from(slot)
        (checksum,) = _CHECKSUM.unpack_from(slot, _SLOT.size)
        if magic == _MAGIC and version == JOURNAL_END_VERSION and checksum == crc32c(slot[: _SLOT.size]):
            found.append(JournalEnd(*values))
    return max(found, default=None)
