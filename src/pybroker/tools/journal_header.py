"""Recovery of the damaged header of a journal file from its batches. Pure.

The generation is in the file name and in each batch. The salt, which is the start value of all checksums, is only in
the header. A CRC is linear in its start value, so one undamaged batch determines the salt, and a second batch confirms
it. The header's own checksum identifies a single flipped bit.
"""

from __future__ import annotations

from pybroker.storage_format.fields import LayoutError
from pybroker.storage_format.journal_layout import (
    BATCH_ALIGNMENT,
    FILE_HEADER_USED_BYTES,
    FileHeader,
    batch_crc_from,
    batch_prefix,
    decode_batch_header,
    decode_file_header,
    encode_file_header,
)

_BITS = 32
_MOST_TRIED = 64


def with_new_header(data: bytes, generation: int) -> bytes | None:
    for bit in range(8 * FILE_HEADER_USED_BYTES):
        flipped = bytearray(data[:FILE_HEADER_USED_BYTES])
        if len(flipped) == FILE_HEADER_USED_BYTES:
            flipped[bit // 8] ^= 1 << bit % 8
            if _is_header_of(bytes(flipped), generation):
                return bytes(flipped) + data[FILE_HEADER_USED_BYTES:]
    prefix = batch_prefix(FileHeader(generation, 0))
    view = memoryview(data)
    offsets: list[int] = []
    offset = data.find(prefix)
    while offset >= 0 and len(offsets) < _MOST_TRIED:
        if offset % BATCH_ALIGNMENT == 0:
            offsets.append(offset)
        offset = data.find(prefix, offset + 1)
    for each in offsets:
        salt = _salt_of(view, each)
        if salt is None:
            continue
        header = FileHeader(generation, salt)
        if any(decode_batch_header(view, other, header) is not None for other in offsets if other != each):
            encoded = encode_file_header(header)
            return encoded + data[len(encoded) :]
    return None


def _is_header_of(data: bytes, generation: int) -> bool:
    try:
        return decode_file_header(data).generation == generation
    except LayoutError:
        return False


def _salt_of(data: memoryview, offset: int) -> int | None:
    stored = batch_crc_from(data, offset)
    if stored is None:
        return None
    checksum, crc = stored
    base = crc(0)
    # Gaussian elimination over GF(2): find the bits of the salt that produce the difference of the checksums.
    rows: list[tuple[int, int]] = []
    for bit in range(_BITS):
        value, source = crc(1 << bit) ^ base, 1 << bit
        for row_value, row_source in rows:
            if value ^ row_value < value:
                value, source = value ^ row_value, source ^ row_source
        if value:
            rows.append((value, source))
            rows.sort(reverse=True)
    wanted, salt = checksum ^ base, 0
    for row_value, row_source in rows:
        if wanted ^ row_value < wanted:
            wanted, salt = wanted ^ row_value, salt ^ row_source
    return None if wanted else salt
