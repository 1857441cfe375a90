"""An equal schema gets its existing version, independent of its JSON format. Checked with a Pulsar 4.2.4 broker."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from pybroker.schema.identity import schema_digest
from pybroker.schema.schema_data import AVRO_DEFINED_TYPES, SchemaData, SchemaType

ENUM = {"type": "enum", "name": "E", "symbols": ["X", "Y"]}
BASE: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "namespace": "p",
    "doc": "x",
    "fields": [{"name": "a", "type": "int", "default": 1}, {"name": "b", "type": ENUM}],
}


def changed(change: Callable[[Any, Any, Any], object]) -> str:
    """Return BASE after a change to it, to its first field or to its enum."""
    schema = copy.deepcopy(BASE)
    change(schema, schema["fields"][0], schema["fields"][1]["type"])
    return json.dumps(schema)


SAME = {
    "whitespace": json.dumps(BASE, indent=3),
    "order of keys": json.dumps(dict(reversed(list(BASE.items())))),
    "a comment": "/* who */" + json.dumps(BASE),
    "documentation": changed(lambda schema, _field, _enum: schema.update(doc="y")),
    "no documentation": changed(lambda schema, _field, _enum: schema.pop("doc")),
    "documentation of a field": changed(lambda _schema, field, _enum: field.update(doc="y")),
    "an alias": changed(lambda schema, _field, _enum: schema.update(aliases=["Q"])),
    "an alias of a field": changed(lambda _schema, field, _enum: field.update(aliases=["q"])),
    "an enum's default": changed(lambda _schema, _field, enum: enum.update(default="X")),
    "the usual sort order": changed(lambda _schema, field, _enum: field.update(order="ascending")),
    "a primitive written as an object": changed(lambda _schema, field, _enum: field.update(type={"type": "int"})),
    "the full name": changed(lambda schema, _field, _enum: (schema.pop("namespace"), schema.update(name="p.R"))),
    "a namespace repeated": changed(lambda _schema, _field, enum: enum.update(namespace="p")),
    "error instead of record": changed(lambda schema, _field, _enum: schema.update(type="error")),
    "a word that means nothing on a record": changed(lambda schema, _field, _enum: schema.update(size=1)),
}
OTHER = {
    "a property": changed(lambda schema, _field, _enum: schema.update(foo=1)),
    "a field's property": changed(lambda _schema, field, _enum: field.update(foo=1)),
    "another default": changed(lambda _schema, field, _enum: field.update(default=2)),
    "no default": changed(lambda _schema, field, _enum: field.pop("default")),
    "another sort order": changed(lambda _schema, field, _enum: field.update(order="descending")),
    "a logical type": changed(lambda _s, field, _e: field.update(type={"type": "int", "logicalType": "date"})),
    "another namespace": changed(lambda schema, _field, _enum: schema.update(namespace="q")),
    "another name": changed(lambda schema, _field, _enum: schema.update(name="Q")),
    "another order of fields": changed(lambda schema, _field, _enum: schema["fields"].reverse()),
    "another order of symbols": changed(lambda _schema, _field, enum: enum["symbols"].reverse()),
}


def same_schema(one: SchemaData, other: SchemaData) -> bool:
    return schema_digest(one) == schema_digest(other)


@pytest.mark.parametrize("schema_type", sorted(AVRO_DEFINED_TYPES))
@pytest.mark.parametrize("name", [*SAME, *OTHER])
def test_a_definition_is_the_same_schema_as_for_the_reference(schema_type: SchemaType, name: str) -> None:
    base = SchemaData(schema_type, json.dumps(BASE).encode())
    again = SchemaData(schema_type, (SAME | OTHER)[name].encode())
    assert same_schema(base, again) is (name in SAME)


def test_a_whole_number_and_its_fraction_are_different_defaults() -> None:
    def schema(default: float) -> SchemaData:
        field = {"name": "a", "type": "double", "default": default}
        return SchemaData(SchemaType.AVRO, json.dumps({"type": "record", "name": "R", "fields": [field]}).encode())

    assert not same_schema(schema(1), schema(1.0))


def test_the_type_is_part_of_the_schema_and_properties_are_not() -> None:
    data = json.dumps(BASE).encode()
    assert not same_schema(SchemaData(SchemaType.AVRO, data), SchemaData(SchemaType.JSON, data))
    assert not same_schema(SchemaData(SchemaType.STRING), SchemaData(SchemaType.INT32))
    assert same_schema(SchemaData(SchemaType.STRING, b"", {"a": "b"}), SchemaData(SchemaType.STRING))


def test_of_other_types_the_bytes_count() -> None:
    one = SchemaData(SchemaType.PROTOBUF_NATIVE, b'{"a":1}')
    assert not same_schema(one, SchemaData(SchemaType.PROTOBUF_NATIVE, b'{"a": 1}'))
    assert same_schema(one, SchemaData(SchemaType.PROTOBUF_NATIVE, b'{"a":1}'))


def test_a_definition_that_does_not_parse_is_the_same_only_as_its_own_bytes() -> None:
    broken = SchemaData(SchemaType.AVRO, b"{")
    assert same_schema(broken, broken)
    assert not same_schema(broken, SchemaData(SchemaType.AVRO, b"{ "))
