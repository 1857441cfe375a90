"""Vectorised readers of Avro values, one class for each type. `avro_resolution` combines them.

A reader reads the next value of many payloads at once, each at its own read position (lane), and returns an array with
one value for each lane. Values of failed lanes are undefined; their rows become null at the end.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from pybroker.columns.values.avro_shapes import ListShape, Shape, UnionShape
from pybroker.columns.values.buffers import array_of
from pybroker.columns.values.lanes import Lanes, Numbers, placed

_DECIMAL_BYTES = 16


class Reader(ABC):
    """Reads values of one type of the writer's schema as an array of `type`. Immutable."""

    type: pa.DataType

    @abstractmethod
    def read(self, lanes: Lanes) -> pa.Array: ...


class PlainReader(Reader):
    """Reads values by calling one function."""

    def __init__(self, arrow_type: pa.DataType, read: Callable[[Lanes], pa.Array]) -> None:
        self.type = arrow_type
        self._read = read

    def read(self, lanes: Lanes) -> pa.Array:
        return self._read(lanes)


class CastReader(Reader):
    """Widens the values of another reader, such as int to long."""

    def __init__(self, inner: Reader, arrow_type: pa.DataType) -> None:
        self.type = arrow_type
        self._inner = inner

    def read(self, lanes: Lanes) -> pa.Array:
        return self._inner.read(lanes).cast(self.type, safe=False)


class NullReader(Reader):
    """Reads nulls, which take no bytes."""

    def __init__(self, arrow_type: pa.DataType) -> None:
        self.type = arrow_type

    def read(self, lanes: Lanes) -> pa.Array:
        return pa.nulls(len(lanes), self.type)


class FailingReader(Reader):
    """Fails all rows that contain a value of this type, because the reader's schema does not accept it."""

    def __init__(self, arrow_type: pa.DataType, reason: str) -> None:
        self.type = arrow_type
        self.reason = reason

    def read(self, lanes: Lanes) -> pa.Array:
        if len(lanes):
            lanes.fail(np.arange(len(lanes)), self.reason)
        return pa.nulls(len(lanes), self.type)


class RecordReader(Reader):
    """Reads or skips fields in the writer's order."""

    def __init__(self, steps: list[tuple[Shape | Reader, int]], added: list[tuple[int, pa.Array]], fields: Any) -> None:
        """A step reads the next field into the column with that index, or skips the field. `added` are columns that the
        writer's schema lacks, each with one constant value.
        """
        self.type = pa.struct(fields)
        self._steps = steps
        self._added = added
        self._fields = list(fields)

    def read_columns(self, lanes: Lanes) -> list[pa.Array]:
        columns: list[pa.Array] = [None] * len(self._fields)
        for step, target in self._steps:
            if isinstance(step, Reader):
                columns[target] = step.read(lanes)
            else:
                step.skip(lanes)
        for target, value in self._added:
            columns[target] = value.take(array_of(np.zeros(len(lanes), dtype=np.int64)))
        return columns

    def read(self, lanes: Lanes) -> pa.Array:
        columns = self.read_columns(lanes)
        if not columns:
            return pa.array([{}] * len(lanes), type=self.type)
        return pa.StructArray.from_arrays(columns, fields=self._fields)


class UnionReader(Reader):
    """Reads a union; the readers of all branches have the same result type."""

    def __init__(self, shape: UnionShape, branches: list[Reader]) -> None:
        self.type = branches[0].type
        self._shape = shape
        self._branches = branches

    def read(self, lanes: Lanes) -> pa.Array:
        branch = self._shape.read_branch(lanes)
        if not len(branch):
            return pa.nulls(0, self.type)
        first = int(branch[0])
        if first >= 0 and (branch == first).all():
            return self._branches[first].read(lanes)
        pieces: list[tuple[Any, pa.Array]] = []
        for index in np.unique(branch).tolist():
            # Rows without a part become null.
            if index < 0 or isinstance(reader := self._branches[index], NullReader):
                continue
            where = np.nonzero(branch == index)[0]
            part = lanes.at(where)
            pieces.append((where, reader.read(part)))
            lanes.put_back(where, part)
        return placed(pieces, len(lanes), self.type)


