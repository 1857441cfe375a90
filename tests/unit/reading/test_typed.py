"""Ranges of entries as rows of exactly the declared columns."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from tests.support.payloads import avro_bytes, record, schema
from tests.unit.columns.entries import TOPIC, Message, batch_entry, single_entry
from tests.unit.reading.memory_entries import MemoryEntries

from pybroker.columns.bad_records import BadEntry, BadRecords
from pybroker.columns.values.declared import WrongColumns
from pybroker.columns.values.unreadable import UnreadableSchema
from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.reading.entry_source import ReadingFailed
from pybroker.reading.positions import EntryRange
from pybroker.reading.typed import DifferentSchemas, TypedReader, TypedReading, typed_reading, union_of_topics

V1 = record(("id", "int"), ("name", "string"))
V2 = record(("id", "long"), ("name", "string"), ("tags", {"type": "array", "items": "string"}, []))
FIRST, SECOND = b"\0" * 8, b"\0" * 7 + b"\1"
INFO = schema("AVRO", V2)
PAYLOAD = ("id", "name", "tags")


class Versions(MemoryEntries):
    """A topic whose schema has two versions."""

    def __init__(self, ledgers: dict[int, list[bytes]]) -> None:
        super().__init__(ledgers)
        self.asked: list[tuple[str, bytes | None]] = []

    def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo | None:
        self.asked.append((topic, version))
        return {FIRST: schema("AVRO", V1), SECOND: INFO}.get(version or SECOND)


def one(number: int) -> bytes:
    return avro_bytes(V1, {"id": number, "name": f"n{number}"})


def two(number: int) -> bytes:
    return avro_bytes(V2, {"id": number, "name": f"n{number}", "tags": ["t"]})


def source() -> Versions:
    return Versions(
        {
            4: [
                batch_entry([Message(one(0), key=b"k"), Message(None), Message(one(2))], schema_version=FIRST),
                single_entry(Message(two(3)), schema_version=SECOND),
                single_entry(Message(two(4))),
            ]
        }
    )


def with_damage() -> Versions:
    damaged = source()
    damaged.ledgers[4].insert(1, batch_entry([Message(one(7)), Message(b"\xff" * 30)], schema_version=FIRST))
    damaged.ledgers[4].insert(2, b"\x0e\x01garbage")
    return damaged


def read(entries: MemoryEntries, reading: TypedReading, topic: str = TOPIC) -> pa.Table:
    reader = TypedReader(entries, reading)
    batches = list(reader.read(EntryRange(topic, 4, 0, len(entries.ledgers[4]))))
    for batch in batches:
        assert batch.schema.equals(reading.columns)
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=reading.columns)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    return table.to_pylist()  # type: ignore[no-any-return]


def test_without_declared_columns_rows_have_the_payload_and_the_usual_ones() -> None:
    entries = source()
    table = read(entries, typed_reading(INFO))
    assert table.column_names[:3] == ["id", "name", "tags"]
    assert table.column_names[3:] == [
        "__key",
        "__topic",
        "__messageId",
        "__publishTime",
        "__eventTime",
        "__messageProperties",
    ]
    assert table.select(PAYLOAD).to_pylist() == [
        {"id": 0, "name": "n0", "tags": []},
        {"id": None, "name": None, "tags": None},
        {"id": 2, "name": "n2", "tags": []},
        {"id": 3, "name": "n3", "tags": ["t"]},
        {"id": 4, "name": "n4", "tags": ["t"]},
    ]
    assert table.column("__key").to_pylist() == [b"k", None, None, None, None]


def test_versions_are_asked_for_once_and_for_the_topic_without_its_partition() -> None:
    entries = source()
    reader = TypedReader(entries, typed_reading(INFO))
    for _ in range(2):
        list(reader.read(EntryRange(f"{TOPIC}-partition-3", 4, 0, 3)))
    assert entries.asked == [(TOPIC, FIRST), (TOPIC, SECOND)]


def test_declared_columns_come_in_their_order_and_nullability() -> None:
    declared = pa.schema(
        [
            pa.field("__batchIndex", pa.int32(), nullable=False),
            pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
            pa.field("__eventTime", pa.timestamp("us", tz="Europe/Berlin")),
        ]
    )
    table = read(source(), typed_reading(INFO, declared))
    assert rows(table)[3] == {"__batchIndex": -1, "tags": ["t"], "__eventTime": None}
    assert table.schema.field("tags").type.value_field.name == "element"


def test_columns_of_no_payload_decode_none() -> None:
    entries = with_damage()
    entries.ledgers[4].pop(2)
    reading = typed_reading(INFO, pa.schema([("__entryId", pa.int64())]))
    assert read(entries, reading).column("__entryId").to_pylist() == [0, 0, 0, 1, 1, 2, 3]
    assert not entries.asked
    assert read(entries, typed_reading(INFO, pa.schema([]))).num_rows == 7


def test_a_null_in_a_column_declared_without_nulls_fails_with_its_place() -> None:
    declared = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with pytest.raises(BadEntry, match=r"4:0, message 1 .*'id' is null"):
        read(source(), typed_reading(INFO, declared))


def test_a_bad_record_fails_with_its_place_and_reason() -> None:
    entries = with_damage()
    entries.ledgers[4].pop(2)
    with pytest.raises(BadEntry, match=r"entry 4:1, message 1 of its batch .*number.*badRecords=null"):
        read(entries, typed_reading(INFO))


def test_bad_records_are_null_where_that_is_asked_for() -> None:
    table = read(with_damage(), typed_reading(INFO, bad_records=BadRecords.NULL))
    assert table.column("id").to_pylist() == [0, None, 2, 7, None, None, 3, 4]


def test_bad_records_tell_their_reasons_in_a_column() -> None:
    reading = typed_reading(INFO, bad_records=BadRecords.COLUMN)
    table = read(with_damage(), reading)
    assert table.column_names[-1] == "__error"
    told = table.column("__error").to_pylist()
    assert [bool(reason) for reason in told] == [False, False, False, False, True, True, False, False]


def test_the_reasons_alone_are_of_all_columns() -> None:
    reading = typed_reading(INFO, pa.schema([("__error", pa.string())]), bad_records=BadRecords.COLUMN)
    assert [bool(row["__error"]) for row in rows(read(with_damage(), reading))] == [False] * 4 + [True] * 2 + [
        False
    ] * 2


def test_reasons_that_are_not_among_the_declared_columns_are_left_out() -> None:
    reading = typed_reading(INFO, pa.schema([("id", pa.int64())]), bad_records=BadRecords.COLUMN)
    assert read(with_damage(), reading).column("id").to_pylist() == [0, None, 2, 7, None, None, 3, 4]


def test_raw_mode_gives_the_bytes_whatever_the_schema() -> None:
    table = read(source(), typed_reading(INFO, value_mode="raw", metadata=["__schemaVersion"]))
    assert rows(table)[3] == {"value": two(3), "__schemaVersion": SECOND}
    assert rows(table)[1]["value"] is None


def test_a_separated_key_is_a_typed_column_beside_the_raw_one() -> None:
    info = SchemaInfo(
        "KEY_VALUE",
        b"\0\0\0\0\0\0\0\0",
        {"key.schema.type": "STRING", "value.schema.type": "STRING", "kv.encoding.type": "SEPARATED"},
    )
    entries = MemoryEntries({4: [batch_entry([Message(b"v", key=b"k"), Message(None, key=b"gone")])]})
    table = read(entries, typed_reading(info, metadata=["__key"]))
    assert rows(table) == [
        {"key": "k", "value": "v", "__key": b"k"},
        {"key": "gone", "value": None, "__key": b"gone"},
    ]


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ([("idd", pa.int64())], "column 'idd' does not exist. Available columns: id, name, tags, __key"),
        ([("id", pa.int32())], "declared as int32, but in the topic's schema it has type int64"),
        ([("id", pa.int64()), ("id", pa.int64())], "declared twice"),
        ([("tags", pa.list_(pa.binary()))], "in the topic's schema it has type list"),
        ([("__eventTime", pa.timestamp("us"))], "__eventTime"),
        ([("__error", pa.string())], "only with badRecords=column"),
    ],
)
def test_columns_that_the_topic_has_not_are_refused(declared: list[tuple[str, pa.DataType]], reason: str) -> None:
    with pytest.raises(WrongColumns, match=reason):
        typed_reading(INFO, pa.schema(declared))


def test_a_schema_without_columns_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UnreadableSchema):
        typed_reading(schema("AVRO", "nonsense"))


def test_a_broker_that_does_not_answer_is_no_bad_record() -> None:
    class Silent(Versions):
        def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo | None:
            raise ReadingFailed("no answer")

    with pytest.raises(ReadingFailed, match="no answer"):
        read(Silent(source().ledgers), typed_reading(INFO, bad_records=BadRecords.NULL))


def test_a_reading_can_be_sent_to_another_process() -> None:
    reading = typed_reading(INFO, bad_records=BadRecords.COLUMN)
    sent = pickle.loads(pickle.dumps(reading))
    assert sent == reading
    assert read(source(), sent).num_rows == 5


def test_topics_with_one_schema_are_one_table() -> None:
    assert union_of_topics({"a": INFO, "b": SchemaInfo("AVRO", INFO.data, {"by": "someone"})}) == INFO
    assert union_of_topics({"a": None, "b": SchemaInfo("BYTES")}) is None
    assert union_of_topics({}) is None


def test_topics_with_different_schemas_are_refused_or_read_as_bytes() -> None:
    schemas = {"a": INFO, "b": INFO, "c": None}
    with pytest.raises(DifferentSchemas, match=r"a and c .*allowDifferentTopicSchemas=true"):
        union_of_topics(schemas)
    assert union_of_topics(schemas, allow_different=True) is None
    separated = {"k": SchemaInfo("KEY_VALUE", b"", {"kv.encoding.type": "SEPARATED"}), "l": SchemaInfo("KEY_VALUE")}
    with pytest.raises(DifferentSchemas):
        union_of_topics(separated)
