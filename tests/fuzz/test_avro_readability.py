"""Whether one schema reads another is what fastavro finds when it reads: for generated pairs, data of every branch.

Left out of the generated pairs is what Java's library, whose verdicts we follow, and fastavro see differently: renamed
types, symbols that the reader's enum lacks, and defaults that do not fit their type.
"""

import io
import json
from collections.abc import Callable
from itertools import count
from typing import Any

import fastavro
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pybroker.schema.avro import AvroField, AvroType, parse_avro
from pybroker.schema.compatibility import avro_resolution
from pybroker.schema.compatibility.avro_default import DefaultCheck
from pybroker.schema.compatibility.avro_resolution import find_problem

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
SAMPLES: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True],
    "int": [7],
    "long": [2**40],
    "float": [0.5],
    "double": [0.25],
    "bytes": [b"ab"],
    "string": ["cd"],
}
DEFAULTS: dict[str, Any] = {
    "null": None,
    "boolean": False,
    "int": 1,
    "long": 1,
    "float": 1.5,
    "double": 1.5,
    "bytes": "a",
    "string": "a",
    "array": [],
    "map": {},
}


def kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return str(schema["type"] if isinstance(schema, dict) else schema)


@st.composite
def types(draw: st.DrawFn, numbers: Any, depth: int = 3, *, in_union: bool = False) -> Any:
    kinds = list(PRIMITIVES)
    if depth > 0:
        kinds += ["record", "record", "array", "map", "fixed", "enum"] + ([] if in_union else ["union", "union"])
    chosen = draw(st.sampled_from(kinds))
    if chosen in PRIMITIVES:
        return chosen
    if chosen in {"array", "map"}:
        return {"type": chosen, ("items" if chosen == "array" else "values"): draw(types(numbers, depth - 1))}
    if chosen == "union":
        branches = draw(st.lists(types(numbers, depth - 1, in_union=True), min_size=1, max_size=4))
        return list({kind(branch): branch for branch in branches}.values())
    name = f"N{next(numbers)}"
    if chosen == "fixed":
        return {"type": "fixed", "name": name, "size": 2}
    if chosen == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B"]}
    return {"type": "record", "name": name, "fields": draw(fields(numbers, depth - 1))}


@st.composite
def fields(draw: st.DrawFn, numbers: Any, depth: int) -> list[dict[str, Any]]:
    names = draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=3))
    return [draw(field_of(name, draw(types(numbers, depth)))) for name in names]


@st.composite
def field_of(draw: st.DrawFn, name: str, schema: Any) -> dict[str, Any]:
    first = schema[0] if isinstance(schema, list) else schema
    if kind(first) in DEFAULTS and draw(st.booleans()):
        return {"name": name, "type": schema, "default": DEFAULTS[kind(first)]}
    return {"name": name, "type": schema}


@st.composite
def evolved(draw: st.DrawFn, schema: Any, numbers: Any, *, in_union: bool = False) -> Any:
    """The schema after changes such as people make: most keep data readable one way, some neither way."""
    if draw(st.integers(0, 9)) == 0:
        return draw(types(numbers, 0, in_union=in_union))
    if isinstance(schema, list):
        branches = [draw(evolved(branch, numbers, in_union=True)) for branch in schema]
        change = draw(st.sampled_from(["keep", "reverse", "drop", "add", "single"]))
        if change == "reverse":
            branches.reverse()
        elif change == "drop" and len(branches) > 1:
            branches.pop()
        elif change == "add":
            branches.append(draw(st.sampled_from(PRIMITIVES)))
        elif change == "single":
            return branches[0]
        return list({kind(branch): branch for branch in branches}.values())
    if kind(schema) == "record":
        kept = [field for field in schema["fields"] if draw(st.integers(0, 4)) > 0]
        changed = [draw(field_of(field["name"], draw(evolved(field["type"], numbers)))) for field in kept]
        if draw(st.booleans()):
            changed.append(draw(field_of("z", draw(types(numbers, 1)))))
        return {**schema, "fields": changed}
    if kind(schema) in {"array", "map"}:
        key = "items" if kind(schema) == "array" else "values"
        return {**schema, key: draw(evolved(schema[key], numbers))}
    if kind(schema) == "enum":
        return {**schema, "symbols": ["A", "B", *draw(st.sampled_from([[], ["C"]]))]}
    if kind(schema) == "fixed":
        return {**schema, "size": draw(st.sampled_from([2, 2, 3]))}
    wider = draw(st.sampled_from([schema, schema, *PRIMITIVES]))
    return wider if in_union or draw(st.booleans()) else list(dict.fromkeys(["null", wider]))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    numbers = count()
    writer = {"type": "record", "name": "Root", "fields": draw(fields(numbers, 3))}
    reader = {"type": "record", "name": "Root", "fields": draw(evolved_fields(writer["fields"], numbers))}
    return reader, writer


