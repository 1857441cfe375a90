"""Parser of untrusted JSON, with limits of size and nesting.

It returns a value or raises `InvalidSchema`, in linear time. The standard parser recurses per nesting level, so levels
are counted first.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

from pybroker.schema.schema_data import InvalidSchema

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

MAX_DEFINITION_BYTES = 1024 * 1024
MAX_NESTING = 200  # below a third of the recursion limit: a definition needs up to three frames per level

# Unterminated strings and comments match to the end, so that no character is scanned twice.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|/\*|//[^\n]*|[\[\]{}]', re.DOTALL)


def parse_json(data: bytes) -> JsonValue:
    """Parse JSON. Comments are accepted, as in Avro's parser; NaN and Infinity are not. Raises InvalidSchema."""
    if len(data) > MAX_DEFINITION_BYTES:
        raise InvalidSchema(
            f"the definition of the schema has {len(data)} bytes, more than the limit of {MAX_DEFINITION_BYTES}"
        )
    text = _without_comments(data.decode("utf-8", errors="replace"))
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise InvalidSchema(f"the definition of the schema is not JSON: {error}") from None
    return value


def _without_comments(text: str) -> str:
    parts: list[str] = []
    kept_to = position = depth = 0
    while (match := _TOKEN.search(text, position)) is not None:
        token = match.group()
        position = match.end()
        if token[0] in "[{":
            depth += 1
            if depth > MAX_NESTING:
                raise InvalidSchema(f"the schema definition is nested deeper than {MAX_NESTING} levels")
        elif token[0] in "]}":
            depth -= 1
        elif token[0] == "/":
            if token == "/*":
                end = text.find("*/", position)
                if end < 0:
                    raise InvalidSchema("the definition of the schema is not JSON: a comment has no end (*/)")
                position = end + 2
            parts.append(text[kept_to : match.start()])
            parts.append(" ")
            kept_to = position
    parts.append(text[kept_to:])
    return "".join(parts)


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not a JSON number")


def canonical_json(value: JsonValue) -> str:
    """Return JSON text that is the same for equal values: key order does not matter; `1` and `1.0` differ."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
