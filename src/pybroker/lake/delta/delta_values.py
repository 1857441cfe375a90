"""Delta's representation of values: partition columns, file statistics, and types."""

from __future__ import annotations

import base64
import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pybroker.lake.partitioning import Partitioning
from pybroker.lake.table_format import WrittenFile

_COLUMNS = {
    "__publishHour": Partitioning("__publishTime", "hour"),
    "__publishDay": Partitioning("__publishTime", "day"),
    "__eventHour": Partitioning("__eventTime", "hour"),
    "__eventDay": Partitioning("__eventTime", "day"),
}
MAX_BOUND_LENGTH = 64
"""Limit of texts in statistics. Longer ones are omitted, because a truncated upper bound is not a bound."""
_SMALLER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.null(): pa.string(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def partition_column(partitioning: Partitioning) -> pa.Field:
    """Return the column by which a table is partitioned: a timestamp for hours, a date for days."""
    name = next(name for name, value in _COLUMNS.items() if value == partitioning)
    return pa.field(name, pa.timestamp("us", tz="UTC") if partitioning.unit == "hour" else pa.date32())


def partition_of(columns: list[str]) -> Partitioning | None:
    return _COLUMNS.get(columns[0]) if len(columns) == 1 else None


def partition_text(partitioning: Partitioning, value: int | None) -> str | None:
    if value is None:
        return None
    start = partitioning.start_of(value)
    return start.strftime("%Y-%m-%d %H:%M:%S" if partitioning.unit == "hour" else "%Y-%m-%d")


def storable(schema: pa.Schema) -> pa.Schema:
    """Return the columns with the types that Delta supports. All are nullable."""
    return pa.schema([pa.field(field.name, _storable_type(field.type)) for field in schema])


def _storable_type(kind: pa.DataType) -> pa.DataType:
    if kind in _SMALLER:
        return _SMALLER[kind]
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return pa.int64()  # Delta has no time of day: microseconds
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_dictionary(kind):
        return _storable_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct(
            [pa.field(kind.field(i).name, _storable_type(kind.field(i).type)) for i in range(kind.num_fields)]
        )
    if pa.types.is_map(kind):
        return pa.map_(_storable_type(kind.key_type), _storable_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _storable_type(kind.value_type)))
    return kind


def statistics(file: WrittenFile, schema: pa.Schema) -> dict[str, Any]:
    """Return the statistics of a data file in Delta's form: the number of rows, and minimum, maximum and number of
    nulls of each column that is neither nested nor binary.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    plain = {
        field.name for field in schema if not pa.types.is_nested(field.type) and not pa.types.is_binary(field.type)
    }
    footer: pq.FileMetaData = file.footer
    unbounded: set[str] = set()
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            name = column.path_in_schema
            if name not in plain:
                continue
            found = column.statistics
            if found is None or not found.has_null_count:
                unbounded.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if not found.has_min_max:
                if found.null_count != column.num_values and found.num_values:
                    unbounded.add(name)
                continue
            least[name] = found.min if name not in least else min(least[name], found.min)
            most[name] = found.max if name not in most else max(most[name], found.max)
    for name in [name for name in least if name in unbounded or not (_is_short(least[name]) and _is_short(most[name]))]:
        del least[name], most[name]
    return {
        "numRecords": file.row_count,
        "minValues": {name: _json_value(value) for name, value in least.items()},
        "maxValues": {name: _json_value(value) for name, value in most.items()},
        "nullCount": {name: count for name, count in nulls.items() if name not in unbounded},
    }


def _is_short(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) or len(value) <= MAX_BOUND_LENGTH


def _json_value(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        text = value.astimezone(dt.UTC) if value.tzinfo else value
        return text.strftime("%Y-%m-%dT%H:%M:%S.%f") + ("Z" if value.tzinfo else "")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value
