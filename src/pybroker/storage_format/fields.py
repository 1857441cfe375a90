"""What the layouts share: packed columns of numbers, and the error of bytes that do not follow a layout."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from pybroker.errors import StoreError

# `array` packs in the machine's own order; the files are little-endian everywhere.
_IS_LITTLE_ENDIAN = array("H", [1]).tobytes()[0] == 1


class LayoutError(StoreError):
    """Bytes that are damaged, cut, or of a version that this program does not know."""


class UnknownVersion(LayoutError):
    """Written by a newer program: not damage, and not to be touched."""


def pack_u32s(values: Iterable[int]) -> array[int]:
    """A column of 32-bit numbers, packed in C: its cost for an entry is a few nanoseconds."""
    return _little_endian(array("I", values))


def pack_u64s(values: Iterable[int]) -> array[int]:
    """A column of 64-bit numbers."""
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
