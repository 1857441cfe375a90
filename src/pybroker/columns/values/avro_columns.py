"""Mapping of Avro types to columns, as in Spark's Avro reader and the Scala connector.

Includes logical types, unions, and limits of schema size. All columns and everything inside them are nullable.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.schema.avro import AvroType

MAX_DEPTH = 64
"""Maximum nesting of records, lists, maps and unions."""
MAX_TYPES = 20_000
"""Maximum columns and nested fields in total, because references can expand a small definition beyond any memory."""
MAX_DECIMAL_PRECISION = 38

INSTANT = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
# Logical types by the kind that they annotate. Times of day stay numbers, as in Spark's Avro reader. Nanoseconds stay
# numbers, because Spark's timestamps have microseconds.
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): INSTANT,
    ("long", "timestamp-micros"): INSTANT,
    ("long", "local-timestamp-millis"): LOCAL,
    ("long", "local-timestamp-micros"): LOCAL,
}


@dataclass(frozen=True, slots=True)
class Logical:
    """The logical type of an Avro type. Unknown and invalid logical types are ignored, as Avro requires."""

    name: str = ""
    precision: int = 0
    scale: int = 0


def logical_of(avro_type: AvroType) -> Logical:
    if not avro_type.properties:
        return Logical()
    properties: dict[str, Any] = json.loads(avro_type.properties)
    name = properties.get("logicalType")
    if name == "decimal" and avro_type.kind in {"bytes", "fixed"}:
        precision, scale = properties.get("precision"), properties.get("scale", 0)
        if (
            type(precision) is int
            and type(scale) is int
            and 1 <= precision <= MAX_DECIMAL_PRECISION
            and 0 <= scale <= precision
            and (avro_type.kind == "bytes" or avro_type.size_bytes <= 16)
        ):
            return Logical("decimal", precision, scale)
    elif isinstance(name, str) and (
        (avro_type.kind, name) in _LOGICAL
        or (name == "uuid" and avro_type.kind == "fixed" and avro_type.size_bytes == 16)
    ):
        return Logical(name)
    return Logical()


def unit_of(logical: Logical) -> int:
    """Return the unit of a timestamp type in microseconds, such as 1000 for milliseconds; 0 for other types."""
    return {"millis": 1000, "micros": 1}.get(logical.name.rpartition("timestamp-")[2], 0) if logical.name else 0


@dataclass(frozen=True, slots=True)
class UnionColumn:
    """The column of a union: one nullable type, or a struct with a member for each branch except null."""

    branches: tuple[AvroType, ...]
    type: pa.DataType
    is_struct: bool


class AvroColumns:
    """Derives the column types of one Avro definition, and checks the schema limits."""

    def __init__(self) -> None:
        self._open: list[AvroType] = []
        self._count = 0

    def type_of(self, avro_type: AvroType) -> pa.DataType:
        """Return the column type of an Avro type. Raises UnreadableSchema for a record that contains itself, and for a
        schema above the limits.
        """
        self._count += 1
        if self._count > MAX_TYPES:
            raise UnreadableSchema(f"the schema has more than {MAX_TYPES} columns and fields in total")
        if any(avro_type is outer for outer in self._open):
            raise UnreadableSchema(
                f"the schema cannot be used: {avro_type} contains itself, which a column cannot represent"
            )
        if len(self._open) >= MAX_DEPTH:
            raise UnreadableSchema(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if not avro_type.children:
            return self._leaf(avro_type)
        self._open.append(avro_type)
        try:
            return self._nested(avro_type)
        finally:
            self._open.pop()

    @staticmethod
    def _leaf(avro_type: AvroType) -> pa.DataType:
        logical = logical_of(avro_type)
        if logical.name == "decimal":
            return pa.decimal128(logical.precision, logical.scale)
        if logical.name == "uuid":
            return pa.string()
        if logical.name:
            return _LOGICAL[avro_type.kind, logical.name]
        if avro_type.kind == "record":
            return pa.struct([])
        if avro_type.kind == "union":
            return pa.null()
        return _PRIMITIVES[avro_type.kind]

    def _nested(self, avro_type: AvroType) -> pa.DataType:
        if avro_type.kind == "record":
            pairs = zip(avro_type.fields, avro_type.children, strict=True)
            return pa.struct([pa.field(each.name, self.type_of(child)) for each, child in pairs])
        if avro_type.kind == "array":
            return pa.list_(self.type_of(avro_type.children[0]))
        if avro_type.kind == "map":
            return pa.map_(pa.string(), self.type_of(avro_type.children[0]))
        return self.union_of(avro_type).type

    def union_of(self, union: AvroType) -> UnionColumn:
        branches = tuple(branch for branch in union.children if branch.kind != "null")
        if not branches:
            return UnionColumn((), pa.null(), is_struct=False)
        kinds = {branch.kind for branch in branches if not logical_of(branch).name}
        if len(branches) == 1:
            return UnionColumn(branches, self.type_of(branches[0]), is_struct=False)
        if len(branches) == 2 and kinds == {"int", "long"}:
            return UnionColumn(branches, pa.int64(), is_struct=False)
        if len(branches) == 2 and kinds == {"float", "double"}:
            return UnionColumn(branches, pa.float64(), is_struct=False)
        members = [pa.field(f"member{index}", self.type_of(branch)) for index, branch in enumerate(branches)]
        return UnionColumn(branches, pa.struct(members), is_struct=True)
