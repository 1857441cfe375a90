"""KEY_VALUE schemas in REST."""

from __future__ import annotations

import json

import pytest
from tests.support.schemas import V1, V2

from pybroker.schema.key_value import join_key_value, split_key_value
from pybroker.schema.key_value_text import key_value_data, key_value_text
from pybroker.schema.schema_data import InvalidSchema, SchemaData, SchemaType

TYPES = {"key.schema.type": "AVRO", "value.schema.type": "JSON"}


def test_a_definition_is_shown_as_json_and_one_that_is_empty_as_an_empty_text() -> None:
    schema = SchemaData(SchemaType.KEY_VALUE, join_key_value(b"", V1.encode()), {"key.schema.type": "STRING"})
    assert json.loads(key_value_text(schema)) == {"key": "", "value": json.loads(V1)}


def test_what_is_shown_is_taken_again() -> None:
    data = key_value_data(json.dumps({"key": json.loads(V1), "value": json.loads(V2)}))
    sides = split_key_value(SchemaData(SchemaType.KEY_VALUE, data, TYPES))
    assert [json.loads(sides.key.data), json.loads(sides.value.data)] == [json.loads(V1), json.loads(V2)]
    assert key_value_data(key_value_text(SchemaData(SchemaType.KEY_VALUE, data, TYPES))) == data


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"key": ""}', '{"value": {}}', "null"])
def test_anything_but_an_object_of_both_sides_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema):
        key_value_data(text)
