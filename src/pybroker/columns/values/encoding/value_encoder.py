"""Selection of the encoder for a data frame's columns and a topic's schema."""

from __future__ import annotations

import json
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pybroker.columns.message_columns import VALUE
from pybroker.columns.values.avro_columns import AvroColumns
from pybroker.columns.values.avro_values import definition_of
from pybroker.columns.values.encoding.avro_writers import RecordWriter, record_writer, writer_of
from pybroker.columns.values.encoding.encoded import CannotEncode, fixed_pieces, joined
from pybroker.columns.values.encoding.fitting import Misfit, plain_type, usual
from pybroker.columns.values.encoding.json_writers import json_record, json_writer_of
from pybroker.columns.values.encoding.new_schemas import RECORD_NAME, definition_for
from pybroker.columns.values.encoding.primitive_writers import PrimitiveWriter, primitive_type_for
from pybroker.columns.values.key_values import ENCODING, KEY, is_separated, sides
from pybroker.columns.values.value_schema import SchemaInfo, ValueEncoder
from pybroker.schema.key_value import join_key_value
from pybroker.schema.schema_data import (
    AVRO_DEFINED_TYPES,
    PRIMITIVE_TYPES,
    InvalidSchema,
    SchemaType,
    schema_type_named,
)

NewSchema = Literal["auto", "AVRO", "JSON", "KEY_VALUE", "RAW"]
"""The schema for a topic without one. `auto`: the primitive schema for a single column `value`, otherwise AVRO. RAW:
the binary column `value` holds complete payloads, for any schema.
"""


def value_encoder(
    fields: list[pa.Field],
    existing: SchemaInfo | None = None,
    *,
    new: NewSchema = "auto",
    separated: bool = True,
    name: str = RECORD_NAME,
) -> ValueEncoder:
    """Return an encoder of rows with the payload columns `fields`.

    If the topic has a schema (`existing`), its fields are written from columns of the same names; fields without a
    column get defaults or null. Otherwise a schema of kind `new` is created: `name` is the name of an AVRO or JSON
    record, and `separated` puts the key of a KEY_VALUE into the message's key. Raises Misfit with the column that does
    not fit.
    """
    if new == "RAW":
        return _ColumnEncoder(_only(fields), SchemaType.NONE, existing or SchemaInfo("BYTES"))
    schema_type = SchemaType.NONE if existing is None else _type_of(existing)
    if existing is not None and schema_type != SchemaType.NONE:
        return _by_existing(fields, existing, schema_type)
    if new == "KEY_VALUE":
        return _new_key_value(fields, separated)
    if new == "auto" and [field.name for field in fields] == [VALUE]:
        primitive = primitive_type_for(plain_type(fields[0].type))
        if primitive is not None:
            return _ColumnEncoder(fields[0], primitive, _primitive_schema(primitive))
    if not fields:
        raise Misfit(f"no column contains the payload: add a payload column, for example {VALUE!r}")
    return _record_encoder(fields, SchemaInfo("JSON" if new == "JSON" else "AVRO", definition_for(fields, name)))


def _by_existing(fields: list[pa.Field], existing: SchemaInfo, schema_type: SchemaType) -> ValueEncoder:
    if schema_type in PRIMITIVE_TYPES:
        return _ColumnEncoder(_only(fields), schema_type, existing)
    if schema_type in {SchemaType.AVRO, SchemaType.JSON}:
        return _record_encoder(fields, existing)
    if schema_type == SchemaType.KEY_VALUE:
        return KeyValueEncoder(fields, existing)
    raise Misfit(
        f"the columns cannot be written with the topic's {schema_type.name} schema: write encoded payloads in "
        f"one binary column {VALUE!r}, with the schema type RAW"
    )


def _type_of(info: SchemaInfo) -> SchemaType:
    try:
        return schema_type_named(info.type)
    except InvalidSchema:
        return SchemaType.NONE


def _primitive_schema(schema_type: SchemaType) -> SchemaInfo:
    return SchemaInfo("BYTES" if schema_type == SchemaType.NONE else schema_type.name)


