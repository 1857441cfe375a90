"""Topics that official clients write are rows of typed columns, and what is encoded here is what they decode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import _pulsar
import pulsar
import pyarrow as pa
import pytest
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    BytesSchema,
    CustomEnum,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    ProtobufNativeSchema,
    Record,
    Schema,
    String,
    StringSchema,
)
from tests.support.broker_process import BrokerProcess
from tests.support.payloads import record
from tests.support.rest import call
from tests.tables.stored import ranges_of
from tests.unit.columns.values.test_primitive_values import PRIMITIVES, inline
from tests.unit.columns.values.test_protobuf_values import ORDER, ZEROS

from pybroker.client.access import Access
from pybroker.columns.bad_records import BadRecords
from pybroker.columns.values.encoding.value_encoder import NewSchema, value_encoder
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.transports.bulk_source import BulkSource
from pybroker.reading.typed import TypedReader, typed_reading


@pytest.fixture
def source(broker: BrokerProcess) -> Iterator[BulkSource]:
    opened = BulkSource(SourceOptions(Access(broker.url, broker.http_url), patience_s=20))
    yield opened
    opened.close()


def read(source: BulkSource, topic: str, **options: Any) -> pa.Table:
    """The payload columns of everything in the topic, by its latest schema."""
    reading = typed_reading(source.schema(topic), **{"metadata": (), **options})
    reader = TypedReader(source, reading)
    batches = [batch for entries in ranges_of(source.plan(topic)) for batch in reader.read(entries)]
    return pa.Table.from_batches(batches, schema=reading.columns)


def rows(source: BulkSource, topic: str, **options: Any) -> list[dict[str, Any]]:
    return read(source, topic, **options).to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]


def publish(client: pulsar.Client, topic: str, schema: Schema, *values: Any, **options: Any) -> None:
    producer = client.create_producer(topic, schema=schema)
    for value in values:
        producer.send(value, **options)
    producer.close()


class Colour(Enum):
    """What things come in."""

    RED = 1
    BLUE = 2


class Item(Record):
    """Inside an order."""

    sku = String(required=True)
    count = Integer()


class Order(Record):
    """Everything that the client's records know."""

    id = Long(required=True)
    name = String()
    ok = Boolean()
    ratio = Float()
    total = Double()
    colour = CustomEnum(Colour)
    item = Item()
    items = Array(Item())
    tags = Array(String())
    prices = Map(Double())


class OrderWithBytes(Record):
    """JSON of this client has no bytes, and its records do not inherit."""

    id = Long(required=True)
    name = String()
    ok = Boolean()
    ratio = Float()
    total = Double()
    colour = CustomEnum(Colour)
    item = Item()
    items = Array(Item())
    tags = Array(String())
    prices = Map(Double())
    raw = Bytes()


class Ready(Schema):
    """A schema of any type, with payloads as they are."""

    def __init__(self, kind: Any, definition: Any = "") -> None:
        super().__init__(bytes, kind, definition, "ready")

    def encode(self, obj: bytes) -> bytes:
        return obj


ROW = {
    "id": 2**40,
    "name": "é\n",
    "ok": True,
    "ratio": 0.5,
    "total": 0.1,
    "colour": "BLUE",
    "item": {"sku": "x", "count": 3},
    "items": [{"sku": "y", "count": None}],
    "tags": ["a", ""],
    "prices": {"k": 1.5},
}
# The client's records have no booleans that are not there, and a record inside them is never null.
NOTHING = {**dict.fromkeys(ROW), "id": 1, "ok": False, "item": {"sku": "", "count": None}}


def order(kind: type[Any], **more: Any) -> Any:
    items = {"item": Item(sku="x", count=3), "items": [Item(sku="y")], "colour": Colour.BLUE}
    return kind(**{**ROW, **items, **more})


def test_avro_records_of_the_client_are_rows(client: pulsar.Client, source: BulkSource, topic: str) -> None:
    publish(
        client,
        topic,
        AvroSchema(OrderWithBytes),
        order(OrderWithBytes, raw=b"\xff"),
        OrderWithBytes(id=1, item=Item(sku="")),
    )
    assert rows(source, topic) == [{**ROW, "raw": b"\xff"}, {**NOTHING, "raw": None}]


