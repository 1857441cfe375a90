"""Check of field defaults that replace values missing in the writer's schema.

The rules are the same as in Avro's Java library, on which clients rely. They are less strict than the specification: a
number fits every numeric type, an object in place of an array means its values, and a union takes the first branch of
the default's JSON kind.
"""

from __future__ import annotations

from pybroker.schema.avro import AvroField, AvroType, NoDefault
from pybroker.schema.json_text import JsonValue, canonical_json

_MAX_DEPTH = 100
_NUMBERS = frozenset({"int", "long", "float", "double"})
_TEXTS = frozenset({"string", "bytes", "fixed"})


class DefaultCheck:
    """Checks defaults, each at most once.

    A record's default may omit fields that have defaults, so checks nest. Results are cached, because defaults that
    refer to each other would otherwise take exponential time.
    """

    def __init__(self) -> None:
        self._checked: dict[int, str | None] = {}

    def problem_of_field(self, avro_field: AvroField, avro_type: AvroType, depth: int = 0) -> str | None:
        if isinstance(avro_field.default, NoDefault):
            return f"field {avro_field.name!r} has no default"
        key = id(avro_field)
        if key not in self._checked:
            # If a nested check reaches this field again, its default is infinite.
            self._checked[key] = f"the default of field {avro_field.name!r} contains itself"
            self._checked[key] = self._problem(avro_type, avro_field.default, depth + 1)
        return self._checked[key]

    def _problem(self, avro_type: AvroType, value: JsonValue, depth: int) -> str | None:
        if depth > _MAX_DEPTH:
            return f"the default nests deeper than {_MAX_DEPTH} levels"
        kind = avro_type.kind
        if kind == "record":
            return self._record_problem(avro_type, value, depth)
        if kind == "union":
            branch = next((branch for branch in avro_type.children if _is_of_kind(branch.kind, value)), None)
            if branch is None:
                return f"default {_shown(value)} fits no branch of {avro_type}"
            return self._problem(branch, value, depth + 1)
        if kind in {"array", "map"}:
            if kind == "map" and isinstance(value, list) and value:
                return f"default {_shown(value)} is not a map"
            items = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
            problems = (self._problem(avro_type.children[0], item, depth + 1) for item in items)
            return next((problem for problem in problems if problem), None)
        fits = _is_of_kind(kind, value) and (kind != "enum" or value in avro_type.symbols)
        return None if fits else f"default {_shown(value)} is not of type {avro_type}"

    def _record_problem(self, record: AvroType, value: JsonValue, depth: int) -> str | None:
        given = value if isinstance(value, dict) else {}
        for avro_field, avro_type in zip(record.fields, record.children, strict=True):
            if avro_field.name in given:
                problem = self._problem(avro_type, given[avro_field.name], depth + 1)
            else:
                problem = self.problem_of_field(avro_field, avro_type, depth)
            if problem:
                return problem
        return None


def _is_of_kind(kind: str, value: JsonValue) -> bool:
    if value is None:
        return kind == "null"
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind in _NUMBERS
    if isinstance(value, str):
        return kind in _TEXTS or kind == "enum"
    return kind == "array" if isinstance(value, list) else kind in {"map", "record"}


def _shown(value: JsonValue) -> str:
    text = canonical_json(value)
    return text if len(text) <= 60 else text[:57] + "..."
