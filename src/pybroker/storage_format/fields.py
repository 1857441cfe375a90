"""Common parts of the layouts: packed columns of numbers, and the error for invalid bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from pybroker.errors import StoreError

# `array` packs in the machine's own order; the files are little-endian everywhere.
_IS_LITTLE_ENDIAN = array("H", [1]).tobytes()[0] == 1


class LayoutError(StoreError):
    """Bytes that are damaged, cut, or of an unknown version."""


class UnknownVersion(LayoutError):
    """Written by a newer program: not damage, and not to be changed."""


def pack_u32s(values: Iterable[int]) -> array[int]:
    """Return a column packed in C, which costs a few nanoseconds for each number."""
    return _little_endian(array("I", values))


def pack_u64s(values: Iterable[int]) -> array[int]:
    return _little_endian(array("Q", values))


def unpack_u32s(data: bytes | memoryview) -> array[int]:
    column = array("I")
    column.frombytes(data)
    return _little_endian(column)


def unpack_u64s(data: bytes | memoryview) -> array[int]:
    column = array("Q")
    column.frombytes(data)
    return _little_endian(column)


def _little_endian(column: array[int]) -> array[int]:
    if not _IS_LITTLE_ENDIAN:
        column.byteswap()
    return column
