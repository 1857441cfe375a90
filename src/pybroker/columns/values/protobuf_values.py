"""Payloads of PROTOBUF_NATIVE schemas as columns, and of PROTOBUF schemas if their definition suffices.

Protobuf identifies fields by number, so every version is read with the pinned descriptors. A PROTOBUF schema contains
an Avro definition without field numbers; Java clients add the numbers of the outermost fields (`__PARSING_INFO__`),
which suffices if all of them are scalars.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from pybroker.columns.values.lanes import Failures, Numbers
from pybroker.columns.values.payload_reader import ReaderOfOneType
from pybroker.columns.values.protobuf_columns import MessageColumns
from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.columns.values.value_schema import SchemaInfo, SchemaOfVersion
from pybroker.schema.protobuf_native import root_message
from pybroker.schema.schema_data import InvalidSchema

PARSING_INFO = "__PARSING_INFO__"
_PLAIN = {
    name: number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in {"TYPE_MESSAGE", "TYPE_GROUP", "TYPE_ENUM"}
}


class ProtobufReader(ReaderOfOneType):
    """Reads serialised Protobuf messages of one type."""

    is_record = True

    def __init__(
        self, info: SchemaInfo, descriptor: Descriptor, versions: SchemaOfVersion, wanted: Collection[str] | None
    ) -> None:
        super().__init__(info.type, versions)
        message = MessageColumns(descriptor)
        self._columns = [each for each in message.columns if wanted is None or each.name in wanted]
        self.fields = [pa.field(each.name, each.type) for each in self._columns]
        self._class: type[Message] = message_factory.GetMessageClass(descriptor)

    def _run(self, part: pa.BinaryArray, rows: Numbers, failures: Failures) -> list[pa.Array]:
        messages: list[Message | None] = []
        for index, payload in enumerate(part.to_pylist()):
            try:
                messages.append(self._class.FromString(payload))
            except DecodeError:
                failures.add(rows[index], f"it is not a valid Protobuf message {self._class.DESCRIPTOR.full_name}")
                messages.append(None)
        try:
            return [column.read(messages) for column in self._columns]
        except (pa.ArrowInvalid, UnicodeDecodeError):  # proto2 allows invalid UTF-8
            for index, message in enumerate(messages):
                try:
                    _ = [column.read([message]) for column in self._columns]
                except (pa.ArrowInvalid, UnicodeDecodeError):
                    failures.add(rows[index], "a text is not UTF-8")
                    messages[index] = None
            return [column.read(messages) for column in self._columns]


def native_reader(info: SchemaInfo, versions: SchemaOfVersion, wanted: Collection[str] | None) -> ProtobufReader:
    try:
        descriptor = root_message(info.data)
    except InvalidSchema as error:
        raise UnreadableSchema(f"the schema's definition is invalid: {error}") from None
    return ProtobufReader(info, descriptor, versions, wanted)


def described_message(info: SchemaInfo) -> Descriptor | str:
    if PARSING_INFO not in info.properties:
        return f"the PROTOBUF schema has no field numbers (property {PARSING_INFO} is missing)"
    try:
        known = json.loads(info.properties[PARSING_INFO])
        file = FileDescriptorProto(name="described.proto", syntax="proto3")
        message = file.message_type.add(name="Described")
        for each in known:
            if "TYPE_" + str(each["type"]) not in _PLAIN:
                return f"the PROTOBUF schema does not describe the content of its field {str(each['name'])[:80]!r}"
            message.field.append(_field(each))
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName("Described")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"the property {PARSING_INFO} of the PROTOBUF schema is invalid: {str(error)[:200]}"


def _field(each: Any) -> FieldDescriptorProto:
    is_repeated = each.get("label") == "LABEL_REPEATED"
    return FieldDescriptorProto(
        name=each["name"],
        number=each["number"],
        type=_PLAIN["TYPE_" + each["type"]],
        label=FieldDescriptorProto.LABEL_REPEATED if is_repeated else FieldDescriptorProto.LABEL_OPTIONAL,
    )
