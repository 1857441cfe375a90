"""Mapping of Protobuf fields to columns, and extraction of their values.

Messages become structs, including well-known types. An absent field with presence (messages, oneof members,
`optional`) is null; others have their type's zero. Enums become the names of their values, unknown ones their number
as text. Unsigned numbers become the next larger type: int64, decimal(20, 0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pybroker.columns.values.avro_columns import MAX_DEPTH, MAX_TYPES
from pybroker.columns.values.unreadable import UnreadableSchema

Messages: TypeAlias = "Sequence[Message | None]"
Convert: TypeAlias = Callable[[Any], Any]

_UNSIGNED_LONG = pa.decimal128(20, 0)
_SCALARS = {
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_UINT64: _UNSIGNED_LONG,
    FieldDescriptor.TYPE_FIXED64: _UNSIGNED_LONG,
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
    FieldDescriptor.TYPE_ENUM: pa.string(),
}


class MessageColumns:
    """The columns of one message type."""

    def __init__(self, descriptor: Descriptor, outer: Outer | None = None) -> None:
        outer = (outer or Outer()).into(descriptor)
        self.columns = [FieldColumn(each, outer) for each in descriptor.fields]
        self.fields = [pa.field(each.name, each.type) for each in self.columns]

    def read(self, messages: Messages) -> pa.StructArray:
        mask = pa.array([message is None for message in messages], type=pa.bool_())
        if not self.columns:
            return pa.array([None if message is None else {} for message in messages], type=pa.struct([]))
        arrays = [column.read(messages) for column in self.columns]
        return pa.StructArray.from_arrays(arrays, fields=self.fields, mask=mask)


class Outer:
    """The enclosing messages of a field, and the total number of fields so far, which is limited."""

    def __init__(self, names: tuple[str, ...] = (), count: list[int] | None = None) -> None:
        self._names = names
        self._count = count if count is not None else [0]

    def into(self, descriptor: Descriptor) -> Outer:
        if descriptor.full_name in self._names:
            raise UnreadableSchema(f"message {descriptor.full_name} contains itself, which a column cannot represent")
        if len(self._names) >= MAX_DEPTH:
            raise UnreadableSchema(f"the schema is nested deeper than {MAX_DEPTH} levels")
        self._count[0] += len(descriptor.fields)
        if self._count[0] > MAX_TYPES:
            raise UnreadableSchema(f"the schema has more than {MAX_TYPES} columns and fields in total")
        return Outer((*self._names, descriptor.full_name), self._count)


class FieldColumn:
    """The column of one singular, repeated or map field."""

    def __init__(self, descriptor: FieldDescriptor, outer: Outer) -> None:
        self.type: pa.DataType
        self.name: str = descriptor.name
        self._has_presence = descriptor.has_presence
        self._key: ValueColumn | None = None
        message = descriptor.message_type
        self._is_repeated = descriptor.is_repeated
        if message is not None and message.GetOptions().map_entry:
            self._key = ValueColumn(message.fields_by_name["key"], outer)
            self._value = ValueColumn(message.fields_by_name["value"], outer)
            self.type = pa.map_(self._key.type, self._value.type)
        else:
            self._value = ValueColumn(descriptor, outer)
            self.type = pa.list_(self._value.type) if self._is_repeated else self._value.type

    def read(self, messages: Messages) -> pa.Array:
        name = self.name
        if not self._is_repeated:
            if self._has_presence:
                return self._value.read(
                    [getattr(m, name) if m is not None and m.HasField(name) else None for m in messages]
                )
            return self._value.read([None if m is None else getattr(m, name) for m in messages])
        containers = [None if m is None else getattr(m, name) for m in messages]
        offsets = np.zeros(len(messages) + 1, dtype=np.int32)
        np.cumsum([0 if each is None else len(each) for each in containers], out=offsets[1:])
        present = [each for each in containers if each is not None]
        mask = pa.array([each is None for each in containers], type=pa.bool_())
        if self._key is None:
            items = self._value.read([item for each in present for item in each])
            return pa.ListArray.from_arrays(pa.array(offsets), items, type=self.type, mask=mask)
        keys = self._key.read([key for each in present for key in each])
        # Not items(): it reuses one object for all message values, and a lookup would create a missing one.
        values = self._value.read([each[key] for each in present for key in each])
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values, type=self.type, mask=mask)


class ValueColumn:
    """Extracts the values of a field's type."""

    def __init__(self, descriptor: FieldDescriptor, outer: Outer) -> None:
        self._message: MessageColumns | None = None
        self._convert: Convert | None = None
        self.type: pa.DataType
        if descriptor.message_type is not None:
            self._message = MessageColumns(descriptor.message_type, outer)
            self.type = pa.struct(self._message.fields)
            return
        self.type = _SCALARS[descriptor.type]
        if descriptor.enum_type is not None:
            names = {each.number: each.name for each in descriptor.enum_type.values}
            self._convert = lambda number: names.get(number, str(number))
        elif self.type == _UNSIGNED_LONG:
            self._convert = Decimal

    def read(self, values: Sequence[Any]) -> pa.Array:
        if self._message is not None:
            return self._message.read(values)
        if self._convert is not None:
            convert = self._convert
            values = [None if value is None else convert(value) for value in values]
        return pa.array(values, type=self.type)
