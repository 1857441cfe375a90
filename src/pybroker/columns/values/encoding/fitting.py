"""Families of column types, and the error for columns that do not fit a schema."""

from __future__ import annotations

import pyarrow as pa

from pybroker.columns.values.encoding.encoded import cast


class Misfit(ValueError):
    """A column, or a field inside it, does not fit the schema."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(
            f"the column {path!r} does not fit the schema: {reason}"
            if path
            else f"the data frame does not fit the schema: {reason}"
        )
        self.reason = reason
        self.path = path

    def inside(self, name: str) -> Misfit:
        return Misfit(self.reason, f"{name}.{self.path}" if self.path else name)


def plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return a type that holds the values of `arrow_type` without dictionaries, views, fixed sizes, or 64-bit offsets.
    Times of day become time32 in ms or time64 in us; their width stays. `usual` converts arrays to this type.
    """
    if pa.types.is_dictionary(arrow_type):
        return plain_type(arrow_type.value_type)
    if pa.types.is_large_string(arrow_type) or pa.types.is_string_view(arrow_type):
        return pa.string()
    if (
        pa.types.is_large_binary(arrow_type)
        or pa.types.is_binary_view(arrow_type)
        or pa.types.is_fixed_size_binary(arrow_type)
    ):
        return pa.binary()
    if pa.types.is_large_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type):
        return pa.list_(plain_type(arrow_type.value_type))
    if pa.types.is_list(arrow_type):
        return pa.list_(plain_type(arrow_type.value_type))
    if pa.types.is_map(arrow_type):
        return pa.map_(plain_type(arrow_type.key_type), plain_type(arrow_type.item_type))
    if pa.types.is_time(arrow_type):
        return pa.time32("ms") if pa.types.is_time32(arrow_type) else pa.time64("us")
    if pa.types.is_struct(arrow_type):
        return pa.struct([pa.field(each.name, plain_type(each.type)) for each in arrow_type])
    return arrow_type


def usual(array: pa.Array) -> pa.Array:
    wanted = plain_type(array.type)
    return cast(array, wanted)


def family(arrow_type: pa.DataType) -> str:
    types = pa.types
    if types.is_boolean(arrow_type):
        return "boolean"
    if types.is_integer(arrow_type):
        return "whole"
    if types.is_floating(arrow_type):
        return "real"
    if types.is_string(arrow_type):
        return "text"
    if types.is_binary(arrow_type):
        return "bytes"
    if types.is_decimal(arrow_type):
        return "decimal"
    if types.is_date(arrow_type):
        return "date"
    if types.is_timestamp(arrow_type):
        return "timestamp" if arrow_type.tz else "local timestamp"
    if types.is_time(arrow_type):
        return "time in ms" if types.is_time32(arrow_type) else "time in us"
    return ""
