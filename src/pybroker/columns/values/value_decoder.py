"""Selection of the decoder for a topic's schema."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import pyarrow as pa

from pybroker.columns.bad_records import MissingFields
from pybroker.columns.message_columns import VALUE
from pybroker.columns.values.avro_values import AvroReader
from pybroker.columns.values.json_payloads import JsonReader
from pybroker.columns.values.key_values import KEY, KeyValueDecoder, is_separated, sides
from pybroker.columns.values.payload_reader import BytesReader, PayloadReader, ReaderOfValues, checked_names
from pybroker.columns.values.primitive_values import PrimitiveReader
from pybroker.columns.values.protobuf_values import ProtobufReader, described_message, native_reader
from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.columns.values.value_schema import SchemaInfo, SchemaOfVersion, ValueDecoder
from pybroker.schema.schema_data import PRIMITIVE_TYPES, InvalidSchema, SchemaType, schema_type_named

ValueMode = Literal["auto", "raw"]


def value_decoder(
    info: SchemaInfo | None,
    versions: SchemaOfVersion,
    mode: ValueMode = "auto",
    wanted: Collection[str] | None = None,
    missing_fields: MissingFields = MissingFields.FAIL,
) -> ValueDecoder:
    """Return the decoder of payloads into the columns of schema `info`. If `info` is None or `mode` is `raw`, payloads
    are returned as bytes.

    `versions` returns the schema of a version. `ValueDecoder.decode` calls this function for each new version, and
    raises its exceptions. `wanted`: the names of the columns to decode; None for all. `missing_fields` applies to AVRO
    schemas. Raises UnreadableSchema if the schema cannot be represented as columns.
    """
    if mode == "raw" or info is None:
        return ReaderOfValues(BytesReader())
    if _type_of(info) == SchemaType.KEY_VALUE:
        return _key_value_decoder(info, versions, wanted, missing_fields)
    reader = payload_reader(info, versions, wanted, missing_fields)
    checked_names(reader.fields)
    return ReaderOfValues(reader)


def fields_of(info: SchemaInfo | None, mode: ValueMode = "auto") -> list[pa.Field]:
    return value_decoder(info, lambda _: None, mode).fields


def payload_reader(
    info: SchemaInfo,
    versions: SchemaOfVersion,
    wanted: Collection[str] | None = None,
    missing_fields: MissingFields = MissingFields.FAIL,
) -> PayloadReader:
    schema_type = _type_of(info)
    if schema_type in PRIMITIVE_TYPES:
        return PrimitiveReader(schema_type)
    if schema_type == SchemaType.AVRO:
        return AvroReader(info, versions, wanted, missing_fields)
    if schema_type == SchemaType.JSON:
        return JsonReader(info, versions, wanted)
    if schema_type == SchemaType.PROTOBUF_NATIVE:
        return native_reader(info, versions, wanted)
    if schema_type == SchemaType.PROTOBUF:
        message = described_message(info)
        return BytesReader() if isinstance(message, str) else ProtobufReader(info, message, versions, wanted)
    if schema_type == SchemaType.KEY_VALUE:
        raise UnreadableSchema("a KEY_VALUE schema contains another KEY_VALUE schema, which is not supported")
    return BytesReader()


def why_bytes(info: SchemaInfo | None) -> str | None:
    if info is None or _type_of(info) != SchemaType.PROTOBUF:
        return None
    message = described_message(info)
    return message if isinstance(message, str) else None


def _type_of(info: SchemaInfo) -> SchemaType:
    try:
        return schema_type_named(info.type)
    except InvalidSchema:
        return SchemaType.NONE  # Client-side types such as AUTO_CONSUME do not describe the payload.


def _key_value_decoder(
    info: SchemaInfo, versions: SchemaOfVersion, wanted: Collection[str] | None, missing_fields: MissingFields
) -> ValueDecoder:
    try:
        key, value = sides(info)
    except ValueError as error:
        raise UnreadableSchema(str(error)) from None

    def side(number: int, schema: SchemaInfo) -> PayloadReader:
        return payload_reader(schema, _side_of(versions, number), missing_fields=missing_fields)

    return KeyValueDecoder(
        side(0, key) if wanted is None or KEY in wanted else None,
        side(1, value) if wanted is None or VALUE in wanted else None,
        separated=is_separated(info),
    )


def _side_of(versions: SchemaOfVersion, side: int) -> SchemaOfVersion:
    """Return one side's schema of each version. Other schemas than KEY_VALUE fail later, at the comparison of types."""

    def look_up(version: bytes) -> SchemaInfo | None:
        info = versions(version)
        if info is None or _type_of(info) != SchemaType.KEY_VALUE:
            return info
        return sides(info)[side]

    return look_up
