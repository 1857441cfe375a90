"""Payloads of primitive schemas, of none, and of KEY_VALUE ones become columns."""

import json
import struct
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.payloads import EXAMPLES, avro_bytes, decode, errors, record, rows, schema

from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.columns.values.value_decoder import fields_of
from pybroker.columns.values.value_schema import SchemaInfo

MOMENT = datetime(2001, 9, 9, 1, 46, 40, 5000, tzinfo=UTC)
MS = 1_000_000_000_005
PRIMITIVES: dict[str, tuple[bytes, Any]] = {
    "BYTES": (b"\xff", b"\xff"),
    "NONE": (b"", b""),
    "AUTO_CONSUME": (b"x", b"x"),
    "STRING": ("é".encode(), "é"),
    "BOOLEAN": (b"\1", True),
    "INT8": (b"\xff", -1),
    "INT16": (b"\x80\0", -(2**15)),
    "INT32": (b"\x7f\xff\xff\xff", 2**31 - 1),
    "INT64": (struct.pack(">q", -(2**63)), -(2**63)),
    "FLOAT": (struct.pack(">f", 0.5), 0.5),
    "DOUBLE": (struct.pack(">d", 0.1), 0.1),
    "DATE": (struct.pack(">q", -1), date(1969, 12, 31)),
    "TIME": (struct.pack(">q", MS), MOMENT),
    "TIMESTAMP": (struct.pack(">q", MS), MOMENT),
    "INSTANT": (struct.pack(">qi", 10**9, 5_000_999), MOMENT),
    "LOCAL_DATE": (struct.pack(">q", 11574), date(2001, 9, 9)),
    "LOCAL_TIME": (struct.pack(">q", 86_399_999_999_999), 86_399_999_999_999),
    "LOCAL_DATE_TIME": (struct.pack(">qq", 11574, 6_400_005_000_999), MOMENT.replace(tzinfo=None)),
}


@pytest.mark.parametrize("kind", PRIMITIVES)
def test_a_primitive_value_is_one_column(kind: str) -> None:
    payload, value = PRIMITIVES[kind]
    got = rows(decode(SchemaInfo(kind), [payload, None, payload]))
    assert got == [{"value": value}, {"value": None}, {"value": value}]


@pytest.mark.parametrize(
    "kind", [kind for kind in PRIMITIVES if kind not in {"BYTES", "NONE", "AUTO_CONSUME", "STRING"}]
)
def test_a_value_of_another_width_is_a_bad_record(kind: str) -> None:
    payload, value = PRIMITIVES[kind]
    table = decode(SchemaInfo(kind), [payload + b"x", payload, payload[:-1], b""])
    assert [bool(error) for error in errors(table)] == [True, False, True, True]
    assert table.column("value").to_pylist() == [None, value, None, None]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("STRING", b"\xff"),
        ("DATE", struct.pack(">q", 2**62)),
        ("TIMESTAMP", struct.pack(">q", 2**62)),
        ("INSTANT", struct.pack(">qi", 2**62, 0)),
        ("INSTANT", struct.pack(">qi", 0, -1)),
        ("LOCAL_DATE", struct.pack(">q", 2**62)),
        ("LOCAL_TIME", struct.pack(">q", -1)),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 2**62, 0)),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 0, 86_400_000_000_000)),
    ],
)
def test_a_value_that_no_column_holds_is_a_bad_record(kind: str, payload: bytes) -> None:
    good, value = PRIMITIVES[kind]
    table = decode(SchemaInfo(kind), [payload, good])
    assert table.column("value").to_pylist() == [None, value]
    assert [bool(error) for error in errors(table)] == [True, False]


def test_without_a_schema_payloads_are_bytes() -> None:
    assert rows(decode(None, [b"x", None])) == [{"value": b"x"}, {"value": None}]
    assert rows(decode(schema("AVRO", "nonsense"), [b"x"], mode="raw")) == [{"value": b"x"}]


def key_value(key: SchemaInfo, value: SchemaInfo, encoding: str | None = "INLINE") -> SchemaInfo:
    data = b"".join(struct.pack(">i", len(side.data)) + side.data for side in (key, value))
    properties = {"key.schema.type": key.type, "value.schema.type": value.type}
    for name, side in (("key", key), ("value", value)):
        properties[f"{name}.schema.properties"] = json.dumps(dict(side.properties))
    if encoding:
        properties["kv.encoding.type"] = encoding
    return SchemaInfo("KEY_VALUE", data, properties)