def test_json_records_of_the_client_are_rows(client: pulsar.Client, source: BulkSource, topic: str) -> None:
    publish(client, topic, JsonSchema(Order), order(Order), Order(id=1, item=Item(sku="")))
    # The Python client writes the number that its Enum has for a colour, and not the name.
    assert rows(source, topic) == [{**ROW, "colour": "2"}, NOTHING]


def test_messages_of_every_version_are_rows_of_the_latest(
    client: pulsar.Client, source: BulkSource, topic: str, broker: BrokerProcess
) -> None:
    def of(*fields: tuple[Any, ...]) -> Schema:
        return Ready(_pulsar.SchemaType.AVRO, record(*fields))

    publish(client, topic, of(("id", "int"), ("gone", ["null", "string"], None)), b"\x02\x02\x02g")
    publish(client, topic, of(("note", "string", "none"), ("id", "int")), b"\x02n\x04")
    publish(
        client,
        topic,
        of(("id", "int"), ("note", "string", "none"), ("ratio", "double", 0.5)),
        b"\x06\x02m" + b"\0" * 8,
    )
    publish(client, topic, BytesSchema(), b"\xff")
    table = read(source, topic, bad_records=BadRecords.COLUMN)
    assert table.select(["id", "note", "ratio"]).to_pylist() == [
        {"id": 1, "note": "none", "ratio": 0.5},
        {"id": 2, "note": "n", "ratio": 0.5},
        {"id": 3, "note": "m", "ratio": 0.0},
        {"id": None, "note": None, "ratio": None},
    ]
    assert [bool(reason) for reason in table.column("__error").to_pylist()] == [False, False, False, True]


def test_texts_bytes_and_topics_without_a_schema_are_one_column(
    client: pulsar.Client, source: BulkSource, topic: str
) -> None:
    publish(client, topic + "-text", StringSchema(), "é", "")
    assert rows(source, topic + "-text") == [{"value": "é"}, {"value": ""}]
    publish(client, topic, BytesSchema(), b"\xff", b"")
    assert rows(source, topic, metadata=("__key",)) == [
        {"value": b"\xff", "__key": None},
        {"value": b"", "__key": None},
    ]


def test_protobuf_messages_of_the_client_are_rows(client: pulsar.Client, source: BulkSource, topic: str) -> None:
    message = ORDER(a_uint64=2**64 - 1, item={"sku": "x", "colour": 2}, right="r", name={"value": "n"})
    publish(client, topic, ProtobufNativeSchema(ORDER), message, ORDER())
    read_back = {
        **ZEROS,
        "a_uint64": Decimal(2**64 - 1),
        "item": {"sku": "x", "colour": "BLUE"},
        "right": "r",
        "name": {"value": "n"},
    }
    assert rows(source, topic) == [read_back, ZEROS]


def register(broker: BrokerProcess, topic: str, kind: str, definition: str = "", **properties: str) -> None:
    url = f"{broker.http_url}/admin/v2/schemas/{topic.removeprefix('persistent://')}/schema"
    assert call(url, method="POST", body={"type": kind, "schema": definition, "properties": properties}).status == 200


@pytest.mark.parametrize("kind", [kind for kind in PRIMITIVES if kind not in {"NONE", "AUTO_CONSUME"}])
def test_every_primitive_schema_of_the_broker_is_a_column(
    broker: BrokerProcess, client: pulsar.Client, source: BulkSource, topic: str, kind: str
) -> None:
    payload, value = PRIMITIVES[kind]
    register(broker, topic, kind)
    publish(client, topic, BytesSchema(), payload)
    assert rows(source, topic) == [{"value": value}]


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_key_values_are_two_columns(
    broker: BrokerProcess, client: pulsar.Client, source: BulkSource, topic: str, encoding: str
) -> None:
    definition = json.dumps({"key": "", "value": json.loads(json.dumps(record(("name", "string"))))})
    properties = {"key.schema.type": "STRING", "value.schema.type": "AVRO", "kv.encoding.type": encoding}
    properties |= {f"{side}.schema.{each}": text for side in ("key", "value") for each, text in NAMES.items()}
    register(broker, topic, "KEY_VALUE", definition, **properties)
    ann = b"\x06ann"
    if encoding == "INLINE":
        publish(client, topic, BytesSchema(), inline(b"k", ann))
    else:
        publish(client, topic, BytesSchema(), ann, partition_key="k")
    assert rows(source, topic) == [{"key": "k", "value": {"name": "ann"}}]


