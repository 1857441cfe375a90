"""The pure Python version of the functions in `_scanner.c` that copy scanned values into Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pybroker.wire.varint import encode

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pybroker.columns.scanner_layout import Int32s, Int64s

MAX_SIZE = 0x7FFF_FFFF


def gather(
    sources: Sequence[Buffer], source: Int32s, at: Int64s, sizes: Int32s
) -> tuple[bytes | None, int, bytes, bytes]:
    """Copy one value for each row into the buffers of an Arrow bytes array: validity bits (None if all rows are valid),
    null count, offsets, data.

    The value of a row is in the buffer with the number `source`, at offset `at`, and has `sizes` bytes; size -1 is
    null. Raises ValueError for a value outside its buffer, and for more bytes than an Arrow array can hold.
    """
    views = [memoryview(each).cast("B") for each in sources]
    pieces = []
    offsets = np.zeros(len(at) + 1, "<i4")
    total = 0
    for number, (which, start, size) in enumerate(zip(source.tolist(), at.tolist(), sizes.tolist(), strict=True)):
        if size >= 0:
            if not (0 <= which < len(views) and start >= 0 and start + size <= len(views[which])):
                raise ValueError("a location is outside its source")
            pieces.append(views[which][start : start + size])
            total += size
            if total > MAX_SIZE:
                raise ValueError("the values of the column have more bytes than an Arrow array can hold")
        offsets[number + 1] = total
    is_there = sizes >= 0
    null_count = len(at) - int(is_there.sum())
    validity = np.packbits(is_there, bitorder="little").tobytes() if null_count else None
    return validity, null_count, offsets.tobytes(), b"".join(pieces)


def message_ids(
    ledger_id: int, partition: int, entry_ids: Int64s, batch_indexes: Int32s, batch_sizes: Int32s
) -> tuple[bytes, bytes]:
    """Return offsets and data of an Arrow array with the serialised MessageIdData of each message. A partition, batch
    index or batch size below 0 is omitted.
    """
    head = b"\x08" + encode(ledger_id) + b"\x10"
    middle = b"\x18" + encode(partition) if partition >= 0 else b""
    pieces = []
    offsets = np.zeros(len(entry_ids) + 1, "<i4")
    total = 0
    triples = zip(entry_ids.tolist(), batch_indexes.tolist(), batch_sizes.tolist(), strict=True)
    for number, (entry_id, batch_index, batch_size) in enumerate(triples):
        piece = head + encode(entry_id) + middle
        if batch_index >= 0:
            piece += b"\x20" + encode(batch_index)
        if batch_size >= 0:
            piece += b"\x30" + encode(batch_size)
        pieces.append(piece)
        total += len(piece)
        offsets[number + 1] = total
    return offsets.tobytes(), b"".join(pieces)
