"""Messages in the body of REST requests, and their stored form: text according to the type of a schema.

Pure. Invariant: the stored message is the one that a client with the same schema would have sent.
"""

# ruff: noqa: N815  (the attributes are the JSON properties)
from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Callable

import msgspec

from pybroker.errors import AdminError
from pybroker.schema.key_value import join_key_value
from pybroker.schema.schema_data import InvalidSchema, SchemaData, SchemaType, schema_type_named

DEFAULT_SCHEMA = SchemaData(SchemaType.STRING, b"", {"__charset": "UTF-8"})
"""The schema of messages without one."""


MAX_DIGITS = 64


class RestMessage(msgspec.Struct):
    """One message. Times are milliseconds since 1970, 0 for none; numbers may be written as text."""

    payload: str
    key: str = ""
    properties: dict[str, str] = {}
    eventTime: int | str = 0
    sequenceId: int | str = 0
    replicationClusters: list[str] = []
    deliverAt: int | str = 0
    deliverAfterMs: int | str = 0


class RestMessages(msgspec.Struct):
    """The body. A schema is the JSON of a SchemaInfo as text."""

    messages: list[RestMessage]
    producerName: str = ""
    keySchema: str = ""
    valueSchema: str = ""
    schemaVersion: int | None = None


class PublishResult(msgspec.Struct, omit_defaults=True):
    """The result of one message: its position, or the partition that refused it and the reason."""

    messageId: str
    errorCode: int
    schemaVersion: int
    errorMsg: str | None = None


class PublishResults(msgspec.Struct):
    """The answer."""

    messagePublishResults: list[PublishResult]
    schemaVersion: int


class _SchemaInfo(msgspec.Struct):
    type: str
    schema: str | None = None
    properties: dict[str, str] | None = None


def whole_number(value: int | str, name: str) -> int:
    """Raises AdminError 400 unless the value is a whole number from 0 to 2^63 - 1."""
    try:
        number = int(value) if isinstance(value, int) or len(value) < MAX_DIGITS else -1
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise AdminError(400, f"{name} is {str(value)[:MAX_DIGITS]!r}: expected a whole number, 0 or more")
    return number


def schema_of(text: str) -> SchemaData:
    """Raises AdminError 400."""
    if not text:
        return DEFAULT_SCHEMA
    try:
        info = msgspec.json.decode(text, type=_SchemaInfo)
        data = _definition(info)
        schema = SchemaData(schema_type_named(info.type), data, dict(info.properties or {}))
    except (msgspec.DecodeError, RecursionError, InvalidSchema, ValueError) as error:
        raise AdminError(400, f"a schema is not the JSON of a SchemaInfo: {error}") from error
    if schema.type is SchemaType.STRING and not schema.properties:
        return DEFAULT_SCHEMA
    return schema


def _definition(info: _SchemaInfo) -> bytes:
    """Decode the definition, which the JSON of SchemaInfo has in base64."""
    return b64decode(info.schema or "", validate=True)


def key_value_schema(key: SchemaData, value: SchemaData) -> SchemaData:
    """Return the schema of messages whose key has its own schema: the key is stored beside the value."""
    properties = {"kv.encoding.type": "SEPARATED"}
    for side, schema in (("key", key), ("value", value)):
        properties[f"{side}.schema.name"] = ""
        properties[f"{side}.schema.type"] = "BYTES" if schema.type is SchemaType.NONE else schema.type.name
        properties[f"{side}.schema.properties"] = msgspec.json.encode(schema.properties).decode()
    return SchemaData(SchemaType.KEY_VALUE, join_key_value(key.data, value.data), properties)


Encoder = Callable[[str], bytes]


def encoder(schema: SchemaData) -> Encoder:
    """Return the conversion from text to a payload of `schema`. Raises AdminError 400 for types without a text form."""
    try:
        return _ENCODERS[schema.type]
    except KeyError:
        names = ", ".join("BYTES" if kind is SchemaType.NONE else kind.name for kind in _ENCODERS)
        raise AdminError(
            400, f"messages of schema type {schema.type.name} cannot be published over REST; use one of {names}"
        ) from None


def encoded(encode: Encoder, text: str, what: str) -> bytes:
    """Raises AdminError 400 when `text` is not of the schema's type."""
    try:
        return encode(text)
    except (ValueError, struct.error, OverflowError, RecursionError) as error:
        raise AdminError(400, f"a {what} is not of its schema: {error}") from error


def encoded_key(encode: Encoder, key: str) -> str:
    """Return a key with its own schema, as in metadata."""
    return b64encode(encoded(encode, key, "key")).decode()


def _json(text: str) -> bytes:
    msgspec.json.decode(text)
    return text.encode()


def _boolean(text: str) -> bytes:
    return b"\1" if text.lower() == "true" else b"\0"


def _packed(layout: str, read: Callable[[str], int | float]) -> Encoder:
    return lambda text: struct.pack(layout, read(text))


_ENCODERS: dict[SchemaType, Encoder] = {
    SchemaType.NONE: str.encode,
    SchemaType.STRING: str.encode,
    SchemaType.JSON: _json,
    SchemaType.BOOLEAN: _boolean,
    SchemaType.INT8: _packed(">b", int),
    SchemaType.INT16: _packed(">h", int),
    SchemaType.INT32: _packed(">i", int),
    SchemaType.INT64: _packed(">q", int),
    SchemaType.FLOAT: _packed(">f", float),
    SchemaType.DOUBLE: _packed(">d", float),
}


def partition_of_key(key: str, partitions: int) -> int:
    """Return the partition that a Java client with its defaults selects."""
    units = memoryview(key.encode("utf-16-be", errors="surrogatepass")).cast("B")
    key_hash = 0
    for index in range(0, len(units), 2):
        key_hash = (31 * key_hash + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return (key_hash & 0x7FFFFFFF) % partitions
