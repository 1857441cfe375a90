"""Messages in REST bodies, and their conversion to the stored form according to the schema type. Pure.

The stored message equals the message of a client with the same schema.
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
"""Schema of a request without a schema."""


MAX_DIGITS = 64


class RestMessage(msgspec.Struct):
    """One message. Times are Unix milliseconds, 0 for none; numbers may be strings."""

    payload: str
    key: str = ""
    properties: dict[str, str] = {}
    eventTime: int | str = 0
    sequenceId: int | str = 0
    replicationClusters: list[str] = []
    deliverAt: int | str = 0
    deliverAfterMs: int | str = 0


class RestMessages(msgspec.Struct):
    """Body of a request to publish. A schema is the JSON text of a SchemaInfo."""

    messages: list[RestMessage]
    producerName: str = ""
    keySchema: str = ""
    valueSchema: str = ""
    schemaVersion: int | None = None


class PublishResult(msgspec.Struct, omit_defaults=True):
    """Result of one message: its position, or its partition and the error."""

    messageId: str
    errorCode: int
    schemaVersion: int
    errorMsg: str | None = None


class PublishResults(msgspec.Struct):
    """Results of all messages, in the order of the request."""

    messagePublishResults: list[PublishResult]
    schemaVersion: int


class _SchemaInfo(msgspec.Struct):
    type: str
    schema: str | None = None
    properties: dict[str, str] | None = None


def whole_number(value: int | str, name: str) -> int:
    """Return `value` as an integer from 0 to 2^63 - 1. Raises AdminError 400 otherwise; `name` is the JSON member in
    the error text.
    """
    try:
        number = int(value) if isinstance(value, int) or len(value) < MAX_DIGITS else -1
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise AdminError(
            400, f"The message field {name} is {str(value)[:MAX_DIGITS]!r}: expected an integer of 0 or more"
        )
    return number


def schema_of(text: str) -> SchemaData:
    """Return the schema in the JSON text of a SchemaInfo; DEFAULT_SCHEMA for "". Raises AdminError 400 for other text."""
    if not text:
        return DEFAULT_SCHEMA
    try:
        info = msgspec.json.decode(text, type=_SchemaInfo)
        data = _definition(info)
        schema = SchemaData(schema_type_named(info.type), data, dict(info.properties or {}))
    except (msgspec.DecodeError, RecursionError, InvalidSchema, ValueError) as error:
        raise AdminError(400, f"the schema in the request is not the JSON of a SchemaInfo: {error}") from error
    if schema.type is SchemaType.STRING and not schema.properties:
        return DEFAULT_SCHEMA
    return schema


def _definition(info: _SchemaInfo) -> bytes:
    return b64decode(info.schema or "", validate=True)


def key_value_schema(key: SchemaData, value: SchemaData) -> SchemaData:
    """Return the KEY_VALUE schema for messages whose key has its own schema. Key and value are stored separately."""
    properties = {"kv.encoding.type": "SEPARATED"}
    for side, schema in (("key", key), ("value", value)):
        properties[f"{side}.schema.name"] = ""
        properties[f"{side}.schema.type"] = "BYTES" if schema.type is SchemaType.NONE else schema.type.name
        properties[f"{side}.schema.properties"] = msgspec.json.encode(schema.properties).decode()
    return SchemaData(SchemaType.KEY_VALUE, join_key_value(key.data, value.data), properties)


Encoder = Callable[[str], bytes]


def encoder(schema: SchemaData) -> Encoder:
    """Return the function that converts a message's text to its payload. Raises AdminError 400 for schema types without
    a text form.
    """
    try:
        return _ENCODERS[schema.type]
    except KeyError:
        names = ", ".join("BYTES" if kind is SchemaType.NONE else kind.name for kind in _ENCODERS)
        raise AdminError(
            400, f"messages of schema type {schema.type.name} cannot be published over REST; use one of {names}"
        ) from None


def encoded(encode: Encoder, text: str, what: str) -> bytes:
    """Convert `text` with `encode`. Raises AdminError 400 if the text does not match the schema. `what` is "key" or
    "value" in the error text.
    """
    try:
        return encode(text)
    except (ValueError, struct.error, OverflowError, RecursionError) as error:
        raise AdminError(400, f"the {what} of a message does not match the schema: {error}") from error


def encoded_key(encode: Encoder, key: str) -> str:
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
    """Return the partition that a Java client selects for `key` by default."""
    units = memoryview(key.encode("utf-16-be", errors="surrogatepass")).cast("B")
    key_hash = 0
    for index in range(0, len(units), 2):
        key_hash = (31 * key_hash + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return (key_hash & 0x7FFFFFFF) % partitions
