"""Arrow types that differ only in their memory layout."""

from __future__ import annotations

import pyarrow as pa

_USUAL = {pa.large_string(): pa.string(), pa.string_view(): pa.string(), pa.large_binary(): pa.binary()}


def usual_type(kind: pa.DataType) -> pa.DataType:
    """Convert an Arrow type to the equivalent type with 32-bit offsets and nullable fields. List items are named
    `element`, as in Parquet files. Fixed-size lists and dictionaries are returned unchanged.
    """
    if kind in _USUAL:
        return _USUAL[kind]
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, usual_type(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(usual_type(kind.key_type), usual_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", usual_type(kind.value_type)))
    return kind
