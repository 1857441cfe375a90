"""Vectorised building of payloads: numbers as bytes, and joining of parts row by row.

A writer returns one part for each value. There is no Python code for each row.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MAX_BATCH_BYTES = 2**31 - 1
"""Maximum total payload bytes of a batch: the limit of a binary array."""

Pieces: TypeAlias = "pa.BinaryArray"


class CannotEncode(ValueError):
    """A value that the schema cannot represent, with its column and its row in the array."""

    def __init__(self, row: int, reason: str, path: str = "") -> None:
        super().__init__(f"row {row}, column {path!r}: {reason}" if path else f"row {row}: {reason}")
        self.row = row
        self.reason = reason
        self.path = path

    def at(self, row: Any) -> CannotEncode:
        return CannotEncode(int(row), self.reason, self.path)

    def inside(self, name: str) -> CannotEncode:
        return CannotEncode(self.row, self.reason, f"{name}.{self.path}" if self.path else name)


def pieces_of(data: Any, offsets: npt.NDArray[np.int64]) -> Pieces:
    if len(offsets) and offsets[-1] > MAX_BATCH_BYTES:
        raise ValueError(
            f"the payloads of one batch have {offsets[-1]} bytes, but the maximum is {MAX_BATCH_BYTES}: write "
            "smaller batches"
        )
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def fixed_pieces(rows: npt.NDArray[Any], width: int) -> Pieces:
    data = np.ascontiguousarray(rows)
    return pieces_of(data, np.arange(len(rows) + 1, dtype=np.int64) * width)


def masked_pieces(table: npt.NDArray[np.uint8], wanted: npt.NDArray[np.bool_]) -> Pieces:
    offsets = np.zeros(len(table) + 1, dtype=np.int64)
    np.cumsum(wanted.sum(axis=1), out=offsets[1:])
    return pieces_of(table[wanted], offsets)


def varints(values: npt.NDArray[np.int64]) -> Pieces:
    """Encode numbers as Avro `long`: zigzag, seven bits per byte, lowest first."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    largest = int(zigzag.max(initial=0))
    if largest < 0x80:
        return fixed_pieces(zigzag.astype(np.uint8), 1)
    width = -(-largest.bit_length() // 7)
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    shifted = zigzag[:, None] >> shifts
    table = (shifted & np.uint64(0x7F)).astype(np.uint8)
    wanted = shifted != 0
    wanted[:, 0] = True
    table[:, :-1] |= wanted[:, 1:].astype(np.uint8) << 7
    return masked_pieces(table, wanted)


def joined(*pieces: Any) -> Pieces:
    """Concatenate the parts of each row. A bytes argument is used in every row. A row with a null part is null."""
    return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, b"")


def joined_texts(*texts: Any) -> pa.StringArray:
    return pc.binary_join_element_wise(*texts, "")


def with_length(values: pa.Array) -> Pieces:
    lengths = numbers(pc.binary_length(values))
    return pc.binary_join_element_wise(varints(lengths), values, b"")


def numbers(array: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(array).astype(np.int64)


def big_endian_decimals(array: pa.Array) -> npt.NDArray[np.uint8]:
    data = np.frombuffer(array.buffers()[1], dtype=np.uint8)[array.offset * 16 : (array.offset + len(array)) * 16]
    return data.reshape(-1, 16)[:, ::-1]


def shortest_decimals(array: pa.Array) -> Pieces:
    """Encode decimals as big-endian two's complement without redundant sign bytes."""
    table = np.ascontiguousarray(big_endian_decimals(array))
    sign = (table[:, 0] >> 7).astype(np.bool_)
    fill = np.where(sign, 0xFF, 0).astype(np.uint8)
    wanted = np.ones(table.shape, dtype=np.bool_)
    is_lead = np.ones(len(table), dtype=np.bool_)
    for column in range(15):
        # A byte is redundant if the next one also shows the sign.
        is_lead &= (table[:, column] == fill) & ((table[:, column + 1] >> 7).astype(np.bool_) == sign)
        wanted[:, column] = ~is_lead
    return masked_pieces(table, wanted)


def first_true(mask: Any) -> int:
    return int(np.argmax(np.asarray(mask)))


def cast(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Convert `array` to `arrow_type`. Raises CannotEncode for the first value that does not fit."""
    if array.type == arrow_type:
        return array
    try:
        return array.cast(arrow_type)
    except pa.ArrowInvalid:
        first, end = 0, len(array)
    while end - first > 1:
        middle = (first + end) // 2
        try:
            array.slice(first, middle - first).cast(arrow_type)
            first = middle
        except pa.ArrowInvalid:
            end = middle
    raise CannotEncode(first, f"the value {shown(array[first])} does not fit into type {arrow_type}")


def shown(scalar: Any) -> str:
    return str(scalar.as_py())[:40]
