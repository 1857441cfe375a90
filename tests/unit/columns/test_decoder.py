"""Entries of every kind as columns, by both scanners."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from tests.unit.columns.entries import (
    TOPIC,
    Message,
    batch_body,
    batch_entry,
    entry_of,
    indexed,
    metadata,
    rows_of,
    run_of,
    single_entry,
)

from pybroker.columns.bad_records import BadEntry, BadRecords
from pybroker.columns.decoder import MessageDecoder, schema_of
from pybroker.columns.message_columns import DEFAULT_COLUMNS, METADATA_TYPES, VALUE
from pybroker.columns.payloads import DecoderLimits
from pybroker.columns.pure_python import python_scanner
from pybroker.columns.scanner import COMPILED, Scanner
from pybroker.wire import pulsar_api_pb2 as pb

ALL = (VALUE, *METADATA_TYPES)
CODECS = [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY]


@pytest.fixture(params=["python", "compiled"])
def scanner(request: pytest.FixtureRequest) -> Scanner:
    if request.param == "python":
        return python_scanner
    if COMPILED is None:
        pytest.skip("the scanner is not compiled here")
    return COMPILED


def decode(
    scanner: Scanner, entries: list[bytes], columns: tuple[str, ...] = ALL, **options: Any
) -> list[dict[str, Any]]:
    decoder = MessageDecoder(TOPIC, -1, columns, scanner=scanner, **options)
    return rows_of(list(decoder.decode(run_of(entries, gap=b"\xff\xfe"))))


def column(scanner: Scanner, entries: list[bytes], name: str, **options: Any) -> list[object]:
    return [row[name] for row in decode(scanner, entries, (name,), **options)]


def test_a_message_of_its_own_has_all_columns(scanner: Scanner) -> None:
    message = Message(b"hello", b"k", properties=[("a", "1"), ("b", "2")], event_time_ms=1000, ordering_key=b"o")
    entry = indexed(single_entry(message, replicated_from="west", schema_version=b"\0\1"), 41)
    assert decode(scanner, [b"", entry][1:]) == [
        {
            "value": b"hello",
            "__key": b"k",
            "__topic": TOPIC,
            "__messageId": pb.MessageIdData(ledgerId=3, entryId=0).SerializeToString(),
            "__publishTime": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
            "__eventTime": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
            "__messageProperties": [("a", "1"), ("b", "2")],
            "__ledgerId": 3,
            "__entryId": 0,
            "__batchIndex": -1,
            "__partition": -1,
            "__index": 41,
            "__producerName": "p",
            "__sequenceId": 7,
            "__schemaVersion": b"\0\1",
            "__redeliveryCount": 0,
            "__orderingKey": b"o",
            "__replicatedFrom": "west",
        }
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_messages_of_a_batch_have_their_own_fields_and_those_of_the_batch(scanner: Scanner, codec: int) -> None:
    messages = [Message(b"a" * 50, b"k0", event_time_ms=5), Message(b"b", sequence_id=9), Message(None, b"k2")]
    entry = indexed(batch_entry(messages, codec, event_time=77, partition_key="of the batch"), 12)  # type: ignore[arg-type]
    rows = decode(scanner, [single_entry(Message(b"before")), entry])
    assert [row["value"] for row in rows] == [b"before", b"a" * 50, b"b", None]
    assert [row["__key"] for row in rows] == [None, b"k0", None, b"k2"]
    assert [row["__batchIndex"] for row in rows] == [-1, 0, 1, 2]
    assert [row["__index"] for row in rows] == [None, 10, 11, 12]
    assert [row["__sequenceId"] for row in rows] == [7, 7, 9, 7]
    assert [row["__eventTime"] and row["__eventTime"].microsecond for row in rows] == [None, 5000, 77000, 77000]
    expected = pb.MessageIdData(ledgerId=3, entryId=1, batch_index=2, batch_size=3)
    assert rows[3]["__messageId"] == expected.SerializeToString()


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_message_of_its_own_is_opened(scanner: Scanner, codec: int) -> None:
    assert column(scanner, [single_entry(Message(b"abc" * 1000), codec)], VALUE) == [b"abc" * 1000]  # type: ignore[arg-type]


def test_the_schema_is_exactly_what_is_asked_for_in_that_order(scanner: Scanner) -> None:
    decoder = MessageDecoder(TOPIC, 4, ("__partition", VALUE, "__key"), scanner=scanner)
    batch = next(decoder.decode(run_of([single_entry(Message(b"v", b"k"))])))
    assert batch.schema == decoder.schema == schema_of(("__partition", VALUE, "__key"))
    assert batch.to_pylist() == [{"__partition": 4, "value": b"v", "__key": b"k"}]


def test_the_default_columns_have_the_types_of_the_contract(scanner: Scanner) -> None:
    decoder = MessageDecoder(TOPIC, 4, DEFAULT_COLUMNS, scanner=scanner)
    batch = next(decoder.decode(run_of([single_entry(Message(b"v"))])))
    assert [(field.name, field.type) for field in batch.schema] == [
        (name, METADATA_TYPES[name]) for name in DEFAULT_COLUMNS
    ]


def test_no_columns_at_all_still_count_messages(scanner: Scanner) -> None:
    decoder = MessageDecoder(TOPIC, -1, (), scanner=scanner)
    assert sum(batch.num_rows for batch in decoder.decode(run_of([batch_entry([Message(b"a")] * 5)] * 3))) == 15


@pytest.mark.parametrize("columns", [("valu",), ("value", "value"), ("__nothing",)])
def test_columns_that_do_not_exist_or_come_twice_are_refused(columns: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"no column|contain the same column twice"):
        MessageDecoder(TOPIC, -1, columns)


def test_a_partition_is_part_of_the_message_id(scanner: Scanner) -> None:
    decoder = MessageDecoder(TOPIC, 0, ("__messageId",), scanner=scanner)
    batch = next(decoder.decode(run_of([single_entry(Message(b"v"))], 1 << 40, 300)))
    expected = pb.MessageIdData(ledgerId=1 << 40, entryId=300, partition=0).SerializeToString()
    assert batch.to_pylist() == [{"__messageId": expected}]


def test_keys_that_were_bytes_come_as_those_bytes(scanner: Scanner) -> None:
    encoded = Message(b"", b64encode(b"\0\xff"), is_key_encoded=True)
    wrong = Message(b"", b"%", is_key_encoded=True)
    plain = Message(b"", b"AAAA")
    entries = [single_entry(encoded), batch_entry([plain, encoded, wrong, Message(b"")])]
    assert column(scanner, entries, "__key") == [b"\0\xff", b"AAAA", b"\0\xff", b"%", None]


def test_an_empty_key_and_an_empty_value_are_not_null(scanner: Scanner) -> None:
    assert decode(scanner, [single_entry(Message(b"", b""))], (VALUE, "__key")) == [{"value": b"", "__key": b""}]


def test_a_null_key_of_a_key_value_message_is_null(scanner: Scanner) -> None:
    assert column(scanner, [entry_of(metadata(null_partition_key=True, partition_key="x"), b"")], "__key") == [None]


def test_markers_and_messages_that_compaction_left_out_give_no_rows(scanner: Scanner) -> None:
    marker = entry_of(metadata(marker_type=10), b"")
    batch = batch_entry([Message(b"0"), Message(b"", is_compacted_out=True), Message(b"2")])
    rows = decode(scanner, [marker, batch, marker], (VALUE, "__batchIndex"))
    assert rows == [{"value": b"0", "__batchIndex": 0}, {"value": b"2", "__batchIndex": 2}]


def test_messages_of_transactions_are_delivered(scanner: Scanner) -> None:
    assert column(scanner, [entry_of(metadata(txnid_least_bits=1, txnid_most_bits=2), b"v")], VALUE) == [b"v"]


def test_an_event_time_of_zero_is_none_and_one_before_1970_is_kept(scanner: Scanner) -> None:
    entries = [single_entry(Message(b"", event_time_ms=time)) for time in (0, 1, (1 << 64) - 1000, 1 << 62)]
    times = column(scanner, entries, "__eventTime")
    assert times[0] is None
    assert times[2] == datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert times[3].year == 9999  # type: ignore[attr-defined]


def test_of_properties_with_the_same_name_the_last_one_counts(scanner: Scanner) -> None:
    many = [(str(number % 20), str(number)) for number in range(50)]
    entries = [
        single_entry(Message(b"", properties=[("a", "1"), ("b", "2"), ("a", "3")])),
        batch_entry([Message(b"", properties=many), Message(b"")]),
    ]
    rows = column(scanner, entries, "__messageProperties")
    assert rows == [[("a", "3"), ("b", "2")], list(dict(many).items()), []]


def test_text_that_is_no_utf_8_is_replaced_as_in_the_clients(scanner: Scanner) -> None:
    entry = single_entry(Message(b"", properties=[("name", "value")])).replace(b"value", b"val\xff\xfe")
    assert column(scanner, [entry], "__messageProperties") == [[("name", "val\ufffd\ufffd")]]


def test_an_entry_without_checksum_is_read(scanner: Scanner) -> None:
    assert column(scanner, [entry_of(metadata(), b"v", has_checksum=False)], VALUE) == [b"v"]


def test_batches_are_closed_at_the_limits_of_rows_and_bytes(scanner: Scanner) -> None:
    entries = [batch_entry([Message(b"x" * 100)] * 30), single_entry(Message(b"y" * 5000)), single_entry(Message(b"z"))]
    by_rows = MessageDecoder(TOPIC, -1, (VALUE,), scanner=scanner, limits=DecoderLimits(max_batch_rows=7))
    assert [batch.num_rows for batch in by_rows.decode(run_of(entries))] == [7, 7, 7, 7, 4]
    by_bytes = MessageDecoder(TOPIC, -1, (VALUE,), scanner=scanner, limits=DecoderLimits(max_batch_bytes=1000))
    assert [batch.num_rows for batch in by_bytes.decode(run_of(entries))] == [10, 10, 10, 1, 1]
    keys_only = MessageDecoder(TOPIC, -1, ("__key",), scanner=scanner, limits=DecoderLimits(max_batch_bytes=1000))
    assert [batch.num_rows for batch in keys_only.decode(run_of(entries))] == [32]


def test_a_long_producer_name_counts_for_each_message_of_a_batch(scanner: Scanner) -> None:
    entry = batch_entry([Message(b"")] * 100, producer_name="p" * 500)
    decoder = MessageDecoder(
        TOPIC, -1, ("__producerName",), scanner=scanner, limits=DecoderLimits(max_batch_bytes=5000)
    )
    assert [batch.num_rows for batch in decoder.decode(run_of([entry]))] == [10] * 10


def test_more_properties_than_there_was_room_for_are_read(scanner: Scanner) -> None:
    properties = [(str(number), "") for number in range(10_000)]
    entries = [
        single_entry(Message(b"", properties=[("a", "b")])),
        batch_entry([Message(b"", properties=properties)] * 2),
    ]
    assert [len(each) for each in column(scanner, entries, "__messageProperties")] == [1, 10_000, 10_000]  # type: ignore[arg-type]


class TestEntriesThatCannotBeRead:
    BATCH = batch_entry([Message(b"0"), Message(b"1"), Message(b"2")])
    CASES: ClassVar = {
        "empty": (b"", "longer than the entry", -1),
        "metadata is longer": (b"\x0e\x01\0\0\0\0\x00\x01\x00\x00abc", "longer than the entry", -1),
        "metadata does not parse": (b"\0\0\0\x02\x0a\x05", "does not parse", -1),
        "a field is missing": (b"\0\0\0\x02\x10\x05", "lacks a required field", -1),
        "less than one message": (entry_of(metadata(num_messages_in_batch=-1), b""), "batch without messages", -1),
        "too many messages": (entry_of(metadata(num_messages_in_batch=1 << 30), b"\0" * 60), "more messages", -1),
        "the batch is cut": (BATCH[:-1], "ends within", 2),
        "metadata in the batch": (
            entry_of(metadata(num_messages_in_batch=1), b"\0\0\0\x02\x18\x80"),
            "in the batch",
            0,
        ),
        "field in the batch": (
            entry_of(metadata(num_messages_in_batch=1), b"\0\0\0\x02\x20\x00"),
            "lacks a required field",
            0,
        ),
        "negative payload": (
            entry_of(metadata(num_messages_in_batch=1), b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01"),
            "ends within",
            0,
        ),
        "no such compression": (
            entry_of(metadata(compression=pb.LZ4, uncompressed_size=100), b"\xff" * 50),
            "not valid LZ4 data",
            -1,
        ),
        "too large": (
            entry_of(metadata(compression=pb.ZSTD, uncompressed_size=(1 << 32) - 1), b"\xff" * 50),
            "maxUncompressedBytes",
            -1,
        ),
        "a chunk behind the last one": (
            entry_of(metadata(uuid="u", num_chunks_from_msg=2, chunk_id=2), b""),
            "chunk",
            -1,
        ),
    }

    @pytest.mark.parametrize("case", CASES)
    def test_one_is_an_error_that_names_it(self, scanner: Scanner, case: str) -> None:
        entry, reason, batch_index = self.CASES[case]
        decoder = MessageDecoder(TOPIC, -1, ALL, scanner=scanner)
        with pytest.raises(BadEntry, match=reason) as caught:
            list(decoder.decode(run_of([self.BATCH, entry], 8, 40)))
        error = caught.value
        assert (error.ledger_id, error.entry_id, error.batch_index) == (8, 41, batch_index)
        assert TOPIC in str(error)
        assert "8:41" in str(error)
        assert "badRecords" in str(error)

    @pytest.mark.parametrize("case", CASES)
    def test_one_is_a_row_with_its_reason(self, scanner: Scanner, case: str) -> None:
        entry, reason, batch_index = self.CASES[case]
        rows = decode(scanner, [entry, self.BATCH], (*ALL, "__error"), bad_records=BadRecords.COLUMN)
        bad = [row for row in rows if row["__error"] is not None]
        assert len(bad) == 1
        assert reason in bad[0]["__error"]
        assert (bad[0]["__entryId"], bad[0]["__batchIndex"], bad[0]["value"]) == (0, batch_index, None)
        assert [row["value"] for row in rows if row["__entryId"] == 1] == [b"0", b"1", b"2"]

    def test_one_is_a_row_without_value(self, scanner: Scanner) -> None:
        rows = decode(scanner, [self.BATCH[:-1], b""], (VALUE, "__publishTime"), bad_records=BadRecords.NULL)
        assert [row["value"] for row in rows] == [b"0", b"1", None, None]
        assert [row["__publishTime"] is None for row in rows] == [False, False, False, True]

    def test_the_column_of_reasons_has_to_be_asked_for(self) -> None:
        with pytest.raises(ValueError, match="__error"):
            MessageDecoder(TOPIC, -1, (VALUE,), bad_records=BadRecords.COLUMN)

    def test_a_batch_that_compressed_claims_too_much_costs_nothing(self, scanner: Scanner) -> None:
        bomb = entry_of(metadata(compression=pb.ZSTD, uncompressed_size=16), b"")
        limits = DecoderLimits(max_uncompressed_bytes=15)
        with pytest.raises(BadEntry, match="maxUncompressedBytes is 15: increase"):
            decode(scanner, [bomb], limits=limits)


def test_an_empty_run_gives_nothing(scanner: Scanner) -> None:
    assert decode(scanner, []) == []


def test_a_batch_with_more_bytes_behind_its_messages_is_read(scanner: Scanner) -> None:
    body = batch_body([Message(b"a")]) + b"more"
    assert column(scanner, [entry_of(metadata(num_messages_in_batch=1), body)], VALUE) == [b"a"]


def test_columns_are_arrow_arrays_that_arrow_itself_finds_valid(scanner: Scanner) -> None:
    entries = [batch_entry([Message(b"a", b"k"), Message(None)] * 20), single_entry(Message(b"x"))] * 10
    decoder = MessageDecoder(TOPIC, -1, ALL, scanner=scanner)
    table = pa.Table.from_batches(decoder.decode(run_of(entries)))
    table.validate(full=True)
    assert table["value"].null_count == 200


def test_a_batch_stays_what_it_is_when_the_next_one_is_decoded(scanner: Scanner) -> None:
    entries = [single_entry(Message(b"v%d" % number), sequence_id=number) for number in range(3)]
    decoder = MessageDecoder(TOPIC, -1, ALL, scanner=scanner)
    first, *others = [next(decoder.decode(run_of([entry]))) for entry in entries]
    assert first.to_pylist()[0]["__sequenceId"] == 0
    assert [batch.to_pylist()[0]["__sequenceId"] for batch in others] == [1, 2]
    by_ones = MessageDecoder(TOPIC, -1, ALL, scanner=scanner, limits=DecoderLimits(max_batch_rows=1))
    rows = rows_of(
        list(by_ones.decode(run_of([batch_entry([Message(b"a", sequence_id=5), Message(b"b", sequence_id=6)])])))
    )
    assert [(row["__sequenceId"], row["__batchIndex"]) for row in rows] == [(5, 0), (6, 1)]
