"""Payloads of earlier and later versions of a schema are read as the pinned one has it."""

from typing import Any

import pytest
from tests.support.payloads import avro_bytes, decode, errors, record, rows, schema

from pybroker.columns.bad_records import MissingFields


def resolved(writer: Any, reader: Any, value: Any) -> Any:
    """The column `x` of a record that a writer's schema wrote."""
    written, read = record(("x", writer)), record(("x", reader))
    table = decode(
        schema("AVRO", read),
        [avro_bytes(written, {"x": value})],
        versions=[b"1"],
        known={b"1": schema("AVRO", written)},
    )
    return table.to_pylist(maps_as_pydicts="strict")[0]


@pytest.mark.parametrize("mode", list(MissingFields))
def test_nullable_field_that_the_writer_lacks_is_null_only_on_request(mode: MissingFields) -> None:
    inner = record(("a", "int"), name="In")
    written = record(("x", "int"), ("in", inner))
    read = record(
        ("x", "int"),
        ("n", ["null", "string"]),
        ("m", ["int", "null", "string"]),
        ("in", record(("a", "int"), ("b", ["null", "long"]), name="In")),
    )
    table = decode(
        schema("AVRO", read),
        [avro_bytes(written, {"x": 1, "in": {"a": 2}})] * 2,
        versions=[b"1"] * 2,
        known={b"1": schema("AVRO", written)},
        missing_fields=mode,
    )
    if mode is MissingFields.NULL:
        assert rows(table) == [{"x": 1, "n": None, "m": None, "in": {"a": 2, "b": None}}] * 2
    else:
        assert "the writer's record has no field" in errors(table)[0]  # type: ignore[operator]
        assert "missingFields=null reads it as null" in errors(table)[0]  # type: ignore[operator]


def test_field_that_is_not_nullable_and_lacks_a_default_is_an_error_in_any_case() -> None:
    written, read = record(("x", "int")), record(("x", "int"), ("y", "long"))
    table = decode(
        schema("AVRO", read),
        [avro_bytes(written, {"x": 1})],
        versions=[b"1"],
        known={b"1": schema("AVRO", written)},
        missing_fields=MissingFields.NULL,
    )
    assert "has no field 'y' and the reader's has no default" in errors(table)[0]  # type: ignore[operator]
    assert "missingFields" not in errors(table)[0]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("writer", "reader", "written", "read"),
    [
        ("int", "long", 5, 5),
        ("int", "double", 5, 5.0),
        ("long", "float", 5, 5.0),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", "é".encode(), "é"),
        ("int", ["null", "long"], 5, 5),
        (["null", "int"], "long", 5, 5),
        (["int", "string"], ["string", "null", "long"], "a", {"member0": "a", "member1": None}),
        (["int", "string"], ["string", "null", "long"], 5, {"member0": None, "member1": 5}),
        ({"type": "array", "items": "int"}, {"type": "array", "items": ["null", "double"]}, [1], [1.0]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"a": 1}, {"a": 1}),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A", "C"], "default": "C"},
            "B",
            "C",
        ),
        (
            [record(("a", "int"), name="P"), record(("a", "int"), name="Q")],
            [record(("a", "long"), name="Q"), record(("a", "long"), name="P")],
            ("Q", {"a": 1}),
            {"member0": {"a": 1}, "member1": None},
        ),
        (
            record(("old", "int"), ("gone", "string"), name="In"),
            record(("new", "string", "d"), ("old", "long"), name="Renamed"),
            {"old": 1, "gone": "x"},
            {"new": "d", "old": 1},
        ),
    ],
)
def test_a_value_is_read_as_the_readers_type(writer: Any, reader: Any, written: Any, read: Any) -> None:
    assert resolved(writer, reader, written) == {"x": read, "__error": None}


