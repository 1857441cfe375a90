"""Byte layout of marker files, which contain a few rising numbers: one or more slots, each with a checksum.

    slot number n, at offset n * slot_bytes; zeros after it up to file_bytes
    0      h            h + 8 * values
    | head | u64 values | crc32c
    | h B  | 8 B each   | u32
    head: magic, version and padding of the file
    crc32c: of all bytes before it

Slots are written in turn. With two slots in separate sectors, one is always intact when the process ends. The newest
slot is the one with the highest values.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

MARKER_BYTES = 4096
_CHECKSUM = struct.Struct("<I")


class MarkerLayout:
    """The layout of one kind of marker file."""

    def __init__(self, head: bytes, value_count: int, *, slot_count: int, slot_bytes: int) -> None:
        self._head = head
        self._values = struct.Struct(f"<{value_count}Q")
        self.slot_count = slot_count
        self._slot_bytes = slot_bytes
        self._checked_bytes = len(head) + self._values.size
        assert self._checked_bytes + _CHECKSUM.size <= slot_bytes, "a slot holds all of its fields"
        assert slot_count * slot_bytes <= MARKER_BYTES, "the file holds all slots"

    def slot_offset(self, number: int) -> int:
        return number * self._slot_bytes

    def encode(self, *values: int) -> bytes:
        fields = self._head + self._values.pack(*values)
        return fields + _CHECKSUM.pack(crc32c(fields))

    def decode(self, data: bytes) -> tuple[int, ...] | None:
        found = []
        for number in range(self.slot_count):
            offset = number * self._slot_bytes
            fields = bytes(data[offset : offset + self._checked_bytes])
            checksum = bytes(data[offset + self._checked_bytes : offset + self._checked_bytes + _CHECKSUM.size])
            if fields.startswith(self._head) and checksum == _CHECKSUM.pack(crc32c(fields)):
                found.append(self._values.unpack_from(fields, len(self._head)))
        return max(found, default=None)
