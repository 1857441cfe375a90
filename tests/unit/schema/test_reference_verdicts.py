"""Compatibility results equal those of a real Pulsar 4.2.4 broker, queried over REST.

`reference_verdicts.json`: pairs with one mark (+ or -) for each strategy, in the order of `STRATEGIES`.
`reference_validity.json`: definitions and whether the broker registered them. This module lists the intended
differences.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from pybroker.schema.compatibility import CompatibilityStrategy, check
from pybroker.schema.key_value import join_key_value
from pybroker.schema.schema_data import Incompatible, InvalidSchema, SchemaData, SchemaType, schema_type_named
from pybroker.schema.validation import validate

HERE = Path(__file__).parent
VERDICTS: list[dict[str, Any]] = json.loads((HERE / "reference_verdicts.json").read_text(encoding="utf-8"))
VALIDITY: list[dict[str, Any]] = json.loads((HERE / "reference_validity.json").read_text(encoding="utf-8"))
STRATEGIES = [
    CompatibilityStrategy.ALWAYS_COMPATIBLE,
    CompatibilityStrategy.ALWAYS_INCOMPATIBLE,
    CompatibilityStrategy.BACKWARD,
    CompatibilityStrategy.FORWARD,
    CompatibilityStrategy.FULL,
    CompatibilityStrategy.BACKWARD_TRANSITIVE,
    CompatibilityStrategy.FORWARD_TRANSITIVE,
    CompatibilityStrategy.FULL_TRANSITIVE,
]
# A record that defines its own name again inside: Pulsar only detects that the inner one is complete first.
STRICTER = {"AVRO redefine outer"}


def definition(text_or_object: Any) -> bytes:
    return (text_or_object if isinstance(text_or_object, str) else json.dumps(text_or_object)).encode()


def schema_of(document: dict[str, Any]) -> SchemaData:
    """Return a schema in REST form; the sides of a KEY_VALUE without types are plain bytes and lose their definition."""
    schema_type = schema_type_named(document["type"])
    properties = document.get("properties", {})
    if schema_type is not SchemaType.KEY_VALUE:
        return SchemaData(schema_type, definition(document["schema"]), properties)
    sides = document["schema"] if "key.schema.type" in properties else {"key": "", "value": ""}
    data = join_key_value(definition(sides["key"]), definition(sides["value"]))
    return SchemaData(schema_type, data, properties)


def is_accepted(strategy: CompatibilityStrategy, existing: list[SchemaData], new: SchemaData) -> bool:
    try:
        check(strategy, existing, new)
    except Incompatible:
        return False
    return True


@pytest.mark.parametrize("case", VERDICTS, ids=lambda case: case["name"])
def test_a_pair_gets_the_verdicts_of_the_reference(case: dict[str, Any]) -> None:
    existing = [schema_of(document) for document in case["existing"]]
    new = schema_of(case["new"])
    for schema in (*existing, new):
        validate(schema)
    verdicts = "".join("+" if is_accepted(strategy, existing, new) else "-" for strategy in STRATEGIES)
    assert verdicts == case["verdicts"]


@pytest.mark.parametrize("case", VALIDITY, ids=lambda case: case["name"])
def test_a_definition_is_accepted_where_the_reference_accepts_it(case: dict[str, Any]) -> None:
    schema = SchemaData(SchemaType[case["type"]], case["schema"].encode())
    if case["accepted"] and case["name"] not in STRICTER:
        validate(schema)
    else:
        with pytest.raises(InvalidSchema):
            validate(schema)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_first_schema_of_a_topic_is_always_accepted(strategy: CompatibilityStrategy) -> None:
    check(strategy, [], SchemaData(SchemaType.STRING))