def _only(fields: list[pa.Field]) -> pa.Field:
    if len(fields) != 1:
        names = ", ".join(field.name for field in fields) or "none"
        raise Misfit(f"the data has the payload columns {names}, but the topic's schema requires exactly one column")
    return fields[0]


class Side(Protocol):
    """Writes the key or the value of a KEY_VALUE. Null values give null payloads."""

    schema: SchemaInfo

    def write(self, array: pa.Array) -> pa.BinaryArray: ...


class PrimitiveSide:
    """Writes a key or value with a primitive schema."""

    def __init__(self, field: pa.Field, schema_type: SchemaType, schema: SchemaInfo) -> None:
        self.schema = schema
        try:
            self.write = PrimitiveWriter(schema_type, plain_type(field.type)).write
        except Misfit as error:
            raise error.inside(field.name) from None


class DefinedSide:
    """Writes a key or value with an AVRO or JSON schema; a record is written from a struct."""

    def __init__(self, field: pa.Field, schema: SchemaInfo) -> None:
        self.schema = schema
        definition = _definition(schema)
        columns = AvroColumns()
        arrow_type = plain_type(field.type)
        try:
            if schema.type == "AVRO":
                if definition.kind == "record" and pa.types.is_struct(arrow_type):
                    self._write: Any = record_writer(definition, list(arrow_type), columns).write
                else:
                    self._write = writer_of(definition, arrow_type, columns).write
            else:
                self._write = json_writer_of(definition, arrow_type, columns).write
        except Misfit as error:
            raise error.inside(field.name) from None

    def write(self, array: pa.Array) -> pa.BinaryArray:
        where = np.nonzero(np.asarray(array.is_valid()))[0]
        index = np.zeros(len(array), dtype=np.int64)
        index[where] = np.arange(len(where))
        try:
            pieces = self._write(usual(array.drop_null()))
        except CannotEncode as error:
            raise error.at(where[error.row]) from None
        return pieces.cast(pa.binary()).take(pa.array(index, mask=np.asarray(array.is_null())))


def _definition(schema: SchemaInfo) -> Any:
    try:
        definition = definition_of(schema.data)
        AvroColumns().type_of(definition)  # raises for a schema without columns, before other code traverses it
    except ValueError as error:
        raise Misfit(f"the columns cannot be written with the topic's schema: {error}") from None
    return definition


class _ColumnEncoder(ValueEncoder):
    def __init__(self, field: pa.Field, schema_type: SchemaType, schema: SchemaInfo) -> None:
        self.schema = schema
        self._name = field.name
        self._side = PrimitiveSide(field, schema_type, schema)

    def encode(self, batch: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.BinaryArray | None]:
        return _named(self._name, lambda: self._side.write(batch.column(self._name))), None


def _named(name: str, write: Any) -> Any:
    try:
        return write()
    except CannotEncode as error:
        raise error.inside(name) from None


def _record_encoder(fields: list[pa.Field], schema: SchemaInfo) -> ValueEncoder:
    definition = _definition(schema)
    if definition.kind != "record":
        return _DefinedEncoder(_only(fields), schema)
    if schema.type == "JSON":
        return _JsonEncoder(fields, schema, json_record(definition, fields, AvroColumns()))
    return _AvroEncoder(fields, schema, record_writer(definition, fields, AvroColumns()))


class _DefinedEncoder(ValueEncoder):
    def __init__(self, field: pa.Field, schema: SchemaInfo) -> None:
        self.schema = schema
        self._name = field.name
        self._side = DefinedSide(field, schema)

    def encode(self, batch: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.BinaryArray | None]:
        return _named(self._name, lambda: self._side.write(batch.column(self._name))), None


class _AvroEncoder(ValueEncoder):
    def __init__(self, fields: list[pa.Field], schema: SchemaInfo, writer: RecordWriter) -> None:
        self.schema = schema
        self._names = [field.name for field in fields]
        self._writer = writer

    def encode(self, batch: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.BinaryArray | None]:
        columns = {name: _named(name, lambda name=name: usual(batch.column(name))) for name in self._names}
        return self._writer.write_columns(columns, batch.num_rows), None


