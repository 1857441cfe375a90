"""A refusal names path, both sides, and rule; existing bytes are no change."""

import json
from typing import Any

import pytest

from pybroker.errors import BrokerError
from pybroker.schema.compatibility import CompatibilityStrategy, check
from pybroker.schema.key_value import join_key_value
from pybroker.schema.schema_data import Incompatible, InvalidSchema, SchemaData, SchemaType

BACKWARD = CompatibilityStrategy.BACKWARD
FORWARD = CompatibilityStrategy.FORWARD


def avro(definition: Any) -> SchemaData:
    return SchemaData(SchemaType.AVRO, json.dumps(definition).encode())


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": value} for key, value in fields]}


def refusal(strategy: CompatibilityStrategy, existing: list[SchemaData], new: SchemaData) -> str:
    with pytest.raises(Incompatible) as refused:
        check(strategy, existing, new)
    return str(refused.value)


def test_a_refusal_names_the_path_both_sides_and_the_rule() -> None:
    old = avro(record(("user", record(("age", "string"), name="User"))))
    new = avro(record(("user", record(("age", "int"), name="User"))))
    assert refusal(BACKWARD, [old], new) == (
        'field "user.age": reader (new) int, writer (existing) string: no promotion from string to int (BACKWARD)'
    )
    assert refusal(FORWARD, [old], new) == (
        'field "user.age": reader (existing) string, writer (new) int: no promotion from int to string (FORWARD)'
    )


def test_a_path_leads_through_items_values_and_branches() -> None:
    def nested(leaf: str) -> SchemaData:
        values = {"type": "map", "values": ["null", record(("x", leaf), name="Leaf")]}
        return avro(record(("a", {"type": "array", "items": values})))

    assert refusal(BACKWARD, [nested("int")], nested("string")).startswith('field "a[]{}.x": reader (new) string')


def test_a_missing_default_is_named() -> None:
    text = refusal(BACKWARD, [avro(record(("a", "int")))], avro(record(("a", "int"), ("b", "int"))))
    assert text == (
        'field "b": reader (new) int, writer (existing) without the field: the reader\'s field has no default (BACKWARD)'
    )


def test_a_transitive_refusal_says_which_of_the_schemas_it_is() -> None:
    existing = [avro(record(("a", "string"))), avro(record(("a", "int")))]
    text = refusal(CompatibilityStrategy.BACKWARD_TRANSITIVE, existing, avro(record(("a", "long"))))
    assert text.endswith("no promotion from string to long (BACKWARD_TRANSITIVE, schema 1 of 2)")


def test_a_refusal_of_one_side_of_a_key_value_says_which() -> None:
    properties = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}

    def key_value(value: Any) -> SchemaData:
        return SchemaData(SchemaType.KEY_VALUE, join_key_value(b"", json.dumps(value).encode()), properties)

    text = refusal(BACKWARD, [key_value(record(("a", "long")))], key_value(record(("a", "int"))))
    assert text.startswith('value: field "a": reader (new) int, writer (existing) long')


def test_a_change_of_type_is_named() -> None:
    assert refusal(BACKWARD, [avro("int")], SchemaData(SchemaType.STRING)) == (
        "schema type: existing AVRO, new STRING: the change needs the strategy ALWAYS_COMPATIBLE (BACKWARD)"
    )


def test_the_bytes_that_are_there_already_are_accepted_even_when_nothing_new_is() -> None:
    old, newest = avro(record(("a", "string"))), avro(record(("a", "int")))
    check(CompatibilityStrategy.ALWAYS_INCOMPATIBLE, [old, newest], newest)
    refusal(CompatibilityStrategy.ALWAYS_INCOMPATIBLE, [old, newest], old)


def test_an_existing_schema_that_does_not_parse_is_said_to_be_the_reason() -> None:
    broken = SchemaData(SchemaType.AVRO, b"{")
    assert refusal(BACKWARD, [broken], avro("int")).startswith(
        "the existing schema cannot be read: the definition of the schema is not JSON"
    )
    with pytest.raises(InvalidSchema):
        check(BACKWARD, [avro("int")], broken)


@pytest.mark.parametrize("error_type", [Incompatible, InvalidSchema])
def test_clients_see_one_code_for_both_refusals(error_type: type[BrokerError]) -> None:
    assert error_type.code == 18


def test_rest_tells_a_wrong_definition_from_one_that_does_not_fit() -> None:
    assert (InvalidSchema.http_status, Incompatible.http_status) == (422, 409)


def test_mutually_recursive_unions_are_compared_once_for_each_pair() -> None:
    """Twelve records with a union of all of them: without a cache, the comparison would never end."""
    names = [f"R{number}" for number in range(12)]

    def schema(leaf: str) -> SchemaData:
        records: list[Any] = [record(("next", ["null", *names]), ("leaf", leaf), name=name) for name in names]
        return avro(record(("all", records), name="Root"))

    check(CompatibilityStrategy.FULL_TRANSITIVE, [schema("int")], schema("int"))
    check(BACKWARD, [schema("int")], schema("long"))
    refusal(BACKWARD, [schema("int")], schema("string"))