class MemberReader(Reader):
    """Reads the value of a union's branch into the struct member for the branch; the other members are null."""

    def __init__(self, inner: Reader, struct: pa.StructType, member: int) -> None:
        self.type = struct
        self._inner = inner
        self._member = member

    def read(self, lanes: Lanes) -> pa.Array:
        value = self._inner.read(lanes)
        members = [
            value if index == self._member else pa.nulls(len(lanes), self.type.field(index).type)
            for index in range(self.type.num_fields)
        ]
        return pa.StructArray.from_arrays(members, fields=list(self.type))


class ListReader(Reader):
    """Reads an array, or a map if `keys` is set. The items of all lanes are read as lanes."""

    def __init__(self, shape: ListShape, item: Reader, keys: Reader | None = None) -> None:
        self.type = pa.list_(item.type) if keys is None else pa.map_(keys.type, item.type)
        self._shape = shape
        self._item = item
        self._keys = keys

    def read(self, lanes: Lanes) -> pa.Array:
        items = self._shape.find_items(lanes)
        offsets = np.zeros(len(lanes) + 1, dtype=np.int32)
        np.cumsum(items.counts, out=offsets[1:])
        inner = Lanes(lanes.data, items.starts.copy(), items.ends, lanes.rows[items.lanes], lanes.failures)
        if self._keys is None:
            return pa.ListArray.from_arrays(array_of(offsets), self._item.read(inner), type=self.type)
        keys = self._keys.read(inner)
        return pa.MapArray.from_arrays(array_of(offsets), keys, self._item.read(inner), type=self.type)


def read_null(lanes: Lanes) -> pa.Array:
    return pa.nulls(len(lanes))


def read_boolean(lanes: Lanes) -> pa.Array:
    bits = lanes.read_fixed(1).ravel()
    wrong = bits > 1
    if wrong.any():
        lanes.fail(wrong, "a boolean is neither 0 nor 1")
    return array_of(bits == 1)


def read_int(lanes: Lanes) -> pa.Array:
    return array_of(lanes.read_int())


def read_long(lanes: Lanes) -> pa.Array:
    return array_of(lanes.read_long())


def read_float(lanes: Lanes) -> pa.Array:
    return array_of(lanes.read_fixed(4).view("<f4").ravel())


def read_double(lanes: Lanes) -> pa.Array:
    return array_of(lanes.read_fixed(8).view("<f8").ravel())


def read_bytes(lanes: Lanes) -> pa.Array:
    return lanes.read_slices(lanes.read_length())


def read_string(lanes: Lanes) -> pa.Array:
    return as_text(lanes, read_bytes(lanes))


def as_text(lanes: Lanes, values: pa.BinaryArray) -> pa.StringArray:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = values.to_pylist()
    for lane, text in enumerate(texts):
        try:
            text.decode()
        except UnicodeDecodeError:
            lanes.fail(np.array([lane]), "a text is not UTF-8")
            texts[lane] = b""
    return pa.array(texts, type=pa.binary()).cast(pa.string())


def fixed_reader(width: int) -> Callable[[Lanes], pa.Array]:
    def read(lanes: Lanes) -> pa.Array:
        return lanes.read_slices(_fixed_lengths(lanes, width))

    return read


def _fixed_lengths(lanes: Lanes, width: int) -> Numbers:
    short = lanes.ends - lanes.places < width
    if short.any():
        lanes.fail(short, "the payload ends within a value, so it is damaged or has another schema")
    return np.where(short, 0, width)


def read_uuid(lanes: Lanes) -> pa.Array:
    taken = lanes.read_fixed(16)
    return pa.array([str(uuid.UUID(bytes=row.tobytes())) for row in taken], type=pa.string())