class _JsonEncoder(ValueEncoder):
    def __init__(self, fields: list[pa.Field], schema: SchemaInfo, write: Any) -> None:
        self.schema = schema
        self._names = [field.name for field in fields]
        self._write = write

    def encode(self, batch: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.BinaryArray | None]:
        columns = [_named(name, lambda name=name: usual(batch.column(name))) for name in self._names]
        rows = pa.StructArray.from_arrays(columns, names=self._names)
        return self._write(rows).cast(pa.binary()), None


class KeyValueEncoder(ValueEncoder):
    """Encodes the columns `key` and `value` by a KEY_VALUE schema; a missing column is null."""

    def __init__(self, fields: list[pa.Field], schema: SchemaInfo) -> None:
        self.schema = schema
        by_name = {field.name: field for field in fields}
        if not by_name or set(by_name) - {KEY, VALUE}:
            raise Misfit(
                f"the payload is in the columns {', '.join(by_name) or 'none'}, but a KEY_VALUE schema "
                f"requires the columns {KEY!r} and {VALUE!r}"
            )
        try:
            both = sides(schema)
        except ValueError as error:
            raise Misfit(f"the columns cannot be written with the topic's schema: {error}") from None
        self._sides = [
            _side_of(by_name[name], info) if name in by_name else None
            for name, info in zip((KEY, VALUE), both, strict=True)
        ]
        self._separated = is_separated(schema)

    def encode(self, batch: pa.RecordBatch) -> tuple[pa.BinaryArray, pa.BinaryArray | None]:
        keys, values = (self._write(batch, name, side) for name, side in zip((KEY, VALUE), self._sides, strict=True))
        if self._separated:
            return values, keys
        return joined(*_with_length(keys), *_with_length(values)), None

    @staticmethod
    def _write(batch: pa.RecordBatch, name: str, side: Side | None) -> pa.BinaryArray:
        if side is None:
            return pa.nulls(batch.num_rows, pa.binary())
        return _named(name, lambda: side.write(batch.column(name)))


def _with_length(values: pa.BinaryArray) -> tuple[Any, Any]:
    lengths = np.asarray(pc.binary_length(values).fill_null(-1)).astype(">i4")
    return fixed_pieces(lengths, 4), values.fill_null(b"")


def _side_of(field: pa.Field, info: SchemaInfo) -> Side:
    schema_type = _type_of(info)
    if schema_type in AVRO_DEFINED_TYPES and schema_type != SchemaType.PROTOBUF:
        return DefinedSide(field, info)
    if schema_type in PRIMITIVE_TYPES or schema_type == SchemaType.NONE:
        return PrimitiveSide(field, schema_type, info)
    raise Misfit(
        f"a {schema_type.name} schema inside of a KEY_VALUE schema cannot be written",
        field.name,
    )


def _new_key_value(fields: list[pa.Field], separated: bool) -> ValueEncoder:
    by_name = {field.name: field for field in fields}
    if set(by_name) != {KEY, VALUE}:
        raise Misfit(
            f"the payload is in the columns {', '.join(by_name) or 'none'}, but a KEY_VALUE schema requires "
            f"the columns {KEY!r} and {VALUE!r}"
        )
    made = {name: _new_side(by_name[name]) for name in (KEY, VALUE)}
    properties = {ENCODING: "SEPARATED" if separated else "INLINE"}
    for name, info in made.items():
        properties[f"{name}.schema.name"] = name
        properties[f"{name}.schema.type"] = info.type
        properties[f"{name}.schema.properties"] = json.dumps(dict(info.properties))
    return KeyValueEncoder(
        fields, SchemaInfo("KEY_VALUE", join_key_value(made[KEY].data, made[VALUE].data), properties)
    )


def _new_side(field: pa.Field) -> SchemaInfo:
    arrow_type = plain_type(field.type)
    primitive = primitive_type_for(arrow_type)
    if primitive is not None:
        return _primitive_schema(primitive)
    if not pa.types.is_struct(arrow_type):
        raise Misfit(
            f"the column has type {field.type}; the key and the value of KEY_VALUE must have a primitive type or "
            "be a struct",
            field.name,
        )
    return SchemaInfo("AVRO", definition_for(list(field.type), field.name.capitalize()))
