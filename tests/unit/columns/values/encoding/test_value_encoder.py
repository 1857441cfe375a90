"""Rows become payloads that other libraries and our own decoder read back as the same rows."""

import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.payloads import EXAMPLES, avro_bytes, checked_table, decode, record, rows, schema

from pybroker.columns.values.encoding.encoded import CannotEncode
from pybroker.columns.values.encoding.fitting import Misfit
from pybroker.columns.values.encoding.value_encoder import NewSchema, value_encoder
from pybroker.columns.values.value_decoder import value_decoder
from pybroker.columns.values.value_schema import SchemaInfo


def local(year: int, month: int = 1, day: int = 1, *rest: int, microsecond: int = 0) -> datetime:
    return datetime(year, month, day, *rest, tzinfo=UTC).replace(tzinfo=None) + timedelta(microseconds=microsecond)  # type: ignore[arg-type, misc]


MOMENTS = st.datetimes(local(1900), local(2200))
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text('a1é€😀"\\\n\0 {}', max_size=8)),
    (pa.binary(), st.binary(max_size=8)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))),
    (pa.timestamp("us"), MOMENTS),
    (pa.decimal128(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    (pa.decimal128(5, 2), st.integers(-99999, 99999).map(lambda number: Decimal(number) / 100)),
]


@st.composite
def column(draw: st.DrawFn, depth: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    kind = draw(st.sampled_from(["leaf", "list", "map", "struct"] if depth else ["leaf"]))
    if kind == "leaf":
        arrow_type, values = draw(st.sampled_from(LEAVES))
        return arrow_type, st.none() | values
    if kind == "struct":
        fields = [(name, *draw(column(depth - 1))) for name in draw(names())]
        values = st.fixed_dictionaries({name: inner for name, _, inner in fields})
        return pa.struct([(name, inner) for name, inner, _ in fields]), st.none() | values
    inner, values = draw(column(depth - 1))
    if kind == "list":
        return pa.list_(inner), st.none() | st.lists(values, max_size=3)
    entries = st.dictionaries(st.text('ab"', max_size=2), values, max_size=3).map(lambda each: list(each.items()))
    return pa.map_(pa.string(), inner), st.none() | entries


def names() -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(["a", "b", "c", "value"]), min_size=1, max_size=4, unique=True)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    fields = [(name, *draw(column(2))) for name in draw(names())]
    count = draw(st.integers(0, 5))
    arrays = [pa.array([draw(values) for _ in range(count)], type=arrow_type) for _, arrow_type, values in fields]
    batch = pa.RecordBatch.from_arrays(arrays, names=[name for name, _, _ in fields])
    # A part of a larger batch, as partitions of a data frame are.
    start = draw(st.integers(0, count))
    return batch.slice(start)


def read_back(batch: pa.RecordBatch, existing: SchemaInfo | None = None, new: NewSchema = "auto") -> pa.Table:
    encoder = value_encoder(list(batch.schema), existing, new=new)
    payloads, keys = encoder.encode(batch)
    payloads.validate(full=True)
    decoder = value_decoder(encoder.schema, lambda _: None)
    nothing = pa.nulls(len(payloads), pa.binary())
    result = decoder.decode(payloads, nothing if keys is None else keys, nothing)
    return checked_table(decoder.fields, result, len(payloads))


@EXAMPLES
@given(batches(), st.sampled_from(["AVRO", "JSON"]))
def test_what_is_written_is_read_back_the_same(batch: pa.RecordBatch, new: NewSchema) -> None:
    table = read_back(batch, new=new)
    assert rows(table) == batch.to_pylist(maps_as_pydicts="strict")
    assert table.drop_columns(["__error"]).schema.equals(batch.schema)


@EXAMPLES
@given(batches())
def test_avro_is_read_the_same_by_another_library(batch: pa.RecordBatch) -> None:
    encoder = value_encoder(list(batch.schema), new="AVRO")
    parsed = fastavro.parse_schema(json.loads(encoder.schema.data))
    payloads, keys = encoder.encode(batch)
    assert keys is None
    read = [fastavro.schemaless_reader(io.BytesIO(payload), parsed, None) for payload in payloads.to_pylist()]
    assert read == batch.to_pylist(maps_as_pydicts="strict")


@EXAMPLES
@given(batches())
def test_json_is_json(batch: pa.RecordBatch) -> None:
    payloads, _ = value_encoder(list(batch.schema), new="JSON").encode(batch)
    for payload in payloads.to_pylist():
        document = json.loads(payload, parse_constant=pytest.fail)
        assert list(document) == batch.schema.names


PRIMITIVES = [
    (pa.binary(), "BYTES", b"\xff"),
    (pa.string(), "STRING", "é"),
    (pa.bool_(), "BOOLEAN", True),
    (pa.int8(), "INT8", -1),
    (pa.int16(), "INT16", -2),
    (pa.int32(), "INT32", -3),
    (pa.int64(), "INT64", -(2**63)),
    (pa.float32(), "FLOAT", 0.5),
    (pa.float64(), "DOUBLE", 0.1),
    (pa.date32(), "DATE", date(1969, 12, 31)),
    (pa.timestamp("us", "UTC"), "INSTANT", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    (pa.timestamp("us"), "LOCAL_DATE_TIME", local(1969, 12, 31, 23, 59, 59, microsecond=999999)),
]


@pytest.mark.parametrize(("arrow_type", "kind", "value"), PRIMITIVES)
def test_one_column_value_gets_the_primitive_schema(arrow_type: pa.DataType, kind: str, value: Any) -> None:
    batch = pa.record_batch([pa.array([value, None, value], type=arrow_type)], names=["value"])
    encoder = value_encoder(list(batch.schema))
    assert encoder.schema == SchemaInfo(kind)
    assert encoder.encode(batch)[0].is_valid().to_pylist() == [True, False, True]
    assert rows(read_back(batch)) == [{"value": value}, {"value": None}, {"value": value}]


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (
            "TIMESTAMP",
            datetime(2020, 1, 1, microsecond=1999, tzinfo=UTC),
            datetime(2020, 1, 1, microsecond=1000, tzinfo=UTC),
        ),
        ("TIME", datetime(1969, 12, 31, microsecond=1, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC)),
        ("LOCAL_DATE", date(2020, 1, 1), date(2020, 1, 1)),
        ("INT16", 300, 300),
        ("DOUBLE", 3, 3.0),
        ("LOCAL_TIME", 5, 5),
    ],
)
def test_a_topic_with_a_primitive_schema_is_written_by_it(kind: str, value: Any, read: Any) -> None:
    batch = pa.record_batch([pa.array([value])], names=["value"])
    assert rows(read_back(batch, SchemaInfo(kind))) == [{"value": read}]