@pytest.mark.parametrize(
    ("writer", "reader", "written", "reason"),
    [
        ("long", "int", 5, "a value of type long cannot be read as int"),
        ("string", "int", "5", "a value of type string cannot be read as int"),
        (["null", "int"], "int", None, "a value of type null cannot be read as int"),
        ("int", ["null", "string"], 5, "a value of type int cannot be read as union of null, string"),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            "B",
            "no symbol 'B' and no default",
        ),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, b"ab", "with 2 bytes"),
        (record(("a", "int"), name="In"), record(("b", "int"), name="In"), {"a": 1}, "no field 'b'"),
    ],
)
def test_what_cannot_be_resolved_is_a_bad_record_that_says_why(
    writer: Any, reader: Any, written: Any, reason: str
) -> None:
    read = resolved(writer, reader, written)
    assert read["x"] is None
    assert reason in read["__error"]


V1 = record(("id", "int"), ("name", "string"))
V2 = record(("id", "long"), ("note", ["null", "string"], None), ("name", "string"))
V3 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "title", "type": "string", "aliases": ["name"]},
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["new"]},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "default": "\u0001\u0002",
        },
    ],
}
KNOWN = {bytes([0] * 7 + [number]): schema("AVRO", each) for number, each in enumerate((V1, V2, V3))}


def test_several_versions_in_one_batch_are_each_read_by_their_own_schema() -> None:
    first, second, third = KNOWN
    written = [
        (first, avro_bytes(V1, {"id": 1, "name": "a"})),
        (third, avro_bytes(V3, {"id": 3, "title": "c", "tags": [], "price": b"\1"})),
        (second, avro_bytes(V2, {"id": 2, "name": "b", "note": "n"})),
        (None, avro_bytes(V3, {"id": 4, "title": "d", "tags": ["x"], "price": b"\2"})),
        (first, None),
    ] * 40
    table = decode(
        schema("AVRO", V3),
        [payload for _, payload in written],
        versions=[version for version, _ in written],
        known=KNOWN,
    )
    got = rows(table)
    assert got == got[:5] * 40
    assert [(row["title"], row["id"], row["tags"]) for row in got[:5]] == [
        ("a", 1, ["new"]),
        ("c", 3, []),
        ("b", 2, ["new"]),
        ("d", 4, ["x"]),
        (None, None, None),
    ]
    assert str(got[0]["price"]) == "2.58"


def test_a_newer_writer_is_read_by_an_older_pinned_schema() -> None:
    version = list(KNOWN)[1]
    table = decode(
        schema("AVRO", V1), [avro_bytes(V2, {"id": 2, "name": "b", "note": "n"})], versions=[version], known=KNOWN
    )
    assert "a value of type long cannot be read as int" in errors(table)[0]  # type: ignore[operator]
    table = decode(
        schema("AVRO", record(("name", "string"))),
        [avro_bytes(V2, {"id": 2, "name": "b", "note": "n"})],
        versions=[version],
        known=KNOWN,
    )
    assert rows(table) == [{"name": "b"}]


def test_a_version_that_nobody_knows_fails_its_payloads_only() -> None:
    payload = avro_bytes(V1, {"id": 1, "name": "a"})
    table = decode(schema("AVRO", V1), [payload, payload], versions=[b"\0" * 7 + b"\x09", None], known=KNOWN)
    assert errors(table) == ["the broker knows no schema version 9", None]
    assert table.column("id").to_pylist() == [None, 1]


def test_a_version_of_another_type_fails_its_payloads_only() -> None:
    table = decode(schema("AVRO", V1), [b"x"], versions=[b"j"], known={b"j": schema("JSON", V1)})
    assert "its type is JSON" in errors(table)[0]  # type: ignore[operator]


def test_each_version_is_looked_up_once() -> None:
    from tests.support.payloads import binary

    from pybroker.columns.values.value_decoder import value_decoder

    asked: list[bytes] = []

    def versions(version: bytes) -> Any:
        asked.append(version)
        return schema("AVRO", V1)

    decoder = value_decoder(schema("AVRO", V1), versions)
    payloads = binary([avro_bytes(V1, {"id": 1, "name": "a"})] * 3)
    for _ in range(2):
        decoder.decode(payloads, binary([None] * 3), binary([b"1", b"2", b"1"]))
    assert asked == [b"1", b"2"]
