"""KEY_VALUE schemas: two schemas in one definition.

This module owns the layout of the data. The types and properties of both sides are in the properties of the whole.

    key length (4, big-endian) | key definition | value length (4) | value definition

A length of -1 means no definition, like an empty one. If the properties specify no type, the side is plain bytes.
Only clients use the encoding (`kv.encoding.type`: INLINE or SEPARATED), which determines where a key is sent.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pybroker.schema.json_text import parse_json
from pybroker.schema.schema_data import InvalidSchema, SchemaData, schema_type_named

_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class KeyValueSchema:
    """Both sides."""

    key: SchemaData
    value: SchemaData


def split_key_value(schema: SchemaData) -> KeyValueSchema:
    """Raise InvalidSchema."""
    key, rest = _take(schema.data, "key")
    value, rest = _take(rest, "value")
    if rest:
        raise InvalidSchema(f"{len(rest)} bytes after the value's definition")
    return KeyValueSchema(_side(schema, "key", key), _side(schema, "value", value))


def join_key_value(key: bytes, value: bytes) -> bytes:
    return b"".join((_LENGTH.pack(len(key)), key, _LENGTH.pack(len(value)), value))


def _take(data: bytes, side: str) -> tuple[bytes, bytes]:
    if len(data) < _LENGTH.size:
        raise InvalidSchema(f"the definition ends before the length of its {side}")
    length: int = _LENGTH.unpack_from(data)[0]
    end = _LENGTH.size + max(0, length)
    if length < -1 or end > len(data):
        raise InvalidSchema(f"the {side} claims {length} bytes, {len(data) - _LENGTH.size} are there")
    return data[_LENGTH.size : end], data[end:]


def _side(schema: SchemaData, side: str, data: bytes) -> SchemaData:
    schema_type = schema_type_named(schema.properties.get(f"{side}.schema.type", "BYTES"))
    text = schema.properties.get(f"{side}.schema.properties")
    properties = parse_json(text.encode()) if text else {}
    if not isinstance(properties, dict):
        raise InvalidSchema(f"property {side}.schema.properties is not a JSON object")
    return SchemaData(schema_type, data, {key: str(value) for key, value in properties.items()})