@st.composite
def evolved_fields(draw: st.DrawFn, before: Any, numbers: Any) -> Any:
    kept = [draw(field_of(field["name"], draw(evolved(field["type"], numbers)))) for field in before]
    return [*kept, *([draw(field_of("z", draw(types(numbers, 1))))] if draw(st.booleans()) else [])]


def samples(schema: Any) -> list[Any]:
    """Data that together visit every branch of every union."""
    if isinstance(schema, list):
        return [(branch_name(branch), datum) for branch in schema for datum in samples(branch)]
    chosen = kind(schema)
    if chosen == "array":
        return [samples(schema["items"])]
    if chosen == "map":
        return [{str(index): datum for index, datum in enumerate(samples(schema["values"]))}]
    if chosen == "fixed":
        return [b"x" * schema["size"]]
    if chosen == "enum":
        return ["A"]
    if chosen == "record":
        columns = {field["name"]: samples(field["type"]) for field in schema["fields"]}
        rows = max((len(column) for column in columns.values()), default=1)
        return [{name: column[row % len(column)] for name, column in columns.items()} for row in range(rows)]
    return SAMPLES[chosen]


def branch_name(branch: Any) -> str:
    return str(branch.get("name", branch["type"]) if isinstance(branch, dict) else branch)


def reads_everything(reader: Any, writer: Any) -> bool:
    """Whether fastavro reads each sample; its errors for data that does not fit are of several kinds."""
    parsed_writer, parsed_reader = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    for datum in samples(writer):
        written = io.BytesIO()
        fastavro.schemaless_writer(written, parsed_writer, datum)
        written.seek(0)
        try:
            fastavro.schemaless_reader(written, parsed_writer, parsed_reader)
        except Exception:  # noqa: BLE001
            return False
    return True


def verdict_is_true(pair: tuple[Any, Any]) -> None:
    reader, writer = pair
    problem = find_problem(
        reader=parse_avro(json.dumps(reader).encode()), writer=parse_avro(json.dumps(writer).encode())
    )
    assert (problem is None) is reads_everything(reader, writer), problem


QUICK = settings(max_examples=150, derandomize=True, database=None, deadline=None)


@QUICK
@given(pairs())
def test_a_pair_is_declared_readable_exactly_when_it_is(pair: tuple[Any, Any]) -> None:
    verdict_is_true(pair)


def no_default_needed(self: DefaultCheck, avro_field: AvroField, avro_type: AvroType, depth: int = 0) -> str | None:
    return None


def only_the_first_branch(self: Any, reader: AvroType, writer: AvroType, path: str) -> None:
    self._waiting.extend((reader, branch, path) for branch in writer.children[:1])


def any_branch(self: Any, union: AvroType, writer: AvroType, depth: int) -> AvroType:
    return union.children[0]


def items_unseen(self: Any, reader: AvroType, writer: AvroType, path: str) -> Any:
    return None if reader.kind in {"array", "map"} else COMPARE(self, reader, writer, path)


COMPARE = avro_resolution._Resolution._compare
RESOLUTION = avro_resolution._Resolution
NARROWING = avro_resolution._PROMOTIONS | {"long": ("int", "float", "double")}
NO_WIDENING = avro_resolution._PROMOTIONS | {"int": ("long",)}


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (avro_resolution, "_PROMOTIONS", NARROWING),
        (avro_resolution, "_PROMOTIONS", NO_WIDENING),
        (DefaultCheck, "problem_of_field", no_default_needed),
        (RESOLUTION, "_queue_branches", only_the_first_branch),
        (RESOLUTION, "_matching_branch", any_branch),
        (RESOLUTION, "_compare", items_unseen),
    ],
    ids=["narrowing", "no-widening", "defaults-unneeded", "first-branch-only", "any-branch", "items-unseen"],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, bug: Any) -> None:
    monkeypatch.setattr(owner, name, bug)
    search: Callable[[], None] = settings(QUICK, max_examples=600, phases=[Phase.generate])(
        given(pairs())(verdict_is_true)
    )
    with pytest.raises(AssertionError):
        search()
