"""Columns that the user declares for a query: validation, and conversion to exactly the declared types.

A declaration lists any columns of a topic, in any order. Types must equal the types of the topic's columns, except for
nullability, the names inside lists and maps, and the time zone in which a timestamp is shown.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa


class WrongColumns(ValueError):
    """Declared columns do not match the columns of the topic."""


def check_declared(declared: pa.Schema, available: Iterable[pa.Field]) -> None:
    known = {field.name: field for field in available}
    seen: set[str] = set()
    for field in declared:
        if field.name in seen:
            raise WrongColumns(f"the column {field.name!r} is declared twice")
        seen.add(field.name)
        own = known.get(field.name)
        if own is None:
            raise WrongColumns(f"column {field.name!r} does not exist. Available columns: {', '.join(known)}")
        if not same_values(own.type, field.type):
            raise WrongColumns(
                f"the column {field.name!r} is declared as {field.type}, but in the topic's schema it has type {own.type}"
            )


def same_values(left: pa.DataType, right: pa.DataType) -> bool:
    """Return whether arrays of both types store the same values in the same memory layout."""
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        return left.num_fields == right.num_fields and all(
            one.name == other.name and same_values(one.type, other.type) for one, other in zip(left, right, strict=True)
        )
    if pa.types.is_list(left) and pa.types.is_list(right):
        return same_values(left.value_type, right.value_type)
    if pa.types.is_map(left) and pa.types.is_map(right):
        return same_values(left.key_type, right.key_type) and same_values(left.item_type, right.item_type)
    if pa.types.is_timestamp(left) and pa.types.is_timestamp(right):
        return bool(left.unit == right.unit and (left.tz is None) == (right.tz is None))
    return bool(left == right)


def as_declared(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Return `array` with the type `arrow_type`, without a copy. `same_values` must be true for the two types."""
    if array.type.equals(arrow_type) and array.type == arrow_type and not arrow_type.num_fields:
        return array
    if pa.types.is_struct(arrow_type):
        if not arrow_type.num_fields:
            return array
        children = [as_declared(array.field(index), field.type) for index, field in enumerate(arrow_type)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(arrow_type), mask=mask)
    if pa.types.is_list(arrow_type):
        return _nested(array, arrow_type, as_declared(array.values, arrow_type.value_type))
    if pa.types.is_map(arrow_type):
        entries = [as_declared(array.keys, arrow_type.key_type), as_declared(array.items, arrow_type.item_type)]
        fields = [arrow_type.key_field, arrow_type.item_field]
        return _nested(array, arrow_type, pa.StructArray.from_arrays(entries, fields=fields))
    return array.view(arrow_type)


def _nested(array: pa.Array, arrow_type: pa.DataType, child: pa.Array) -> pa.Array:
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(arrow_type, len(array), buffers, array.null_count, array.offset, [child])