NAMES = {"name": "n", "properties": "{}"}


def test_what_is_encoded_here_the_client_decodes(client: pulsar.Client, source: BulkSource, topic: str) -> None:
    batch = pa.RecordBatch.from_pylist([ROW, NOTHING], schema=ORDER_COLUMNS)
    kinds: list[tuple[NewSchema, Any, type[Schema]]] = [
        ("AVRO", _pulsar.SchemaType.AVRO, AvroSchema),
        ("JSON", _pulsar.SchemaType.JSON, JsonSchema),
    ]
    for new, number, of_client in kinds:
        encoder = value_encoder(list(batch.schema), new=new, name="Order")
        payloads, _ = encoder.encode(batch)
        name = f"{topic}-{new}"
        consumer_of_any = client.subscribe(name, "s", schema=BytesSchema())
        publish(client, name, Ready(number, json.loads(encoder.schema.data)), *payloads.to_pylist())
        assert rows(source, name) == batch.to_pylist(maps_as_pydicts="strict")
        schema = of_client(Plain)
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            message = consumer_of_any.receive(10_000)
            decoded = schema.decode(message.data())
            assert {name: getattr(decoded, name) for name in PLAIN} == {name: row[name] for name in PLAIN}
        consumer_of_any.close()


class Plain(Record):
    """The fields that the client decodes without classes of its own."""

    id = Long(required=True)
    name = String()
    ok = Boolean()
    ratio = Float()
    total = Double()
    colour = String()
    _tags = None


PLAIN = ("id", "name", "ok", "ratio", "total", "colour")
ITEM_COLUMNS = pa.struct([("sku", pa.string()), ("count", pa.int32())])
ORDER_COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("ok", pa.bool_()),
        ("ratio", pa.float32()),
        ("total", pa.float64()),
        ("colour", pa.string()),
        ("item", ITEM_COLUMNS),
        ("items", pa.list_(ITEM_COLUMNS)),
        ("tags", pa.list_(pa.string())),
        ("prices", pa.map_(pa.string(), pa.float64())),
    ]
)


def test_rows_are_written_by_the_schema_that_the_clients_record_has_registered(
    client: pulsar.Client, source: BulkSource, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", schema=AvroSchema(OrderWithBytes))
    publish(client, topic, AvroSchema(OrderWithBytes), OrderWithBytes(id=0, item=Item(sku="")))
    info = source.schema(topic)
    assert info is not None
    batch = pa.record_batch({"id": [5], "tags": [["t"]], "colour": ["RED"]})
    encoder = value_encoder(list(batch.schema), info)
    payloads, _ = encoder.encode(batch)
    publish(client, topic, Ready(_pulsar.SchemaType.AVRO, json.loads(info.data)), *payloads.to_pylist())
    got = [consumer.receive(10_000).value() for _ in range(2)]
    assert (got[1].id, got[1].tags, got[1].name, got[1].colour) == (5, ["t"], None, Colour.RED)
    consumer.close()


def test_times_and_decimals_pass_through_a_topic(client: pulsar.Client, source: BulkSource, topic: str) -> None:
    columns = pa.schema([("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("price", pa.decimal128(12, 3))])
    written = [
        {"at": datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC), "day": date(1969, 1, 1), "price": Decimal("-1.125")},
        {"at": None, "day": None, "price": None},
    ]
    encoder = value_encoder(list(columns))
    payloads, _ = encoder.encode(pa.RecordBatch.from_pylist(written, schema=columns))
    schema = Ready(_pulsar.SchemaType.AVRO, json.loads(encoder.schema.data))
    publish(client, topic, schema, *payloads.to_pylist())
    assert rows(source, topic) == written