def enum_reader(symbols: list[str], readable: list[str | None]) -> Callable[[Lanes], pa.Array]:
    """Return a reader of enum values. `readable` contains the reader's symbol for each of the writer's `symbols`, or
    None: rows with this symbol are then reported as failures.
    """
    names = pa.array([name or "" for name in readable], type=pa.string())
    unreadable = np.array([name is None for name in readable], dtype=np.bool_)

    def read(lanes: Lanes) -> pa.Array:
        index = lanes.read_long()
        wrong = (index < 0) | (index >= len(symbols))
        if wrong.any():
            lanes.fail(wrong, "its symbol index is not in the enum")
            index[wrong] = 0
        if not symbols:
            return pa.nulls(len(lanes), pa.string())
        unknown = unreadable[index] & ~wrong
        for number in np.unique(index[unknown]).tolist():
            reason = f"the reader's enum has no symbol {symbols[number][:80]!r} and no default"
            lanes.fail(unknown & (index == number), reason)
        return names.take(array_of(index))

    return read


def date_reader(lanes: Lanes) -> pa.Array:
    return read_int(lanes).view(pa.date32())


def timestamp_reader(arrow_type: pa.DataType, unit_us: int) -> Callable[[Lanes], pa.Array]:
    def read(lanes: Lanes) -> pa.Array:
        return timestamps(lanes, lanes.read_long(), unit_us).view(arrow_type)

    return read


def timestamps(lanes: Lanes, numbers: Numbers, unit_us: int) -> pa.Array:
    """Convert `numbers`, the timestamps at the read positions `lanes`, from units of `unit_us` microseconds to
    microseconds (int64). A timestamp outside the range of int64 becomes 0, and its row is reported as a failure.
    """
    if unit_us != 1:
        limit = (2**63 - 1) // unit_us
        wrong = (numbers > limit) | (numbers < -limit)
        if wrong.any():
            lanes.fail(wrong, "a timestamp does not fit 64 bits of microseconds")
            numbers[wrong] = 0
        numbers = numbers * unit_us
    return array_of(numbers)


def decimal_reader(precision: int, scale: int, width: int | None) -> Callable[[Lanes], pa.Array]:
    """Return a reader of decimals in big-endian two's complement. They have `width` bytes, or a length prefix if
    `width` is None.
    """
    arrow_type = pa.decimal128(precision, scale)
    largest = 10**precision

    def read(lanes: Lanes) -> pa.Array:
        lengths = lanes.read_length() if width is None else _fixed_lengths(lanes, width)
        long = lengths > _DECIMAL_BYTES
        if long.any():
            lanes.fail(long, f"a decimal has more than {_DECIMAL_BYTES} bytes")
            lengths[long] = 0
        starts, lanes.places = lanes.places, lanes.places + lengths
        # One row per lane, lowest byte first as in Arrow, extended by the sign.
        back = np.arange(_DECIMAL_BYTES, dtype=np.int64)
        rows = lanes.data.take((starts + lengths - 1)[:, None] - back, mode="clip")
        sign = np.where((lengths > 0) & (lanes.data.take(starts, mode="clip") >= 0x80), 0xFF, 0).astype(np.uint8)
        rows = np.where(back < lengths[:, None], rows, sign[:, None])
        array = pa.Array.from_buffers(arrow_type, len(lanes), [None, pa.py_buffer(np.ascontiguousarray(rows))])
        return _checked_precision(lanes, array, rows, largest, arrow_type)

    return read


def _checked_precision(lanes: Lanes, array: pa.Array, rows: Any, largest: int, arrow_type: pa.DataType) -> pa.Array:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        values = [int.from_bytes(row.tobytes(), "little", signed=True) for row in rows]
        wrong = np.array([abs(value) >= largest for value in values])
        lanes.fail(wrong, f"a decimal has more digits than {arrow_type} holds")
        rows[wrong] = 0
        return pa.Array.from_buffers(arrow_type, len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])
    return array


def constant(value: Any, arrow_type: pa.DataType) -> pa.Array:
    return pa.array([value], type=arrow_type)