EXISTING = record(
    ("id", "long"),
    ("name", ["string", "null"], ""),
    ("kind", {"type": "enum", "name": "K", "symbols": ["A", "B"]}, "B"),
    ("digest", {"type": "fixed", "name": "D", "size": 2}, "\u0001\u0002"),
    ("at", ["null", {"type": "long", "logicalType": "timestamp-millis"}], None),
    (
        "price",
        {"type": "fixed", "name": "P", "size": 3, "logicalType": "decimal", "precision": 6, "scale": 2},
        "\0\0\0",
    ),
    ("wide", ["null", "int", "long"], None),
    ("tags", {"type": "array", "items": "string"}, []),
)


def test_a_topic_with_an_avro_schema_is_written_by_it_with_its_defaults() -> None:
    batch = pa.record_batch({"wide": pa.array([1, 2**40, None]), "id": pa.array([1, 2, 3], pa.int32())})
    info = schema("AVRO", EXISTING)
    encoder = value_encoder(list(batch.schema), info)
    assert encoder.schema is info
    payloads, _ = encoder.encode(batch)
    parsed = fastavro.parse_schema(json.loads(info.data))
    read = [fastavro.schemaless_reader(io.BytesIO(payload), parsed, None) for payload in payloads.to_pylist()]
    rest: dict[str, Any] = {
        "name": "",
        "kind": "B",
        "digest": b"\1\2",
        "at": None,
        "price": Decimal("0.00"),
        "tags": [],
    }
    assert read == [
        {"id": 1, "wide": 1, **rest},
        {"id": 2, "wide": 2**40, **rest},
        {"id": 3, "wide": None, **rest},
    ]


def test_values_are_cast_to_what_the_topics_schema_has() -> None:
    batch = pa.record_batch(
        {
            "id": pa.array([1], pa.int8()),
            "name": pa.array(["x"]).dictionary_encode(),
            "kind": pa.array(["A"], pa.large_string()),
            "digest": pa.array([b"ab"], pa.binary(2)),
            "at": pa.array([local(2020, microsecond=1500)], pa.timestamp("us", "Europe/Berlin")),
            "price": pa.array([-12], pa.int64()),
            "tags": pa.array([["t", "u"]], pa.large_list(pa.string())),
        }
    )
    (row,) = rows(read_back(batch, schema("AVRO", EXISTING)))
    assert row == {
        "id": 1,
        "name": "x",
        "kind": "A",
        "digest": b"ab",
        "at": datetime(2020, 1, 1, microsecond=1000, tzinfo=UTC),
        "price": Decimal("-12.00"),
        "wide": None,
        "tags": ["t", "u"],
    }


