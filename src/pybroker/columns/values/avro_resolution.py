"""Avro's schema resolution: builds readers from a writer's and a reader's schema.

Fields are matched by name or by the reader's aliases. Fields that only the writer has are skipped; fields that only
the reader has get defaults (or null, see `MissingFields`). Numbers are promoted. Each branch of a writer's union is
resolved separately. As in Avro for Java, names of records, enums and fixed types need not match, but decide first
within a union. A part that cannot be resolved fails only the payloads that contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa

from pybroker.columns.bad_records import MissingFields
from pybroker.columns.values import avro_readers as readers
from pybroker.columns.values.avro_columns import MAX_DEPTH, MAX_TYPES, AvroColumns, logical_of, unit_of
from pybroker.columns.values.avro_readers import FailingReader, PlainReader, Reader
from pybroker.columns.values.avro_shapes import (
    BytesShape,
    FixedShape,
    ListShape,
    NumberShape,
    RecordShape,
    Shape,
    UnionShape,
)
from pybroker.columns.values.json_values import Unfit, value_from_json
from pybroker.columns.values.lanes import Lanes
from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.schema.avro import AvroField, AvroType, NoDefault

_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_READ: dict[str, tuple[pa.DataType, Callable[[Lanes], pa.Array]]] = {
    "null": (pa.null(), readers.read_null),
    "boolean": (pa.bool_(), readers.read_boolean),
    "int": (pa.int32(), readers.read_int),
    "long": (pa.int64(), readers.read_long),
    "float": (pa.float32(), readers.read_float),
    "double": (pa.float64(), readers.read_double),
    "bytes": (pa.binary(), readers.read_bytes),
    "string": (pa.string(), readers.read_string),
}
# Other types that a writer's type can be promoted to.
_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}


class AvroResolution:
    """Builds the readers for one pair of schemas, within the limits of `avro_columns`."""

    def __init__(self, columns: AvroColumns, missing_fields: MissingFields = MissingFields.FAIL) -> None:
        self._columns = columns
        self._missing_fields = missing_fields
        self._shapes: dict[int, Shape] = {}
        self._open: set[int] = set()
        self._count = 0

    def record(self, writer: AvroType, reader: AvroType, wanted: Collection[str] | None = None) -> readers.RecordReader:
        steps: list[tuple[Shape | Reader, int]] = []
        chosen = [
            (each, child)
            for each, child in zip(reader.fields, reader.children, strict=True)
            if wanted is None or each.name in wanted
        ]
        by_name = self._targets(writer, [each for each, _ in chosen])
        left = dict(enumerate(chosen))
        fields: list[pa.Field] = [None] * len(chosen)
        for each, child in zip(writer.fields, writer.children, strict=True):
            target = by_name.get(each.name)
            if target is None:
                steps.append((self.shape(child), -1))
                continue
            resolved = self.resolve(child, left.pop(target)[1])
            fields[target] = pa.field(chosen[target][0].name, resolved.type)
            steps.append((resolved, target))
        added: list[tuple[int, pa.Array]] = []
        for target, (each, child) in left.items():
            arrow_type = self._columns.type_of(child)
            fields[target] = pa.field(each.name, arrow_type)
            default = _default(each, child, arrow_type)
            if default is None and _is_nullable(child) and self._missing_fields is MissingFields.NULL:
                default = readers.constant(None, arrow_type)
            if default is None:
                reason = f"the writer's record has no field {each.name!r} and the reader's has no default for it"
                if _is_nullable(child):
                    reason += " (missingFields=null reads it as null)"
                steps.append((FailingReader(arrow_type, reason), target))
            else:
                added.append((target, default))
        return readers.RecordReader(steps, added, fields)

    @staticmethod
    def _targets(writer: AvroType, fields: list[AvroField]) -> dict[str, int]:
        """Map writer's fields to the index of the reader's field: by name first, then by alias."""
        names = {each.name for each in writer.fields}
        taken = {each.name: index for index, each in enumerate(fields) if each.name in names}
        for index, each in enumerate(fields):
            if each.name not in names:
                alias = next((alias for alias in each.aliases if alias in names and alias not in taken), None)
                if alias is not None:
                    taken[alias] = index
        return taken

    def resolve(self, writer: AvroType, reader: AvroType) -> Reader:
        self._count += 1
        if self._count > MAX_TYPES:
            raise UnreadableSchema(
                f"the schemas of the writer and of the reader are too large: they have more than {MAX_TYPES} pairs of types"
            )
        if writer.kind == "union":
            shape = self.shape(writer)
            assert isinstance(shape, UnionShape)
            if not writer.children:
                return FailingReader(self._columns.type_of(reader), "the writer's union is empty")
            return readers.UnionReader(shape, [self.resolve(branch, reader) for branch in writer.children])
        if reader.kind == "union":
            return self._into_union(writer, reader)
        if writer.kind in {"array", "map"} and reader.kind == writer.kind:
            return self._list(writer, reader)
        if writer.kind == "record" and reader.kind == "record":
            return self.record(writer, reader)
        return self._leaf(writer, reader)

    def _into_union(self, writer: AvroType, union: AvroType) -> Reader:
        column = self._columns.union_of(union)
        if writer.kind == "null":
            if any(branch.kind == "null" for branch in union.children):
                return readers.NullReader(column.type)
            return FailingReader(column.type, f"a value of type null cannot be read as {union}")
        index = _branch_for(writer, column.branches)
        if index is None:
            return FailingReader(column.type, f"a value of type {writer} cannot be read as {union}")
        inner = self.resolve(writer, column.branches[index])
        if column.is_struct:
            return readers.MemberReader(inner, column.type, index)
        return inner if inner.type == column.type else readers.CastReader(inner, column.type)

    def _list(self, writer: AvroType, reader: AvroType) -> Reader:
        shape = self.shape(writer)
        assert isinstance(shape, ListShape)
        item = self.resolve(writer.children[0], reader.children[0])
        keys = PlainReader(pa.string(), readers.read_string) if writer.kind == "map" else None
        return readers.ListReader(shape, item, keys)

    def _leaf(self, writer: AvroType, reader: AvroType) -> Reader:
        arrow_type = self._columns.type_of(reader)
        if writer.kind == "enum" and reader.kind == "enum":
            symbols = list(writer.symbols)
            readable = [symbol if symbol in reader.symbols else reader.enum_default for symbol in symbols]
            return PlainReader(arrow_type, readers.enum_reader(symbols, readable))
        if writer.kind == "fixed" and (reader.kind != "fixed" or reader.size_bytes != writer.size_bytes):
            return FailingReader(
                arrow_type, f"a value of type {writer} with {writer.size_bytes} bytes cannot be read as {reader}"
            )
        if not can_read(writer, reader):
            return FailingReader(arrow_type, f"a value of type {writer} cannot be read as {reader}")
        read = _read_logical(writer, reader, arrow_type)
        if read is not None:
            return PlainReader(arrow_type, read)
        if writer.kind == "fixed":
            return PlainReader(pa.binary(), readers.fixed_reader(writer.size_bytes))
        if writer.kind == "bytes" and reader.kind == "string":
            return PlainReader(pa.string(), readers.read_string)
        written_type, read_plain = _READ[writer.kind]
        plain = PlainReader(written_type, read_plain)
        return plain if plain.type == arrow_type else readers.CastReader(plain, arrow_type)

    def shape(self, writer: AvroType) -> Shape:
        known = self._shapes.get(id(writer))
        if known is not None:
            return known
        if id(writer) in self._open:
            raise UnreadableSchema(f"the schema of the writer is not supported, because {writer} contains itself")
        if len(self._open) >= MAX_DEPTH:
            raise UnreadableSchema(f"the schema of the writer is nested deeper than {MAX_DEPTH} levels")
        self._open.add(id(writer))
        made = self._make_shape(writer)
        self._open.discard(id(writer))
        self._shapes[id(writer)] = made
        return made

    def _make_shape(self, writer: AvroType) -> Shape:
        inner = [self.shape(child) for child in writer.children]
        if writer.kind == "record":
            return RecordShape(inner)
        if writer.kind == "union":
            return UnionShape(inner)
        if writer.kind == "array":
            return ListShape(inner[0])
        if writer.kind == "map":
            return ListShape(RecordShape([BytesShape(), inner[0]]))
        if writer.kind in {"bytes", "string"}:
            return BytesShape()
        if writer.kind in {"int", "long", "enum"}:
            return NumberShape()
        return FixedShape(writer.size_bytes if writer.kind == "fixed" else _WIDTHS[writer.kind])


def can_read(writer: AvroType, reader: AvroType) -> bool:
    """Return whether the reader's schema accepts values of the writer's type, including number promotions. Nested types
    are not compared.
    """
    return writer.kind == reader.kind or reader.kind in _PROMOTIONS.get(writer.kind, ())


def _branch_for(writer: AvroType, branches: tuple[AvroType, ...]) -> int | None:
    same = [index for index, branch in enumerate(branches) if branch.kind == writer.kind]
    named = [index for index in same if branches[index].name == writer.name]
    simple = [index for index in same if branches[index].simple_name == writer.simple_name]
    aliased = [index for index in same if writer.name in branches[index].aliases]
    promoted = [index for index, branch in enumerate(branches) if can_read(writer, branch)]
    return next(iter(named + aliased + simple + same + promoted), None)


def _read_logical(writer: AvroType, reader: AvroType, arrow_type: pa.DataType) -> Callable[[Lanes], pa.Array] | None:
    logical, written = logical_of(reader), logical_of(writer)
    if logical.name == "decimal" and writer.kind in {"bytes", "fixed"}:
        if written.name == "decimal" and (written.scale, written.precision) != (logical.scale, logical.precision):
            reason = f"a value of type decimal({written.precision}, {written.scale}) cannot be read as {arrow_type}"
            return FailingReader(arrow_type, reason).read
        width = writer.size_bytes if writer.kind == "fixed" else None
        return readers.decimal_reader(logical.precision, logical.scale, width)
    if logical.name == "uuid":
        return readers.read_uuid
    if logical.name == "date":
        return readers.date_reader
    if unit_us := unit_of(logical):
        # The writer's unit applies. An int was promoted to long.
        return readers.timestamp_reader(arrow_type, unit_of(written) or unit_us)
    return None


def _is_nullable(field_type: AvroType) -> bool:
    return field_type.kind == "null" or (
        field_type.kind == "union" and any(branch.kind == "null" for branch in field_type.children)
    )


def _default(each: AvroField, child: AvroType, arrow_type: pa.DataType) -> pa.Array | None:
    if isinstance(each.default, NoDefault):
        return None
    value: Any
    try:
        value = value_from_json(child, each.default, is_default=True)
    except Unfit:
        return None
    return readers.constant(value, arrow_type)
