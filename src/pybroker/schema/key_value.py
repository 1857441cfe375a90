"""KEY_VALUE schemas: two schemas in one definition.

The layout of the definition follows. Types and properties of both sides are in the properties of the whole schema.

    key length (4, big-endian) | key definition | value length (4) | value definition

Lengths -1 and 0 mean no definition. A side without a type in the properties is plain bytes. Only clients use
`kv.encoding.type` (INLINE or SEPARATED), which determines where the key is sent.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pybroker.schema.json_text import parse_json
from pybroker.schema.schema_data import InvalidSchema, SchemaData, schema_type_named

_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class KeyValueSchema:
    """The key schema and the value schema of a KEY_VALUE schema."""

    key: SchemaData
    value: SchemaData


def split_key_value(schema: SchemaData) -> KeyValueSchema:
    """Return the key schema and the value schema of a KEY_VALUE schema. Raises InvalidSchema if the definition is
    damaged.
    """
    key, rest = _take(schema.data, "key")
    value, rest = _take(rest, "value")
    if rest:
        raise InvalidSchema(
            f"the KEY_VALUE schema is invalid: {len(rest)} unexpected bytes after the value's definition"
        )
    return KeyValueSchema(_side(schema, "key", key), _side(schema, "value", value))


def join_key_value(key: bytes, value: bytes) -> bytes:
    return b"".join((_LENGTH.pack(len(key)), key, _LENGTH.pack(len(value)), value))


def _take(data: bytes, side: str) -> tuple[bytes, bytes]:
    if len(data) < _LENGTH.size:
        raise InvalidSchema(f"the definition of the KEY_VALUE schema ends before the length of the {side} definition")
    length: int = _LENGTH.unpack_from(data)[0]
    end = _LENGTH.size + max(0, length)
    if length < -1 or end > len(data):
        raise InvalidSchema(
            f"the {side} definition of the KEY_VALUE schema should have {length} bytes, but only "
            f"{len(data) - _LENGTH.size} follow"
        )
    return data[_LENGTH.size : end], data[end:]


def _side(schema: SchemaData, side: str, data: bytes) -> SchemaData:
    schema_type = schema_type_named(schema.properties.get(f"{side}.schema.type", "BYTES"))
    text = schema.properties.get(f"{side}.schema.properties")
    properties = parse_json(text.encode()) if text else {}
    if not isinstance(properties, dict):
        raise InvalidSchema(f"the schema property {side}.schema.properties is not a JSON object")
    return SchemaData(schema_type, data, {key: str(value) for key, value in properties.items()})