BAD_VALUES = [
    ({"id": [1, None]}, "row 1, column 'id': the value is null"),
    ({"id": [1, 2], "kind": ["A", "C"]}, "row 1, column 'kind': the value 'C' is not a symbol"),
    ({"id": [1, 2], "digest": [b"ab", b"abc"]}, "row 1, column 'digest': the value does not have the 2 bytes"),
    (
        {"id": [1, 2], "price": [Decimal("1.00"), Decimal("99999.99")]},
        "row 1, column 'price': the value 99999.99 does not",
    ),
    ({"id": [1, 2], "tags": [["a"], ["b", None]]}, "row 1, column 'tags': the value is null"),
]


@pytest.mark.parametrize(("columns", "reason"), BAD_VALUES)
def test_a_value_that_the_schema_cannot_hold_is_refused_with_column_and_row(
    columns: dict[str, Any], reason: str
) -> None:
    batch = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    encoder = value_encoder(list(batch.schema), schema("AVRO", EXISTING))
    with pytest.raises(CannotEncode, match=reason):
        encoder.encode(batch)


def test_a_value_inside_a_struct_is_named_by_its_path() -> None:
    inner = record(("n", "int"), name="In")
    info = schema("AVRO", record(("list", {"type": "array", "items": ["null", inner]})))
    values = [[], [None, {"n": 1}], [{"n": 2**40}]]
    batch = pa.record_batch({"list": pa.array(values, pa.list_(pa.struct([("n", pa.int64())])))})
    for kind in ("AVRO", "JSON"):
        encoder = value_encoder(list(batch.schema), SchemaInfo(kind, info.data))
        with pytest.raises(
            CannotEncode, match=r"row 2, column 'list.n': the value 1099511627776 does not fit into type int32"
        ):
            encoder.encode(batch)


MISFITS = [
    ({"id": pa.string()}, None, "the column has type string, but the schema has long"),
    ({"nope": pa.int64()}, None, "a field 'nope', which the schema's record Order does not have"),
    (
        {"name": pa.string()},
        None,
        "the column 'id' does not fit the schema: the field is missing in the data, and the schema has no default",
    ),
    (
        {"id": pa.int64(), "at": pa.timestamp("us")},
        None,
        "the column 'at' does not fit the schema: the column has type timestamp",
    ),
    (
        {"a": pa.int64(), "b": pa.int64()},
        SchemaInfo("STRING"),
        "the payload columns a, b, but the topic's schema requires exactly one",
    ),
    ({"value": pa.int64()}, SchemaInfo("STRING"), "the column has type int64, but the schema has type STRING"),
    ({"value": pa.int64()}, SchemaInfo("PROTOBUF_NATIVE"), "PROTOBUF_NATIVE schema: write encoded payloads"),
    ({"value": pa.int64()}, SchemaInfo("AVRO", b"nonsense"), "cannot be written with the topic's schema"),
    ({"other": pa.int64()}, SchemaInfo("KEY_VALUE"), "KEY_VALUE schema requires the columns 'key' and 'value'"),
]


@pytest.mark.parametrize(("columns", "existing", "reason"), MISFITS)
def test_columns_that_do_not_fit_the_topics_schema_are_refused(
    columns: dict[str, pa.DataType], existing: SchemaInfo | None, reason: str
) -> None:
    with pytest.raises(Misfit, match=reason):
        value_encoder([pa.field(*each) for each in columns.items()], existing or schema("AVRO", EXISTING))


@pytest.mark.parametrize(
    ("arrow_type", "reason"),
    [
        (pa.uint64(), "the column has type uint64"),
        (pa.duration("s"), "which no schema can represent"),
        (pa.map_(pa.int32(), pa.int32()), "with keys that are not strings"),
        (pa.decimal128(5, -2), "a decimal must have at most 38 digits"),
        (pa.struct([("a b", pa.int32())]), "the column 'x.a b' does not fit the schema: Avro does not allow this name"),
        (
            pa.list_(pa.struct([("y", pa.duration("s"))])),
            "the column 'x.*y' does not fit the schema: the column has type duration",
        ),
    ],
)
def test_columns_that_no_schema_has_are_refused(arrow_type: pa.DataType, reason: str) -> None:
    with pytest.raises(Misfit, match=reason):
        value_encoder([pa.field("x", arrow_type)])
    with pytest.raises(Misfit, match="no column contains the payload"):
        value_encoder([])