def inline(key: bytes | None, value: bytes | None) -> bytes:
    return b"".join(struct.pack(">i", -1 if side is None else len(side)) + (side or b"") for side in (key, value))


PERSON = record(("name", "string"))
PERSONS = schema("AVRO", PERSON)
ANN = avro_bytes(PERSON, {"name": "ann"})


def test_an_inline_key_value_is_two_columns_and_each_may_be_null() -> None:
    info = key_value(SchemaInfo("STRING"), PERSONS, None)
    payloads = [inline(b"k", ANN), inline(None, ANN), inline(b"k", None), inline(b"", ANN), None, inline(None, None)]
    assert rows(decode(info, payloads)) == [
        {"key": "k", "value": {"name": "ann"}},
        {"key": None, "value": {"name": "ann"}},
        {"key": "k", "value": None},
        {"key": "", "value": {"name": "ann"}},
        {"key": None, "value": None},
        {"key": None, "value": None},
    ]


def test_a_separated_key_value_takes_its_key_from_the_message() -> None:
    info = key_value(PERSONS, SchemaInfo("INT32"), "SEPARATED")
    number = struct.pack(">i", 7)
    table = decode(info, [number, None, number], keys=[ANN, ANN, None])
    assert rows(table) == [
        {"key": {"name": "ann"}, "value": 7},
        {"key": {"name": "ann"}, "value": None},
        {"key": None, "value": 7},
    ]


def test_only_the_wanted_side_is_decoded() -> None:
    info = key_value(SchemaInfo("INT32"), SchemaInfo("STRING"))
    assert rows(decode(info, [inline(b"bad", b"x")], wanted=["value"])) == [{"value": "x"}]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0\0\0",
        struct.pack(">i", 5) + b"abc",
        struct.pack(">i", -2) + struct.pack(">i", 0),
        struct.pack(">i", 2**31 - 1) + b"abc",
        inline(b"k", b"v") + b"x",
        inline(b"k", b"")[:-1],
    ],
)
def test_damaged_lengths_are_a_bad_record(payload: bytes) -> None:
    info = key_value(SchemaInfo("STRING"), SchemaInfo("STRING"))
    table = decode(info, [inline(b"a", b"b"), payload, inline(b"c", b"d")] * 60)
    assert table.column("key").to_pylist() == ["a", None, "c"] * 60
    assert [bool(error) for error in errors(table)] == [False, True, False] * 60


@EXAMPLES
@given(st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9))))
def test_all_inline_pairs_are_read(pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    info = key_value(SchemaInfo("BYTES"), SchemaInfo("BYTES"))
    got = rows(decode(info, [inline(*pair) for pair in pairs]))
    assert [(row["key"], row["value"]) for row in got] == pairs


def test_sides_of_several_versions_are_each_read_by_their_own() -> None:
    older = record(("name", "string"), ("age", "int"))
    info = key_value(SchemaInfo("STRING"), PERSONS)
    known = {
        b"1": key_value(SchemaInfo("STRING"), schema("AVRO", older)),
        b"2": info,
        b"3": SchemaInfo("STRING"),
        b"4": key_value(SchemaInfo("STRING"), schema("JSON", PERSON)),
    }
    old = inline(b"k", avro_bytes(older, {"name": "bob", "age": 4}))
    table = decode(info, [old, inline(b"k", ANN), b"x", old], versions=[b"1", b"2", b"3", b"4"], known=known)
    assert [row["value"] for row in table.to_pylist()] == [{"name": "bob"}, {"name": "ann"}, None, None]
    assert [bool(error) for error in errors(table)] == [False, False, True, True]


def test_a_key_value_schema_without_a_whole_definition_is_refused() -> None:
    with pytest.raises(UnreadableSchema, match="KEY_VALUE"):
        fields_of(SchemaInfo("KEY_VALUE", b"\0\0"))
    with pytest.raises(UnreadableSchema, match="contains another"):
        fields_of(key_value(key_value(PERSONS, PERSONS), PERSONS))
