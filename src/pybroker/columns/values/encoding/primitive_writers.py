"""Encoding of Arrow arrays as payloads of the primitive schemas. Null gives a null payload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from pybroker.columns.values.avro_columns import INSTANT, LOCAL
from pybroker.columns.values.encoding.encoded import Pieces, cast, fixed_pieces, numbers
from pybroker.columns.values.encoding.fitting import Misfit, family, usual
from pybroker.schema.schema_data import SchemaType

_DAY_MS = 86_400_000
_DAY_US = 86_400_000_000


def _number(code: str) -> Callable[[pa.Array], Pieces]:
    def write(array: pa.Array) -> Pieces:
        return _rows(np.asarray(array).astype(f">{code}"))

    return write


def _rows(values: Any) -> Pieces:
    return fixed_pieces(values, values.dtype.itemsize)


def _boolean(array: pa.Array) -> Pieces:
    return fixed_pieces(np.asarray(array.cast(pa.uint8())), 1)


def _days(unit: int) -> Callable[[pa.Array], Pieces]:
    return lambda array: _rows((numbers(array.view(pa.int32())) * unit).astype(">i8"))


def _millis(array: pa.Array) -> Pieces:
    return _rows((numbers(array.view(pa.int64())) // 1000).astype(">i8"))


def _instant(array: pa.Array) -> Pieces:
    seconds, micros = np.divmod(numbers(array.view(pa.int64())), 1_000_000)
    return _two(seconds, ">i8", micros * 1000, ">i4")


def _local_date_time(array: pa.Array) -> Pieces:
    days, micros = np.divmod(numbers(array.view(pa.int64())), _DAY_US)
    return _two(days, ">i8", micros * 1000, ">i8")


def _two(first: Any, first_code: str, second: Any, second_code: str) -> Pieces:
    rows = np.empty(len(first), dtype=[("first", first_code), ("second", second_code)])
    rows["first"], rows["second"] = first, second
    return _rows(rows)


# For each schema: accepted column families, the type that they are cast to, and the writer.
_WRITERS: dict[SchemaType, tuple[set[str], pa.DataType, Callable[[pa.Array], Pieces]]] = {
    SchemaType.NONE: ({"bytes", "text"}, pa.binary(), lambda array: array),
    SchemaType.STRING: ({"text"}, pa.string(), lambda array: array.cast(pa.binary())),
    SchemaType.BOOLEAN: ({"boolean"}, pa.bool_(), _boolean),
    SchemaType.INT8: ({"whole"}, pa.int8(), _number("i1")),
    SchemaType.INT16: ({"whole"}, pa.int16(), _number("i2")),
    SchemaType.INT32: ({"whole"}, pa.int32(), _number("i4")),
    SchemaType.INT64: ({"whole"}, pa.int64(), _number("i8")),
    SchemaType.FLOAT: ({"whole", "real"}, pa.float32(), _number("f4")),
    SchemaType.DOUBLE: ({"whole", "real"}, pa.float64(), _number("f8")),
    SchemaType.DATE: ({"date"}, pa.date32(), _days(_DAY_MS)),
    SchemaType.TIME: ({"timestamp"}, INSTANT, _millis),
    SchemaType.TIMESTAMP: ({"timestamp"}, INSTANT, _millis),
    SchemaType.INSTANT: ({"timestamp"}, INSTANT, _instant),
    SchemaType.LOCAL_DATE: ({"date"}, pa.date32(), _days(1)),
    SchemaType.LOCAL_TIME: ({"whole"}, pa.int64(), _number("i8")),
    SchemaType.LOCAL_DATE_TIME: ({"local timestamp"}, LOCAL, _local_date_time),
}
_BY_TYPE = {
    pa.bool_(): SchemaType.BOOLEAN,
    pa.int8(): SchemaType.INT8,
    pa.int16(): SchemaType.INT16,
    pa.int32(): SchemaType.INT32,
    pa.int64(): SchemaType.INT64,
    pa.float32(): SchemaType.FLOAT,
    pa.float64(): SchemaType.DOUBLE,
}
_BY_FAMILY = {
    "text": SchemaType.STRING,
    "bytes": SchemaType.NONE,
    "date": SchemaType.DATE,
    "timestamp": SchemaType.INSTANT,  # TIMESTAMP has milliseconds only
    "local timestamp": SchemaType.LOCAL_DATE_TIME,
}


def primitive_type_for(arrow_type: pa.DataType) -> SchemaType | None:
    return _BY_TYPE.get(arrow_type) or _BY_FAMILY.get(family(arrow_type))


class PrimitiveWriter:
    """Writes a column as payloads of one primitive schema, or of BYTES."""

    def __init__(self, schema_type: SchemaType, arrow_type: pa.DataType) -> None:
        families, self._wanted, self._write = _WRITERS[schema_type]
        if family(arrow_type) not in families and not pa.types.is_null(arrow_type):
            raise Misfit(
                f"the column has type {arrow_type}, but the schema has type "
                f"{'BYTES' if not schema_type else schema_type.name}"
            )

    def write(self, array: pa.Array) -> pa.BinaryArray:
        array = cast(usual(array), self._wanted)
        if not array.null_count:
            return self._write(array)
        where = np.nonzero(np.asarray(array.is_valid()))[0]
        index = np.zeros(len(array), dtype=np.int64)
        index[where] = np.arange(len(where))
        return self._write(array.drop_null()).take(pa.array(index, mask=np.asarray(array.is_null())))