def test_columns_that_are_never_null_are_no_unions() -> None:
    fields = [pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int32())]
    assert json.loads(value_encoder(fields).schema.data)["fields"] == [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", "int"], "default": None},
    ]


def test_members_of_a_union_are_written_as_what_they_are() -> None:
    definition = record(("u", ["null", "string", "long", {"type": "array", "items": "int"}]), ("v", ["int", "string"]))
    struct = pa.struct([("member0", pa.string()), ("member1", pa.int64()), ("member2", pa.list_(pa.int32()))])
    other = pa.struct([("member0", pa.int32()), ("member1", pa.string())])
    written = [{"u": None, "v": 1}, {"u": "x", "v": "y"}, {"u": 5, "v": 2}, {"u": [1, 2], "v": ""}]
    table = decode(schema("AVRO", definition), [avro_bytes(definition, value) for value in written])
    batch = table.drop_columns(["__error"]).to_batches()[0]
    assert (batch.schema.field("u").type, batch.schema.field("v").type) == (struct, other)
    assert rows(read_back(batch, schema("AVRO", definition))) == batch.to_pylist()
    both = pa.record_batch({"v": pa.array([{"member0": 1, "member1": "x"}], other)})
    with pytest.raises(CannotEncode, match="several of its members"):
        value_encoder(list(both.schema), schema("AVRO", record(("v", ["int", "string"])))).encode(both)
    none = pa.record_batch({"v": pa.array([None], other)})
    with pytest.raises(CannotEncode, match="no member of the union has a value"):
        value_encoder(list(none.schema), schema("AVRO", record(("v", ["int", "string"])))).encode(none)


@pytest.mark.parametrize("separated", [True, False])
def test_key_value_is_written_and_read_back(separated: bool) -> None:
    batch = pa.record_batch(
        {
            "key": pa.array([1, None, 3], pa.int64()),
            "value": pa.array([{"a": "x"}, {"a": None}, None], pa.struct([("a", pa.string())])),
        }
    )
    encoder = value_encoder(list(batch.schema), new="KEY_VALUE", separated=separated)
    payloads, keys = encoder.encode(batch)
    assert (keys is not None) == separated
    decoder = value_decoder(encoder.schema, lambda _: None)
    nothing = pa.nulls(3, pa.binary())
    table = checked_table(decoder.fields, decoder.decode(payloads, keys if separated else nothing, nothing), 3)
    assert rows(table) == batch.to_pylist()
    alone = batch.select(["value"])
    assert value_encoder(list(alone.schema), encoder.schema).encode(alone)[0].equals(payloads) or not separated


def test_ready_made_payloads_keep_the_topics_schema() -> None:
    info = SchemaInfo("PROTOBUF_NATIVE", b"{}")
    batch = pa.record_batch({"value": pa.array([b"x", None])})
    encoder = value_encoder(list(batch.schema), info, new="RAW")
    assert encoder.schema is info
    assert encoder.encode(batch)[0].to_pylist() == [b"x", None]


def test_json_of_odd_numbers_and_times_is_read_back() -> None:
    batch = pa.record_batch(
        {
            "real": pa.array([float("inf"), float("-inf"), 1e300, None]),
            "span": pa.array([timedelta(0)] * 4, pa.duration("s")).cast(pa.int64()),
            "at": pa.array([local(1960, microsecond=7)] * 4, pa.timestamp("us")),
        }
    )
    assert rows(read_back(batch, new="JSON")) == batch.to_pylist()
    nan = pa.record_batch({"real": pa.array([float("nan")])})
    assert str(rows(read_back(nan, new="JSON"))) == "[{'real': nan}]"


def test_a_json_topic_gets_the_defaults_of_fields_that_no_column_has() -> None:
    info = schema("JSON", record(("id", "long"), ("name", "string", "d"), ("note", ["null", "string"])))
    batch = pa.record_batch({"id": [1]})
    payloads, _ = value_encoder(list(batch.schema), info).encode(batch)
    assert json.loads(payloads[0].as_py()) == {"id": 1, "name": "d"}
    with pytest.raises(Misfit, match="'id' does not fit the schema: the field is missing in the data"):
        value_encoder([pa.field("name", pa.string())], info)
