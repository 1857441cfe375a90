"""Messages of REST requests in their stored form."""

import json
import struct
from base64 import b64encode

import pytest

from pybroker.admin.entries.rest_message import (
    DEFAULT_SCHEMA,
    encoded,
    encoded_key,
    encoder,
    key_value_schema,
    partition_of_key,
    schema_of,
    whole_number,
)
from pybroker.errors import AdminError
from pybroker.schema.key_value import split_key_value
from pybroker.schema.schema_data import SchemaData, SchemaType


def info(kind: str, definition: bytes = b"") -> str:
    return json.dumps({"name": "", "type": kind, "schema": b64encode(definition).decode(), "properties": {}})


def test_a_message_without_a_schema_is_a_string() -> None:
    assert schema_of("") == DEFAULT_SCHEMA == schema_of(info("STRING"))


def test_a_definition_is_base64_in_a_schema_info() -> None:
    definition = b'{"type":"record","name":"R","fields":[]}'
    assert schema_of(info("JSON", definition)) == SchemaData(SchemaType.JSON, definition)


@pytest.mark.parametrize("text", ["no json", "[]", '{"type":"WHAT"}', '{"type":"JSON","schema":"%"}', "{}", "[" * 5000])
def test_what_is_no_schema_info_is_refused(text: str) -> None:
    with pytest.raises(AdminError) as refused:
        schema_of(text)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("kind", "text", "stored"),
    [
        ("BYTES", "é", "é".encode()),
        ("STRING", "x", b"x"),
        ("JSON", '{"a": 1}', b'{"a": 1}'),
        ("BOOLEAN", "True", b"\x01"),
        ("BOOLEAN", "no", b"\x00"),
        ("INT8", "-1", b"\xff"),
        ("INT16", "258", b"\x01\x02"),
        ("INT32", "17", b"\x00\x00\x00\x11"),
        ("INT64", "17", b"\x00" * 7 + b"\x11"),
        ("FLOAT", "1.5", struct.pack(">f", 1.5)),
        ("DOUBLE", "1.5", struct.pack(">d", 1.5)),
    ],
)
def test_a_payload_is_stored_as_clients_of_its_type_store_it(kind: str, text: str, stored: bytes) -> None:
    assert encoded(encoder(schema_of(info(kind))), text, "payload") == stored


@pytest.mark.parametrize(
    ("kind", "text"),
    [("INT8", "128"), ("INT32", "x"), ("INT64", "1" * 5000), ("FLOAT", "1e300"), ("JSON", "{"), ("JSON", "[" * 5000)],
)
def test_a_payload_that_is_not_of_its_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(AdminError) as refused:
        encoded(encoder(schema_of(info(kind))), text, "payload")
    assert refused.value.status == 400


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(AdminError):
        encoded(encoder(DEFAULT_SCHEMA), "\ud800", "payload")


def test_types_without_a_text_are_refused_by_name() -> None:
    with pytest.raises(AdminError, match="AVRO cannot be published over REST; use one of BYTES, STRING"):
        encoder(SchemaData(SchemaType.AVRO, b'"int"'))


def test_a_key_of_its_own_schema_travels_in_base64_beside_the_value() -> None:
    schema = key_value_schema(SchemaData(SchemaType.INT8), SchemaData(SchemaType.JSON, b"{}"))
    sides = split_key_value(schema)
    assert (sides.key.type, sides.value) == (SchemaType.INT8, SchemaData(SchemaType.JSON, b"{}"))
    assert schema.properties["kv.encoding.type"] == "SEPARATED"
    assert encoded_key(encoder(sides.key), "1") == b64encode(b"\x01").decode()


@pytest.mark.parametrize("value", [5, "5"])
def test_numbers_may_be_written_as_text(value: int | str) -> None:
    assert whole_number(value, "eventTime") == 5


@pytest.mark.parametrize("value", ["x", "", -1, 1 << 63, "9" * 10_000])
def test_numbers_that_cannot_be_stored_are_refused(value: int | str) -> None:
    with pytest.raises(AdminError, match="eventTime is"):
        whole_number(value, "eventTime")


def test_a_key_goes_where_a_java_client_sends_it() -> None:
    # Hashes of java.lang.String; the last one is negative before its sign is dropped.
    assert partition_of_key("a", 1000) == 97
    assert partition_of_key("hello", 1000) == 99_162_322 % 1000
    assert partition_of_key("polygenelubricants", 1000) == (0x80000000 & 0x7FFFFFFF) % 1000
    assert partition_of_key("\U0001f600", 7) == (31 * 0xD83D + 0xDE00) % 7
