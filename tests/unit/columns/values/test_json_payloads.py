"""JSON payloads become columns: the fast way and the slow one agree, and a bad row costs only itself."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.payloads import EXAMPLES, binary, decode, errors, record, rows, schema

from pybroker.columns.values.json_payloads import SMALL_PART, JsonReader
from pybroker.columns.values.lanes import Failures

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
PLAIN = record(
    ("id", "long"),
    ("name", ["null", "string"]),
    ("ratio", "double"),
    ("ok", "boolean"),
    ("at", ["null", MILLIS]),
    ("day", {"type": "int", "logicalType": "date"}),
    ("tags", {"type": "array", "items": "string"}),
    ("in", ["null", record(("a", "int"), ("times", {"type": "array", "items": MILLIS}), name="In")]),
)
GOOD = {
    "id": 2**62,
    "name": 'a\n"b\\ é',
    "ratio": 0.5,
    "ok": True,
    "at": 1_600_000_000_123,
    "day": 3,
    "tags": ["x", ""],
    "in": {"a": 1, "times": [0, None, 1000]},
}
MOMENT = datetime(2020, 9, 13, 12, 26, 40, 123000, tzinfo=UTC)
START = datetime(1970, 1, 1, tzinfo=UTC)
READ = {
    **GOOD,
    "at": MOMENT,
    "day": date(1970, 1, 4),
    "in": {"a": 1, "times": [START, None, START.replace(second=1)]},
}
NOTHING = dict.fromkeys(READ)


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def is_read_fast(info: Any, payloads: list[bytes]) -> bool:
    reader = JsonReader(info, lambda _: None)
    return reader._read_fast(binary(payloads)) is not None


def test_plain_records_are_read_whole_batches_at_a_time() -> None:
    info = schema("JSON", PLAIN)
    payloads = [text(GOOD), b"{}", text({**GOOD, "in": None, "at": None, "extra": [{"a": 1}]})]
    assert is_read_fast(info, payloads)
    assert rows(decode(info, payloads)) == [READ, NOTHING, {**READ, "in": None, "at": None}]


ODD: dict[str, tuple[bytes, dict[str, Any]]] = {
    "numbers as texts": (
        b'{"id": "12", "ratio": "0.5", "day": " 3 "}',
        {"id": 12, "ratio": 0.5, "day": date(1970, 1, 4)},
    ),
    "whole numbers with a point": (b'{"id": 12.0, "day": 1e1}', {"id": 12, "day": date(1970, 1, 11)}),
    "numbers for texts": (b'{"name": 1, "tags": [2, true]}', {"name": "1", "tags": ["2", "true"]}),
    "booleans as texts": (b'{"ok": "true"}', {"ok": True}),
    "ISO texts for times": (
        b'{"at": "2020-09-13T12:26:40.123Z", "day": "1970-01-04"}',
        {"at": MOMENT, "day": date(1970, 1, 4)},
    ),
    "a key twice": (b'{"id": 1, "id": 2}', {"id": 2}),
    "white space around": (b' \n{"id": 1}\r\n', {"id": 1}),
    "lines in between": (b'{\n  "id": 1\n}', {"id": 1}),
    "null": (b"null", {}),
    "not finite": (b'{"ratio": "Infinity"}', {"ratio": float("inf")}),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("around", [0, 200])
def test_what_clients_write_otherwise_is_read_as_the_java_client_reads_it(name: str, around: int) -> None:
    payload, read = ODD[name]
    table = decode(schema("JSON", PLAIN), [text(GOOD)] * around + [payload] + [text(GOOD)] * around)
    assert rows(table) == [READ] * around + [{**NOTHING, **read}] + [READ] * around


BAD: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"{'id': 1}", "malformed"),
    "empty": (b"", "truncated"),
    "cut": (b'{"id": 1', "truncated"),
    "two objects": (b'{"id": 1}{"id": 2}', "trailing"),
    "a list": (b"[]", "not a JSON object"),
    "a text for a number": (b'{"id": "x"}', "id: the JSON value 'x' is not a long"),
    "too large": (b'{"id": 9223372036854775808}', "id: "),
    "a fraction": (b'{"id": 1.5}', "id: the JSON value 1.5 is not a long"),
    "an object for a text": (b'{"name": {"string": "x"}}', "name: the JSON value of type dict is not a text"),
    "a number for a list": (b'{"tags": 1}', "tags: the JSON value 1 is not an array"),
    "deep inside": (b'{"in": {"a": "x"}}', "in: a: the JSON value 'x' is not an int"),
    "not UTF-8": (b'{"name": "\xff"}', "utf-8"),
    "half a character": (b'{"name": "\\ud800"}', "truncated"),
    "very deep": (b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
    "a time beyond all times": (b'{"at": 9223372036854775807}', "at: "),
    "a very long number": (b'{"id": "' + b"9" * 100_000 + b'"}', "id: "),
    "a huge exponent": (b'{"id": "1e999999999"}', "id: "),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_costs_only_itself(name: str) -> None:
    payload, reason = BAD[name]
    around = 3 * SMALL_PART
    table = decode(schema("JSON", PLAIN), [text(GOOD)] * around + [payload] + [text(GOOD)] * around)
    (found,) = [index for index, error in enumerate(errors(table)) if error]
    assert found == around
    assert reason in errors(table)[found]  # type: ignore[operator]
    expected = [READ] * around + [NOTHING] + [READ] * around
    assert table.drop_columns(["__error"]).to_pylist() == expected


def test_rows_that_make_up_for_each_other_are_not_mixed_up() -> None:
    payloads = [
        b'{"id": 1}{"id": 2}',
        b" ",
        b'{"id": 3}',
        b'{"id": 4',
        b', "name": "x"}',
        b'{"name": "}',
        b'{", "id": 5}',
    ]
    table = decode(schema("JSON", record(("id", "long"), ("name", "string"))), payloads * 50)
    assert table.column("id").to_pylist() == [None, None, 3, None, None, None, None] * 50


SLOW = record(
    ("map", {"type": "map", "values": "long"}),
    ("raw", "bytes"),
    ("price", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}]),
    ("either", ["null", "string", "long", "boolean"]),
    ("n", "null"),
)


def test_maps_bytes_decimals_and_unions_are_read_row_by_row() -> None:
    info = schema("JSON", SLOW)
    payloads = [
        b'{"map": {"a": 1, "b": "2"}, "raw": "AAH/", "price": 12.34, "either": 5}',
        b'{"map": {}, "raw": "", "price": "0.1", "either": "x", "n": null}',
        b'{"price": 1.234}',
        b'{"price": 12345}',
        b'{"raw": "?"}',
        b'{"n": 1}',
    ]
    assert not is_read_fast(info, payloads)
    table = decode(info, payloads)
    assert [bool(error) for error in errors(table)] == [False, False, True, True, True, True]
    got = table.slice(0, 2).to_pylist(maps_as_pydicts="strict")
    none = {"member0": None, "member1": None, "member2": None}
    assert got[0] == {
        "map": {"a": 1, "b": 2},
        "raw": b"\0\1\xff",
        "price": Decimal("12.34"),
        "either": {**none, "member1": 5},
        "n": None,
        "__error": None,
    }
    assert got[1]["either"] == {**none, "member0": "x"}
    assert got[1]["price"] == Decimal("0.10")


LETTERS = 'a1é€😀"\\\n\0 {}'
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "times", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
RECORDS = st.dictionaries(st.sampled_from([*GOOD, "other"]), VALUES, max_size=4)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(LETTERS, max_size=8),
        "ratio": st.none() | FINITE | st.integers(-(2**40), 2**40),
        "ok": st.none() | st.booleans(),
        "at": st.none() | st.integers(-(2**45), 2**45),
        "tags": st.none() | st.lists(st.none() | st.text("ab", max_size=2), max_size=3),
        "other": VALUES,
    },
)


@EXAMPLES
@given(st.lists(FITTING | RECORDS, min_size=1, max_size=8))
def test_the_fast_way_reads_nothing_that_the_slow_one_reads_otherwise(documents: list[Any]) -> None:
    reader = JsonReader(schema("JSON", PLAIN), lambda _: None)
    payloads = binary([text(document) for document in documents])
    fast = reader._read_fast(payloads)
    failures = Failures(len(documents))
    slow = reader._rows.read(payloads, pa.array(range(len(documents))).to_numpy(), failures)
    if fast is not None:
        assert not failures.count
        for left, right in zip(fast, slow, strict=True):
            assert left.type == right.type
            assert left.to_pylist() == right.to_pylist()


@EXAMPLES
@given(st.lists(FITTING, min_size=1, max_size=8))
def test_rows_that_fit_are_never_bad(documents: list[Any]) -> None:
    table = decode(schema("JSON", PLAIN), [text(document) for document in documents])
    assert errors(table) == [None] * len(documents)
    for row, document in zip(table.to_pylist(), documents, strict=True):
        assert [row[name] for name in ("id", "name", "ok", "tags")] == [
            document.get(name) for name in ("id", "name", "ok", "tags")
        ]


def test_versions_are_read_alike_and_one_of_another_type_fails() -> None:
    info = schema("JSON", record(("id", "long")))
    known = {b"1": schema("JSON", record(("id", "int"))), b"2": schema("AVRO", record(("id", "int")))}
    payloads = [b'{"id": 1}', b"\x02", b'{"id": 3}', b'{"id": 4}']
    table = decode(info, payloads, versions=[b"1", b"2", None, b"forgotten"], known=known)
    assert table.column("id").to_pylist() == [1, None, 3, 4]
    assert "its type is AVRO" in errors(table)[1]  # type: ignore[operator]


def test_a_definition_that_is_no_record_is_one_column() -> None:
    assert rows(decode(schema("JSON", {"type": "array", "items": "long"}), [b"[1, 2]", b"null"])) == [
        {"value": [1, 2]},
        {"value": None},
    ]
