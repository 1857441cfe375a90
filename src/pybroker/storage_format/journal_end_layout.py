"""Byte layout of `journal.end`, the recorded end of the durable journal.

Two slots of `marker_layout.py`, each in its own sector.

    slot, at offset 0 and at SLOT_BYTES; zeros after it
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

from pybroker.storage_format.marker_layout import MarkerLayout

JOURNAL_END_VERSION = 1
SLOT_BYTES = 512
_HEAD = struct.pack("<8sH6x", b"PYBJREND", JOURNAL_END_VERSION)


class JournalEnd(NamedTuple):
    """A durable end of the journal. The numbers only rise, so an older mark is a valid lower bound."""

    next_sequence: int
    generation: int
    end_offset: int
    commit: int


JOURNAL_END_LAYOUT = MarkerLayout(_HEAD, len(JournalEnd._fields), slot_count=2, slot_bytes=SLOT_BYTES)


def decode_journal_end(data: bytes) -> JournalEnd | None:
    values = JOURNAL_END_LAYOUT.decode(data)
    return None if values is None else JournalEnd(*values)
