"""REST format of KEY_VALUE schemas: one JSON object with the definitions of both sides.

    {"key": <definition>, "value": <definition>}

An Avro definition is a JSON object, a missing definition an empty string, a nested KEY_VALUE schema an object of this
format.
"""

from __future__ import annotations

import json

from pybroker.schema.json_text import JsonValue, parse_json
from pybroker.schema.key_value import join_key_value, split_key_value
from pybroker.schema.schema_data import InvalidSchema, SchemaData, SchemaType


def key_value_text(schema: SchemaData) -> str:
    return _text(_shown(schema))


def key_value_data(text: str) -> bytes:
    given = parse_json(text.encode(errors="surrogatepass"))
    if not isinstance(given, dict) or not {"key", "value"} <= given.keys():
        raise InvalidSchema(
            'the definition of a KEY_VALUE schema must be a JSON object {"key": ..., "value": ...} with both '
            "definitions"
        )
    return join_key_value(_definition(given["key"]), _definition(given["value"]))


def _shown(schema: SchemaData) -> JsonValue:
    if schema.type is SchemaType.KEY_VALUE:
        sides = split_key_value(schema)
        return {"key": _shown(sides.key), "value": _shown(sides.value)}
    return parse_json(schema.data) if schema.data else ""


def _definition(side: JsonValue) -> bytes:
    return b"" if side == "" else _text(side).encode(errors="surrogatepass")


def _text(value: JsonValue) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
