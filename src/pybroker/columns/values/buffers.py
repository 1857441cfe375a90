"""Conversion between numpy and Arrow through buffers. Arrow's own conversions import pandas, which takes 0.3 s."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TYPES = {
    "i1": pa.int8(),
    "i2": pa.int16(),
    "i4": pa.int32(),
    "i8": pa.int64(),
    "f4": pa.float32(),
    "f8": pa.float64(),
}


def array_of(values: Any, missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    validity = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    if values.dtype == np.bool_:
        kind, data = pa.bool_(), np.packbits(values, bitorder="little")
    else:
        kind, data = _TYPES[values.dtype.str[1:]], np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(data)])


def flags_of(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    return np.frombuffer(array.cast(pa.uint8()).buffers()[1], dtype=np.bool_, count=len(array))


def codes_of(array: pa.DictionaryArray) -> npt.NDArray[np.int32]:
    """Return the index into the dictionary for each value of a dictionary-encoded array; -1 for null."""
    indices = array.indices
    codes = np.frombuffer(indices.buffers()[1], dtype=np.int32, count=len(indices), offset=indices.offset * 4)
    return np.where(flags_of(indices.is_valid()), codes, -1) if indices.null_count else codes
