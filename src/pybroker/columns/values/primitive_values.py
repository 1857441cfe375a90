"""Payloads of the primitive schemas: big-endian numbers of fixed width, and text.

BOOLEAN, INT8: 1 byte · INT16: 2 · INT32, FLOAT: 4 · INT64, DOUBLE: 8 · STRING: UTF-8
DATE, TIME, TIMESTAMP: milliseconds (8) · INSTANT: seconds (8), nanoseconds (4) · LOCAL_DATE: day (8)
LOCAL_TIME: nanosecond of the day (8) · LOCAL_DATE_TIME: day (8), nanosecond of the day (8)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pybroker.columns.message_columns import VALUE
from pybroker.columns.values.avro_columns import INSTANT, LOCAL
from pybroker.columns.values.avro_readers import as_text, timestamps
from pybroker.columns.values.buffers import array_of, flags_of
from pybroker.columns.values.lanes import Failures, Lanes, lanes_over, placed
from pybroker.columns.values.payload_reader import PayloadReader
from pybroker.schema.schema_data import SchemaType

_DAY_MS = 86_400_000
_DAY_US = 86_400_000_000
_DAY_NS = 86_400_000_000_000

Rows = npt.NDArray[np.uint8]


def _number(code: str) -> Callable[[Lanes, Rows], pa.Array]:
    def read(_: Lanes, rows: Rows) -> pa.Array:
        return array_of(_big_endian(rows, code))

    return read


def _big_endian(rows: Rows, code: str, first: int = 0) -> Any:
    width = int(code[-1])
    taken = np.ascontiguousarray(rows[:, first : first + width]).view(f">{code}").ravel()
    return taken.astype(f"={code}")


def _boolean(_: Lanes, rows: Rows) -> pa.Array:
    return array_of(rows.ravel() != 0)


def _date(lanes: Lanes, rows: Rows) -> pa.Array:
    return _days(lanes, _big_endian(rows, "i8") // _DAY_MS)


def _local_date(lanes: Lanes, rows: Rows) -> pa.Array:
    return _days(lanes, _big_endian(rows, "i8"))


def _days(lanes: Lanes, days: Any) -> pa.Array:
    narrow = days.astype(np.int32)
    _fail(lanes, narrow != days, "a date is further away than 32 bits of days")
    return array_of(narrow).view(pa.date32())


def _fail(lanes: Lanes, wrong: Any, reason: str) -> None:
    if wrong.any():
        lanes.fail(wrong, reason)


def _timestamp(lanes: Lanes, rows: Rows) -> pa.Array:
    return timestamps(lanes, _big_endian(rows, "i8"), 1000).view(INSTANT)


def _instant(lanes: Lanes, rows: Rows) -> pa.Array:
    seconds, nanos = _big_endian(rows, "i8"), _big_endian(rows, "i4", 8)
    _fail(lanes, (nanos < 0) | (nanos >= 1_000_000_000), "an instant has more nanoseconds than a second")
    limit = (2**63 - 1) // 1_000_000 - 1
    wrong = (seconds > limit) | (seconds < -limit)
    _fail(lanes, wrong, "an instant does not fit 64 bits of microseconds")
    seconds[wrong] = 0
    return array_of(seconds * 1_000_000 + nanos // 1000).view(INSTANT)


def _local_time(lanes: Lanes, rows: Rows) -> pa.Array:
    nanos = _big_endian(rows, "i8")
    _fail(lanes, (nanos < 0) | (nanos >= _DAY_NS), "a time of day is longer than a day")
    return array_of(nanos)


def _local_date_time(lanes: Lanes, rows: Rows) -> pa.Array:
    days, nanos = _big_endian(rows, "i8"), _big_endian(rows, "i8", 8)
    _fail(lanes, (nanos < 0) | (nanos >= _DAY_NS), "a time of day is longer than a day")
    limit = (2**63 - 1) // _DAY_US - 1
    wrong = (days > limit) | (days < -limit)
    _fail(lanes, wrong, "a date and time do not fit 64 bits of microseconds")
    days[wrong] = 0
    return array_of(days * _DAY_US + nanos // 1000).view(LOCAL)


# Width in bytes, column type, and conversion.
_FIXED: dict[SchemaType, tuple[int, pa.DataType, Callable[[Lanes, Rows], pa.Array]]] = {
    SchemaType.BOOLEAN: (1, pa.bool_(), _boolean),
    SchemaType.INT8: (1, pa.int8(), _number("i1")),
    SchemaType.INT16: (2, pa.int16(), _number("i2")),
    SchemaType.INT32: (4, pa.int32(), _number("i4")),
    SchemaType.INT64: (8, pa.int64(), _number("i8")),
    SchemaType.FLOAT: (4, pa.float32(), _number("f4")),
    SchemaType.DOUBLE: (8, pa.float64(), _number("f8")),
    SchemaType.DATE: (8, pa.date32(), _date),
    SchemaType.TIME: (8, INSTANT, _timestamp),
    SchemaType.TIMESTAMP: (8, INSTANT, _timestamp),
    SchemaType.INSTANT: (12, INSTANT, _instant),
    SchemaType.LOCAL_DATE: (8, pa.date32(), _local_date),
    SchemaType.LOCAL_TIME: (8, pa.int64(), _local_time),
    SchemaType.LOCAL_DATE_TIME: (16, LOCAL, _local_date_time),
}


class PrimitiveReader(PayloadReader):
    """Reads one column `value`. A payload of the wrong width fails."""

    def __init__(self, schema_type: SchemaType) -> None:
        self._type = schema_type
        arrow_type = pa.string() if schema_type == SchemaType.STRING else _FIXED[schema_type][1]
        self.fields = [pa.field(VALUE, arrow_type)]

    def read(self, values: pa.BinaryArray, versions: pa.BinaryArray, failures: Failures) -> list[pa.Array]:
        if not values.null_count:
            return [self._read(values, np.arange(len(values)), failures)]
        rows = np.nonzero(flags_of(values.is_valid()))[0]
        piece = self._read(values.drop_null(), rows, failures)
        return [placed([(rows, piece)], len(values), self.fields[0].type)]

    def _read(self, values: pa.BinaryArray, rows: Any, failures: Failures) -> pa.Array:
        lanes = lanes_over(values, rows, failures)
        if self._type == SchemaType.STRING:
            return as_text(lanes, values)
        width, _, convert = _FIXED[self._type]
        wrong = lanes.ends - lanes.places != width
        _fail(lanes, wrong, f"the size of this payload is wrong: a value of {self._type.name} has {width} bytes")
        return convert(lanes, lanes.read_fixed(width))
