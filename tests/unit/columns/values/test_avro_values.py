"""AVRO payloads become columns: what another library wrote is read the same, and hostile bytes cost only themselves."""

import struct
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.payloads import EXAMPLES, avro_bytes, decode, errors, record, rows, schema

from pybroker.columns.values import avro_shapes
from pybroker.columns.values.avro_shapes import MAX_EMPTY_ITEMS
from pybroker.columns.values.unreadable import UnreadableSchema

NAMES = [f"f{index}" for index in range(5)]
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": st.text("aé€😀\n\0", max_size=20),
}


@st.composite
def avro_type(draw: st.DrawFn, depth: int, counter: list[int]) -> tuple[Any, st.SearchStrategy[Any]]:
    """A definition and values of it. No union but with null: those are tested by themselves."""
    kinds = [*PRIMITIVES, "enum", "fixed"]
    if depth:
        kinds += ["array", "map", "record", "nullable"] * 2
    kind = draw(st.sampled_from(kinds))
    if kind in PRIMITIVES:
        return kind, PRIMITIVES[kind]
    counter[0] += 1
    if kind == "enum":
        return {"type": "enum", "name": f"E{counter[0]}", "symbols": ["A", "B", "C"]}, st.sampled_from(["A", "B", "C"])
    if kind == "fixed":
        size = draw(st.integers(1, 9))
        return {"type": "fixed", "name": f"F{counter[0]}", "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "record":
        return draw(record_type(depth - 1, counter))
    inner, values = draw(avro_type(depth - 1, counter))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    if kind == "map":
        return {"type": "map", "values": inner}, st.dictionaries(st.text("abc", max_size=3), values, max_size=3)
    if isinstance(inner, list):
        return inner, values
    return ["null", inner], st.none() | values


@st.composite
def record_type(draw: st.DrawFn, depth: int, counter: list[int]) -> tuple[Any, st.SearchStrategy[Any]]:
    counter[0] += 1
    name = f"R{counter[0]}"
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    fields = [(each, *draw(avro_type(depth, counter))) for each in names]
    values = st.fixed_dictionaries({each: value for each, _, value in fields})
    return record(*((each, kind) for each, kind, _ in fields), name=name), values


@st.composite
def payloads(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    definition, values = draw(record_type(3, [0]))
    return definition, draw(st.lists(values, min_size=1, max_size=6))


@EXAMPLES
@given(payloads(), st.sampled_from([1, 50]))
def test_what_another_library_writes_is_read_the_same(written: tuple[Any, list[Any]], times: int) -> None:
    definition, values = written
    values = values * times
    table = decode(schema("AVRO", definition), [avro_bytes(definition, value) for value in values])
    assert rows(table) == values


@EXAMPLES
@given(payloads(), st.data())
def test_damaged_payloads_are_read_one_by_one_as_in_a_batch_and_harm_no_other(
    written: tuple[Any, list[Any]], data: st.DataObject
) -> None:
    definition, values = written
    whole = [avro_bytes(definition, value) for value in values]
    hurt = [data.draw(damaged(payload)) for payload in whole]
    info = schema("AVRO", definition)
    mixed = [payload for pair in zip(whole, hurt, strict=True) for payload in pair] * 40
    together = decode(info, mixed).to_pylist()
    singly = [decode(info, [payload]).to_pylist()[0] for payload in mixed[: 2 * len(whole)]]
    # As text: NaN is not equal to itself.
    assert [str(row) for row in together] == [str(row) for row in singly * 40]
    assert [row["__error"] for row in together[0::2]] == [None] * (len(mixed) // 2)


@st.composite
def damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    hurt = bytearray(payload or b"\0")
    match draw(st.sampled_from(["cut", "change", "more", "random"])):
        case "cut":
            del hurt[draw(st.integers(0, len(hurt))) :]
        case "change":
            for _ in range(draw(st.integers(1, 3))):
                hurt[draw(st.integers(0, len(hurt) - 1))] = draw(st.integers(0, 255))
        case "more":
            hurt += draw(st.binary(min_size=1, max_size=4))
        case _:
            hurt = bytearray(draw(st.binary(max_size=40)))
    return bytes(hurt)


ALL_LOGICAL = record(
    ("date", {"type": "int", "logicalType": "date"}),
    ("millis", {"type": "long", "logicalType": "timestamp-millis"}),
    ("micros", {"type": "long", "logicalType": "timestamp-micros"}),
    ("local", {"type": "long", "logicalType": "local-timestamp-millis"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("wide", {"type": "fixed", "name": "W", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 0}),
    ("time", {"type": "int", "logicalType": "time-millis"}),
    ("id", {"type": "string", "logicalType": "uuid"}),
    ("other", {"type": "string", "logicalType": "no-such-type"}),
)


def test_logical_types_become_the_columns_that_the_scala_connector_has() -> None:
    moment = datetime(2024, 2, 29, 12, 30, 0, 5000, tzinfo=UTC)
    written = {
        "date": date(1969, 12, 31),
        "millis": moment,
        "micros": moment,
        "local": moment.replace(tzinfo=None),
        "price": Decimal("-1234567.89"),
        "wide": Decimal("9" * 38),
        "time": 1000,
        "id": "0f4d8c9e-4a5f-4f0f-8f0a-0123456789ab",
        "other": "x",
    }
    table = decode(schema("AVRO", ALL_LOGICAL), [avro_bytes(ALL_LOGICAL, written)])
    assert rows(table) == [written]
    assert table.schema.field("price").type == pa.decimal128(9, 2)
    assert table.schema.field("millis").type == table.schema.field("micros").type == pa.timestamp("us", "UTC")


def test_a_decimal_with_more_digits_than_its_type_is_a_bad_record() -> None:
    definition = record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}))
    payloads = [b"\x04\x03\xe7", b"\x04\x03\xe8", b"\x04\xfc\x19", b"\x00", b"\x24" + b"\x01" * 18]
    table = decode(schema("AVRO", definition), payloads)
    assert table.column("d").to_pylist() == [Decimal("99.9"), None, Decimal("-99.9"), Decimal("0.0"), None]
    assert [bool(reason) for reason in errors(table)] == [False, True, False, False, True]


def test_a_union_of_several_types_becomes_a_struct_of_members() -> None:
    definition = record(
        ("u", ["null", "string", "long", record(("a", "int"), name="In")]),
        ("n", ["int", "long"]),
        ("f", ["float", "null", "double"]),
    )
    written = [
        {"u": None, "n": 1, "f": None},
        {"u": "x", "n": 2**40, "f": 0.5},
        {"u": 7, "n": 1, "f": 0.1},
        {"u": {"a": 3}, "n": 1, "f": 0.5},
    ]
    table = decode(schema("AVRO", definition), [avro_bytes(definition, value) for value in written] * 50)
    got = rows(table)
    nothing = {"member0": None, "member1": None, "member2": None}
    assert [row["u"] for row in got[:4]] == [
        None,
        {**nothing, "member0": "x"},
        {**nothing, "member1": 7},
        {**nothing, "member2": {"a": 3}},
    ]
    assert [row["n"] for row in got[:4]] == [1, 2**40, 1, 1]
    assert table.schema.field("n").type == pa.int64()
    assert table.schema.field("f").type == pa.float64()


def test_a_definition_that_is_no_record_is_one_column() -> None:
    table = decode(schema("AVRO", {"type": "array", "items": "long"}), [b"\x04\x02\x04\x00", None])
    assert rows(table) == [{"value": [1, 2]}, {"value": None}]


def test_a_null_payload_is_a_row_of_nulls_and_no_bad_record() -> None:
    definition = record(("a", "int"), ("b", "string"))
    table = decode(schema("AVRO", definition), [None, avro_bytes(definition, {"a": 1, "b": "x"}), None])
    assert rows(table) == [{"a": None, "b": None}, {"a": 1, "b": "x"}, {"a": None, "b": None}]


def test_only_the_wanted_columns_are_decoded() -> None:
    definition = record(("a", "int"), ("b", "string"), ("c", "double"))
    good = avro_bytes(definition, {"a": 1, "b": "x", "c": 2.0})
    not_text = b"\x02\x02\xff" + struct.pack("<d", 3.0)
    table = decode(schema("AVRO", definition), [good, not_text], wanted=["c", "a"])
    assert rows(table) == [{"a": 1, "c": 2.0}, {"a": 1, "c": 3.0}]


ITEM = record(("a", "int"), ("b", {"type": "array", "items": "string"}), name="Item")
HOSTILE = {
    "a list that claims a number of items beyond all memory": (
        {"type": "array", "items": "long"},
        "feffffffffffffffff01",
    ),
    "a map that claims a number of entries beyond all memory": (
        {"type": "map", "values": "long"},
        "feffffffffffffffff01",
    ),
    "a list of nulls, which take no bytes": ({"type": "array", "items": "null"}, "8092f401" + "00"),
    "a block with a negative size": ({"type": "array", "items": "long"}, "010102"),
    "the smallest number as a count": ({"type": "array", "items": "long"}, "ffffffffffffffffff0100"),
    "a number that never ends": ("long", "ff" * 30),
    "an int of 64 bits": ("int", "feffffffffffffffff01"),
    "a text longer than the payload": ("string", "7e41"),
    "a text of a negative length": ("string", "01"),
    "a text that is not UTF-8": ("string", "02ff"),
    "a branch that is none": (["null", "int"], "08"),
    "a negative branch": (["null", "int"], "01"),
    "a symbol that is none": ({"type": "enum", "name": "E", "symbols": ["A"]}, "02"),
    "a boolean of 2": ("boolean", "02"),
    "a list in a list without an end": ({"type": "array", "items": ITEM}, "020202"),
    "nothing": ("double", ""),
    "a fixed value of two gigabytes": ({"type": "fixed", "name": "F", "size": 2**31 - 1}, "0000"),
    "bytes after the last field": ("int", "020202"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("times", [1, 200])
def test_hostile_bytes_are_a_bad_record_and_harm_no_other(name: str, times: int) -> None:
    kind, damage = HOSTILE[name]
    definition = record(("a", "int"), ("x", kind), ("z", "int"))
    good = record(("a", "int"), ("x", ["null", kind] if not isinstance(kind, list) else kind), ("z", "int"))
    good_payload = avro_bytes(good, {"a": 1, "x": None, "z": 3})
    bad_payload = b"\x02" + bytes.fromhex(damage)
    info = schema("AVRO", good)
    versions = [b"v", None] * times
    table = decode(
        info, [bad_payload, good_payload] * times, versions=versions, known={b"v": schema("AVRO", definition)}
    )
    assert [reason is not None for reason in errors(table)] == [True, False] * times
    assert table.column("a").to_pylist() == [None, 1] * times


def test_a_list_of_nulls_within_the_limit_is_read() -> None:
    definition = record(("x", {"type": "array", "items": "null"}))
    table = decode(schema("AVRO", definition), [avro_bytes(definition, {"x": [None] * MAX_EMPTY_ITEMS})])
    assert rows(table) == [{"x": [None] * MAX_EMPTY_ITEMS}]


@pytest.mark.parametrize("few_lanes", [1, 10_000])
def test_long_lists_are_read_the_same_for_one_payload_as_for_many(
    few_lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_shapes, "FEW_LANES", few_lanes)
    definition = record(
        ("numbers", {"type": "array", "items": "long"}),
        ("vector", {"type": "array", "items": "float"}),
        ("words", {"type": "array", "items": "string"}),
        ("items", {"type": "array", "items": ITEM}),
    )
    written = [
        {
            "numbers": [number * 2**20 for number in range(count)],
            "vector": [0.5] * count,
            "words": ["w" * (number % 5) for number in range(count)],
            "items": [{"a": number, "b": ["x"] * (number % 3)} for number in range(count // 10)],
        }
        for count in (0, 1, 300, 50)
    ]
    assert rows(decode(schema("AVRO", definition), [avro_bytes(definition, value) for value in written])) == written


def test_lists_in_many_blocks_with_sizes_are_read() -> None:
    definition = record(("x", {"type": "array", "items": "string"}))
    # One item in a block without a size, two in one with it (5 bytes), and the end.
    payload = b"\x02\x02a" + b"\x03\x0a\x02b\x04cd" + b"\x00"
    assert rows(decode(schema("AVRO", definition), [payload] * 150)) == [{"x": ["a", "b", "cd"]}] * 150


RECURSIVE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}


def deep(levels: int) -> Any:
    kind: Any = "int"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return record(("x", kind))


def doubling(levels: int) -> Any:
    """A definition of some lines that stands for 2 ** levels columns."""
    kind: Any = record(("a", "int"), name="T0")
    fields: list[tuple[Any, ...]] = [("t0", kind)]
    fields += [
        (f"t{level}", record(("a", f"T{level - 1}"), ("b", f"T{level - 1}"), name=f"T{level}"))
        for level in range(1, levels)
    ]
    return record(*fields)


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (RECURSIVE, "contains itself"),
        (deep(80), "deeper than 64"),
        (doubling(40), "more than 20000"),
        (record(("A", "int"), ("a", "int")), "cannot both be columns"),
        (record(("__key", "int")), "the metadata column __key"),
        (record(("__Error", "int")), "the metadata column __error"),
        ({"type": "record"}, "no `name`"),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused_with_what_to_do(definition: Any, reason: str) -> None:
    with pytest.raises(UnreadableSchema, match=reason) as refusal:
        decode(schema("AVRO", definition), [])
    assert "valueMode=raw" in str(refusal.value)
    assert rows(decode(schema("AVRO", definition), [b"abc"], mode="raw")) == [{"value": b"abc"}]


NO_PANDAS = """
import sys
import numpy as np
import pyarrow as pa
from pybroker.columns.values.value_decoder import value_decoder
from pybroker.columns.values.value_schema import SchemaInfo

def binary(*values):
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))])

text = ["null", "string"]
fields = [{"name": "a", "type": "long"}, {"name": "b", "type": text}, {"name": "c", "type": {"type": "array", "items": text}}]
definition = str({"type": "record", "name": "R", "fields": fields}).replace("'", '"')
decoder = value_decoder(SchemaInfo("AVRO", definition.encode()), lambda version: None)
versions = binary(b"", b"")
columns = decoder.decode(binary(bytes([2, 2, 2, 120, 0]), bytes([4, 0, 2, 0, 0])), versions, versions).columns
assert [column.to_pylist() for column in columns] == [[1, 2], ["x", None], [[], [None]]]
assert "pandas" not in sys.modules
"""


def test_avro_is_read_without_the_cost_of_pandas() -> None:
    subprocess.run([sys.executable, "-c", NO_PANDAS], check=True, timeout=60)
