"""Parser of untrusted JSON with limits.

Returns a value or raises `InvalidSchema`, in linear time. The standard parser recurses for each level of nesting, so
the levels are counted first.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

from pybroker.schema.schema_data import InvalidSchema

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

MAX_DEFINITION_BYTES = 1024 * 1024
MAX_NESTING = 200  # recursion over a definition needs up to three frames per level

# An unterminated string or comment matches up to the end, so that nothing is scanned twice.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|/\*|//[^\n]*|[\[\]{}]', re.DOTALL)


def parse_json(data: bytes) -> JsonValue:
    """Comments are allowed, as in Avro's own parser; constants such as NaN are not."""
    if len(data) > MAX_DEFINITION_BYTES:
        raise InvalidSchema(f"definition of {len(data)} bytes, the limit is {MAX_DEFINITION_BYTES}")
    text = _without_comments(data.decode("utf-8", errors="replace"))
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise InvalidSchema(f"not JSON: {error}") from None
    return value


def _without_comments(text: str) -> str:
    """Blank out comments and check the nesting depth."""
    parts: list[str] = []
    kept_to = position = depth = 0
    while (match := _TOKEN.search(text, position)) is not None:
        token = match.group()
        position = match.end()
        if token[0] in "[{":
            depth += 1
            if depth > MAX_NESTING:
                raise InvalidSchema(f"definition nested deeper than {MAX_NESTING} levels")
        elif token[0] in "]}":
            depth -= 1
        elif token[0] == "/":
            if token == "/*":
                end = text.find("*/", position)
                if end < 0:
                    raise InvalidSchema("not JSON: a comment does not end")
                position = end + 2
            parts.append(text[kept_to : match.start()])
            parts.append(" ")
            kept_to = position
    parts.append(text[kept_to:])
    return "".join(parts)


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not a JSON number")


def canonical_json(value: JsonValue) -> str:
    """Return the same text for equal values: the order of keys does not matter, `1` and `1.0` differ."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
