"""Common parts of the layouts: packed columns of numbers, and the error for invalid bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from pybroker.errors import StoreError

# `array` uses the machine's byte order; the files are little-endian.
_IS_LITTLE_ENDIAN = array("H", [1]).tobytes()[0] == 1


class LayoutError(StoreError):
    """Bytes that are damaged, truncated, or of an unknown version."""


class UnknownVersion(LayoutError):
    """A newer version of pybroker wrote the bytes. They are not damaged and must not be changed."""


def pack_u32s(values: Iterable[int]) -> array[int]:
    column = array("I", values)
    return column if _IS_LITTLE_ENDIAN else _little_endian(column)


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
