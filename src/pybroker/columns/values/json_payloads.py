"""Decoding of JSON payloads into columns by Arrow's JSON reader, with a row-by-row fallback.

Arrow's reader requires exact types and stops at the first mismatch. A batch with a mismatch is halved until the parts
are small; then the lenient `json_values` reads the parts with mismatches.

Fields are found by name for every schema version; an absent field is null.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from pybroker.columns.values.avro_columns import AvroColumns, UnionColumn, logical_of, unit_of
from pybroker.columns.values.avro_values import AvroDefinition
from pybroker.columns.values.json_values import Convert, Unfit, converter, field_value
from pybroker.columns.values.lanes import Failures, Numbers, placed
from pybroker.columns.values.payload_reader import ReaderOfOneType, chosen_fields
from pybroker.columns.values.value_schema import SchemaInfo, SchemaOfVersion
from pybroker.schema.avro import AvroType

SMALL_PART = 64
"""Row count down to which a refused batch is halved."""
_SPACE = " \t\r\n"
_READ_AS_THEY_ARE = frozenset({"boolean", "int", "long", "float", "double", "string", "enum"})


class JsonReader(ReaderOfOneType):
    """Reads payloads of JSON schemas."""

    def __init__(self, info: SchemaInfo, versions: SchemaOfVersion, wanted: Collection[str] | None = None) -> None:
        super().__init__("JSON", versions)
        definition = AvroDefinition(info.data)
        self.fields = chosen_fields(definition.fields, wanted)
        self.is_record = definition.is_record
        self._rows = RowsOfJson(definition, self.fields)
        self._fast = _fast_types(definition, self.fields) if definition.is_record and self.fields else None

    def _run(self, part: pa.BinaryArray, rows: Numbers, failures: Failures) -> list[pa.Array]:
        pieces: list[tuple[Any, list[pa.Array]]] = []
        waiting = [(0, len(part))]
        while waiting:
            first, end = waiting.pop()
            piece = part.slice(first, end - first)
            columns = self._read_fast(piece)
            if columns is None:
                if end - first > SMALL_PART and self._fast is not None:
                    middle = (first + end) // 2
                    waiting += ((middle, end), (first, middle))
                    continue
                columns = self._rows.read(piece, rows[first:end], failures)
            pieces.append((np.arange(first, end), columns))
        if len(pieces) == 1:
            return pieces[0][1]
        return [
            placed([(where, columns[index]) for where, columns in pieces], len(part), field.type)
            for index, field in enumerate(self.fields)
        ]

    def _read_fast(self, part: pa.BinaryArray) -> list[pa.Array] | None:
        if self._fast is None or not len(part):
            return None
        try:
            return self._parse(part.cast(pa.string()), self._fast)
        except pa.ArrowInvalid:
            return None

    def _parse(self, texts: pa.StringArray, types: list[FastType]) -> list[pa.Array] | None:
        # Each row must contain exactly one object. This holds if each row begins and ends with a brace and there are as
        # many objects as rows: no row is empty, and none continues in the next, as JSON strings contain no line end.
        if not _braced(texts):
            texts = pc.utf8_trim(texts, characters=_SPACE)
            if not _braced(texts):
                return None
        asked = pa.schema([pa.field(field.name, each.type) for field, each in zip(self.fields, types, strict=True)])
        joined = pc.binary_join_element_wise(texts, "\n", "")
        buffer = joined.buffers()[2]
        table = arrow_json.read_json(
            pa.BufferReader(buffer),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(buffer) + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=asked, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(texts):
            return None
        return [
            each.column(_one_chunk(table.column(field.name))) for each, field in zip(types, self.fields, strict=True)
        ]


def _braced(texts: pa.StringArray) -> bool:
    both = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    return bool(pc.all(both, min_count=0).as_py())


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


@dataclass(frozen=True, slots=True)
class FastType:
    """A type that Arrow's JSON reader can read, and the conversion to the column's type. Dates and timestamps are read
    as numbers.
    """

    type: pa.DataType
    lift: Callable[[pa.Array], pa.Array] | None = None

    def column(self, read: pa.Array) -> pa.Array:
        return read if self.lift is None else self.lift(read)


def _fast_types(definition: AvroDefinition, fields: list[pa.Field]) -> list[FastType] | None:
    by_name = dict(zip([each.name for each in definition.type.fields], definition.type.children, strict=True))
    types = [_fast_type(by_name[field.name], definition.columns) for field in fields]
    known = [each for each in types if each is not None]
    return known if len(known) == len(types) else None


def _fast_type(avro_type: AvroType, columns: AvroColumns) -> FastType | None:
    if avro_type.kind == "union":
        column: UnionColumn = columns.union_of(avro_type)
        if column.is_struct or not column.branches:
            return None
        return FastType(column.type) if len(column.branches) > 1 else _fast_type(column.branches[0], columns)
    if avro_type.kind == "record":
        inner = [_fast_type(child, columns) for child in avro_type.children]
        known = [each for each in inner if each is not None]
        names = [each.name for each in avro_type.fields]
        return _fast_record(names, known) if inner and len(known) == len(inner) else None
    if avro_type.kind == "array":
        item = _fast_type(avro_type.children[0], columns)
        return None if item is None else _fast_list(item)
    return _fast_leaf(avro_type)


def _fast_leaf(avro_type: AvroType) -> FastType | None:
    if avro_type.kind not in _READ_AS_THEY_ARE:
        return None
    logical = logical_of(avro_type)
    arrow_type = AvroColumns().type_of(avro_type)
    if logical.name == "date":
        return FastType(pa.int32(), lambda read: read.view(arrow_type))
    if unit_us := unit_of(logical):
        return FastType(pa.int64(), lambda read: pc.multiply_checked(read, unit_us).view(arrow_type))
    return FastType(arrow_type)


def _fast_record(names: list[str], inner: list[FastType]) -> FastType:
    arrow_type = pa.struct([pa.field(name, each.type) for name, each in zip(names, inner, strict=True)])
    if all(each.lift is None for each in inner):
        return FastType(arrow_type)

    def lift(read: pa.StructArray) -> pa.Array:
        children = [each.column(read.field(index)) for index, each in enumerate(inner)]
        return pa.StructArray.from_arrays(children, names=names, mask=read.is_null())

    return FastType(arrow_type, lift)


def _fast_list(item: FastType) -> FastType:
    if item.lift is None:
        return FastType(pa.list_(item.type))

    def lift(read: pa.ListArray) -> pa.Array:
        # The offsets match the items, because the reader's arrays begin at their first value.
        return pa.ListArray.from_arrays(read.offsets, item.column(read.values), mask=read.is_null())

    return FastType(pa.list_(item.type), lift)


class RowsOfJson:
    """Reads JSON payloads row by row."""

    def __init__(self, definition: AvroDefinition, fields: list[pa.Field]) -> None:
        self._fields = fields
        self._whole: Convert | None = None
        self._converters: list[tuple[str, Convert]] = []
        names = {field.name for field in fields}
        if definition.is_record:
            pairs = zip(definition.type.fields, definition.type.children, strict=True)
            self._converters = [
                (each.name, converter(t, definition.columns)) for each, t in pairs if each.name in names
            ]
        else:
            self._whole = converter(definition.type, definition.columns)
        has_decimals = any("decimal" in str(field.type) for field in fields)
        self._decoder = msgspec.json.Decoder(float_hook=Decimal if has_decimals else None)

    def read(self, part: pa.BinaryArray, rows: Numbers, failures: Failures) -> list[pa.Array]:
        columns: list[list[Any]] = [[None] * len(part) for _ in self._fields]
        for index, payload in enumerate(part):
            try:
                values = self._row(payload.as_buffer())
            except (Unfit, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                failures.add(rows[index], f"it does not fit the JSON schema: {_reason(error)}")
                continue
            for column, value in zip(columns, values, strict=True):
                column[index] = value
        return [
            build_column(column, field.type, rows, failures)
            for column, field in zip(columns, self._fields, strict=True)
        ]

    def _row(self, payload: Any) -> list[Any]:
        document = self._decoder.decode(payload)
        if self._whole is not None:
            return [self._whole(document)] * len(self._fields)
        if document is None:
            return [None] * len(self._fields)
        if not isinstance(document, dict):
            raise Unfit("the payload is not a JSON object")
        return [field_value(name, convert, document) for name, convert in self._converters]


def _reason(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)[:200]


def build_column(values: list[Any], arrow_type: pa.DataType, rows: Numbers, failures: Failures) -> pa.Array:
    """Convert `values` to an array. A value that Arrow rejects becomes null, and its row is added to `failures`.
    `rows`: the row number of each value.
    """
    try:
        return pa.array(values, type=arrow_type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        built = []
    for index, value in enumerate(values):
        try:
            built.append(pa.array([value], type=arrow_type))
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            failures.add(rows[index], f"a value does not fit {arrow_type}: {str(error)[:200]}")
            built.append(pa.nulls(1, arrow_type))
    return pa.concat_arrays(built) if built else pa.nulls(0, arrow_type)
