"""Creation of a record definition from a data frame, for a topic without a schema."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from pybroker.columns.values.avro_columns import MAX_DECIMAL_PRECISION, MAX_DEPTH
from pybroker.columns.values.encoding.fitting import Misfit, family, plain_type

RECORD_NAME = "Row"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LEAVES: dict[str, Any] = {
    "boolean": "boolean",
    "text": "string",
    "bytes": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "local timestamp": {"type": "long", "logicalType": "local-timestamp-micros"},
    "time in ms": {"type": "int", "logicalType": "time-millis"},
    "time in us": {"type": "long", "logicalType": "time-micros"},
}


def definition_for(fields: list[pa.Field], name: str = RECORD_NAME) -> bytes:
    return json.dumps(_record(fields, name, 0), separators=(",", ":")).encode()


def _record(fields: list[pa.Field], name: str, depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise Misfit(f"the column is nested deeper than {MAX_DEPTH} levels")
    return {"type": "record", "name": name, "fields": [_field(each, f"{name}_{each.name}", depth) for each in fields]}


def _field(field: pa.Field, inner_name: str, depth: int) -> dict[str, Any]:
    try:
        if not _NAME.fullmatch(field.name):
            raise Misfit(
                "Avro does not allow this name (allowed are letters, digits and _): rename the column with alias()"
            )
        shown: dict[str, Any] = {"name": field.name, "type": _type(field, inner_name, depth)}
    except Misfit as error:
        raise error.inside(field.name) from None
    if field.nullable:
        shown["default"] = None
    return shown


def _type(field: pa.Field, name: str, depth: int) -> Any:
    kind = _never_null(plain_type(field.type), field.type, name, depth)
    return ["null", kind] if field.nullable and kind != "null" else kind


def _never_null(arrow_type: pa.DataType, given: pa.DataType, name: str, depth: int) -> Any:
    if pa.types.is_null(arrow_type):
        return ["null", "string"]
    if pa.types.is_struct(arrow_type):
        return _record(list(given), name, depth + 1)
    if pa.types.is_list(arrow_type):
        return {"type": "array", "items": _type(given.value_field, name, depth + 1)}
    if pa.types.is_map(arrow_type):
        if family(plain_type(given.key_type)) != "text":
            raise Misfit("the column is a map with keys that are not strings")
        return {"type": "map", "values": _type(given.item_field, name, depth + 1)}
    kind = family(arrow_type)
    if kind == "whole":
        if arrow_type == pa.uint64():
            raise Misfit("the column has type uint64, which Avro does not have: cast the column to a decimal")
        return "int" if arrow_type.bit_width < 32 or arrow_type == pa.int32() else "long"
    if kind == "real":
        return "double" if arrow_type == pa.float64() else "float"
    if kind == "decimal":
        if arrow_type.precision > MAX_DECIMAL_PRECISION or not 0 <= arrow_type.scale <= arrow_type.precision:
            raise Misfit(
                f"the column has type {arrow_type}; a decimal must have at most {MAX_DECIMAL_PRECISION} digits and "
                "no negative scale"
            )
        return {"type": "bytes", "logicalType": "decimal", "precision": arrow_type.precision, "scale": arrow_type.scale}
    if kind not in _LEAVES:
        raise Misfit(f"the column has type {given}, which no schema can represent")
    return _LEAVES[kind]
