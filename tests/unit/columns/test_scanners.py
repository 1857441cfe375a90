"""The compiled scanner and its twin in plain Python do the same with any bytes, and what protobuf does with valid ones.

What must hold: whatever the bytes are, both write the same records, step by step and for any capacities, and neither raises.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.columns.entries import (
    TOPIC,
    Message,
    batch_body,
    by_protobuf,
    compressed_entry,
    entry_of,
    indexed,
    metadata,
    rows_of,
    run_of,
)

from pybroker.columns.decoder import MessageDecoder
from pybroker.columns.message_columns import METADATA_TYPES, VALUE
from pybroker.columns.pure_python import python_scanner
from pybroker.columns.scanner import COMPILED, Scanner
from pybroker.columns.scanner_layout import ENTRY, MESSAGE, PROPERTY, REASONS, STATE, ScanError
from pybroker.wire import pulsar_api_pb2 as pb

needs_compiler = pytest.mark.skipif(COMPILED is None, reason="the scanner is not compiled here")
SETTINGS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SMALL = st.binary(max_size=6)
TEXT = st.text("abcé", max_size=4)
INT64 = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1))
INT32 = st.one_of(st.integers(0, 3), st.integers(-(1 << 31), (1 << 31) - 1))

MESSAGES = st.builds(
    Message,
    value=st.none() | SMALL,
    key=st.none() | TEXT.map(str.encode),
    is_key_encoded=st.booleans(),
    properties=st.lists(st.tuples(TEXT, TEXT), max_size=20),
    event_time_ms=st.none() | INT64,
    ordering_key=st.none() | SMALL,
    sequence_id=st.none() | INT64,
    is_compacted_out=st.booleans(),
)


@st.composite
def metadatas(draw: st.DrawFn) -> pb.MessageMetadata:
    meta = metadata(publish_time=draw(INT64), sequence_id=draw(INT64), producer_name=draw(TEXT))
    for name, values in {
        "partition_key": TEXT,
        "replicated_from": TEXT,
        "event_time": INT64,
        "schema_version": SMALL,
        "ordering_key": SMALL,
        "partition_key_b64_encoded": st.booleans(),
        "null_value": st.booleans(),
        "null_partition_key": st.booleans(),
        "deliver_at_time": st.integers(0, 9),
        "txnid_least_bits": INT64,
        "schema_id": SMALL,
    }.items():
        if draw(st.booleans()):
            setattr(meta, name, draw(values))
    for name, value in draw(st.lists(st.tuples(TEXT, TEXT), max_size=20)):
        meta.properties.add(key=name, value=value)
    return meta


@st.composite
def valid_entries(draw: st.DrawFn) -> bytes:
    meta = draw(metadatas())
    codec = draw(st.sampled_from([pb.NONE, pb.NONE, pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY]))
    if draw(st.booleans()):
        messages = draw(st.lists(MESSAGES, min_size=1, max_size=5))
        meta.num_messages_in_batch = len(messages)
        entry = compressed_entry(meta, batch_body(messages), codec)
    else:
        entry = compressed_entry(meta, draw(SMALL), codec)
    if draw(st.booleans()):
        entry = entry[6:]
    return indexed(entry, draw(INT64)) if draw(st.booleans()) else entry


@st.composite
def other_entries(draw: st.DrawFn) -> bytes:
    """Entries with fields that rarely are there, and with values that cannot be."""
    meta = draw(metadatas())
    for name, values in {
        "marker_type": st.integers(0, 3),
        "uuid": TEXT,
        "num_chunks_from_msg": INT32,
        "chunk_id": INT32,
        "num_messages_in_batch": INT32,
        "uncompressed_size": st.integers(0, (1 << 32) - 1),
    }.items():
        if draw(st.booleans()):
            setattr(meta, name, draw(values))
    if draw(st.booleans()):
        meta.encryption_keys.add(key="k", value=b"v")
    return entry_of(meta, batch_body(draw(st.lists(MESSAGES, max_size=5))))


@st.composite
def any_entries(draw: st.DrawFn) -> bytes:
    """Valid entries, changed at some places, cut, or nothing of the kind."""
    entry = bytearray(draw(st.one_of(valid_entries(), other_entries(), st.binary(max_size=40))))
    for at, byte in draw(
        st.lists(st.tuples(st.integers(0, 300), st.sampled_from([0, 1, 2, 5, 0x7F, 0x80, 0xFF])), max_size=6)
    ):
        if entry:
            entry[at % len(entry)] = byte
    for at in draw(st.lists(st.integers(0, 300), max_size=1)):
        del entry[at:]
    for at, more in draw(st.lists(st.tuples(st.integers(0, 300), SMALL), max_size=2)):
        entry[at:at] = more
    return bytes(entry)


def scanned(scanner: Scanner, entries: list[bytes]) -> tuple[object, np.ndarray]:
    run = run_of(entries, gap=b"\x80")
    records = np.zeros(len(entries), ENTRY)
    scanner.scan_entries(run.data, run.starts, run.lengths, records)
    return run.data, records


def messages_of(
    scanner: Scanner, sources: list[object], entries: np.ndarray, wanted: int, max_bytes: int, capacity: int, room: int
) -> list[object]:
    """Everything that is written in each step."""
    state = np.zeros(1, STATE)
    messages, properties = np.zeros(capacity, MESSAGE), np.zeros(room, PROPERTY)
    steps: list[object] = []
    while state[0]["entry"] < len(entries):
        before = state.tobytes()
        count, property_count = scanner.scan_messages(sources, entries, wanted, max_bytes, state, messages, properties)  # type: ignore[arg-type]
        steps.append((count, property_count, state.tobytes()))
        if count:
            assert count <= capacity
            assert property_count <= room
            steps.append((messages[:count].tolist(), properties[:property_count].tolist()))
        elif property_count:
            assert property_count > len(properties)
            properties = np.zeros(property_count, PROPERTY)
            room = property_count
        else:
            assert state[0]["entry"] == len(entries)
        assert count or property_count or state.tobytes() != before
    return steps


@needs_compiler
@SETTINGS
@given(
    st.lists(any_entries(), max_size=4),
    st.integers(0, 127),
    st.sampled_from([1, 20, 1 << 40]),
    st.integers(1, 6),
    st.integers(0, 12),
)
def test_any_bytes_come_to_the_same_records(
    entries: list[bytes], wanted: int, max_bytes: int, capacity: int, room: int
) -> None:
    assert COMPILED is not None
    data, records = scanned(COMPILED, entries)
    _, expected = scanned(python_scanner, entries)
    assert records.tolist() == expected.tolist()
    steps = messages_of(COMPILED, [data], records, wanted, max_bytes, capacity, room)
    assert steps == messages_of(python_scanner, [data], expected, wanted, max_bytes, capacity, room)
    for step in (step for step in steps if isinstance(step[0], list)):  # type: ignore[index]
        assert all(message[-2] == 0 or ScanError(message[-2]) in REASONS for message in step[0])  # type: ignore[index]


@needs_compiler
@SETTINGS
@given(st.lists(valid_entries(), min_size=1, max_size=3), st.binary(min_size=1, max_size=1), st.data())
def test_every_way_of_cutting_an_entry_comes_to_the_same_records(
    entries: list[bytes], byte: bytes, data: st.DataObject
) -> None:
    assert COMPILED is not None
    entry = entries[0]
    at = data.draw(st.integers(0, len(entry)))
    cut = [entry[:at], entry[at:], entry[:at] + byte + entry[at + 1 :]]
    memory, records = scanned(COMPILED, cut)
    assert records.tolist() == scanned(python_scanner, cut)[1].tolist()
    steps = messages_of(COMPILED, [memory], records, 127, 1 << 40, 50, 500)
    assert steps == messages_of(python_scanner, [memory], records, 127, 1 << 40, 50, 500)


@pytest.mark.parametrize(
    "scanner", [python_scanner, pytest.param(COMPILED, marks=needs_compiler)], ids=["python", "compiled"]
)
@SETTINGS
@given(st.lists(valid_entries(), max_size=4))
def test_valid_entries_are_what_protobuf_says(scanner: Scanner, entries: list[bytes]) -> None:
    expected = [row for entry in entries for row in by_protobuf(entry)]
    columns = (VALUE, *METADATA_TYPES)
    decoder = MessageDecoder(TOPIC, -1, columns, scanner=scanner)
    rows = rows_of(list(decoder.decode(run_of(entries))))
    shown = {
        name
        for name in (expected[0] if expected else ())
        if name not in {"__publishTime", "__eventTime", "__key", "__index", "__sequenceId"}
    }
    assert [{name: row[name] for name in shown} for row in rows] == [
        {name: row[name] for name in shown} for row in expected
    ]
    for row, other in zip(rows, expected, strict=True):
        assert row["__sequenceId"] % (1 << 64) == other["__sequenceId"]  # type: ignore[operator]
        assert (row["__index"] is None) == (other["__index"] is None)
        assert row["__index"] is None or (row["__index"] - other["__index"]) % (1 << 64) == 0  # type: ignore[operator]
        assert (row["__eventTime"] is None) == (other["__eventTime"] is None)
        assert (row["__key"] is None) == (other["__key"] is None)


def outcome(scanner: Scanner, name: str, *arguments: object) -> object:
    try:
        return getattr(scanner, name)(*arguments)
    except ValueError as error:
        return str(error)


@needs_compiler
@SETTINGS
@given(
    st.lists(SMALL, max_size=3),
    st.lists(st.tuples(st.integers(-1, 3), st.integers(-2, 9), st.integers(-2, 9)), max_size=20),
)
def test_pieces_are_gathered_the_same_or_refused(sources: list[bytes], pieces: list[tuple[int, int, int]]) -> None:
    assert COMPILED is not None
    columns = [
        np.array([piece[column] for piece in pieces], dtype)
        for column, dtype in enumerate((np.int32, np.int64, np.int32))
    ]
    assert outcome(COMPILED, "gather", sources, *columns) == outcome(python_scanner, "gather", sources, *columns)


@needs_compiler
@SETTINGS
@given(st.integers(0, (1 << 63) - 1), st.integers(-1, 1 << 20), st.lists(st.tuples(INT64, INT32, INT32), max_size=9))
def test_message_ids_are_the_same_and_what_protobuf_says(
    ledger_id: int, partition: int, each: list[tuple[int, int, int]]
) -> None:
    assert COMPILED is not None
    entry_ids = np.array([item[0] for item in each], np.uint64).astype(np.int64)
    indexes, sizes = (np.array([item[column] for item in each], np.int32) for column in (1, 2))
    found = COMPILED.message_ids(ledger_id, partition, entry_ids, indexes, sizes)
    assert found == python_scanner.message_ids(ledger_id, partition, entry_ids, indexes, sizes)
    ends = np.frombuffer(found[0], np.int32)
    for number, (entry_id, batch_index, batch_size) in enumerate(each):
        expected = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
        for name, value in (("partition", partition), ("batch_index", batch_index), ("batch_size", batch_size)):
            if value >= 0:
                setattr(expected, name, value)
        assert found[1][ends[number] : ends[number + 1]] == expected.SerializeToString()


@needs_compiler
class TestWrongArgumentsOfTheCompiledScanner:
    def test_arrays_of_other_records_are_refused(self) -> None:
        assert COMPILED is not None
        numbers = np.zeros(1, np.int64)
        for arguments in (
            (b"", numbers, numbers, np.zeros(2, ENTRY)),
            (b"", numbers, np.zeros(2, np.int64), np.zeros(1, ENTRY)),
            (b"", numbers, numbers, np.zeros(3, np.uint8)),
            (b"", np.zeros(9, np.uint8)[1:], numbers, np.zeros(1, ENTRY)),
        ):
            with pytest.raises(ValueError, match=r"differ in length|no array of the records"):
                COMPILED.scan_entries(*arguments)

    def test_what_cannot_be_written_is_refused(self) -> None:
        assert COMPILED is not None
        with pytest.raises((ValueError, BufferError, TypeError)):
            COMPILED.scan_entries(b"", np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, ENTRY).tobytes())  # type: ignore[arg-type]

    def test_places_outside_of_their_source_are_errors_of_their_entry(self) -> None:
        assert COMPILED is not None
        data, entries = scanned(
            COMPILED, [entry_of(metadata(), b"abc"), entry_of(metadata(num_messages_in_batch=1), b"abc")]
        )
        for name, value in (
            ("payload_at", 1 << 62),
            ("payload_bytes", -1),
            ("payload_source", 1),
            ("payload_source", -1),
        ):
            wrong = entries.copy()
            wrong[name] = value
            steps = messages_of(COMPILED, [data], wrong, 127, 1 << 40, 5, 5)
            assert steps == messages_of(python_scanner, [data], wrong, 127, 1 << 40, 5, 5)
            assert [message[-2] for message in steps[1][0]] == [ScanError.BEYOND_SOURCE] * 2  # type: ignore[index]

    def test_places_of_entries_outside_of_the_data_are_errors_of_their_entry(self) -> None:
        assert COMPILED is not None
        starts = np.array([-1, 0, 5, 1 << 62, 0, -(1 << 63)], np.int64)
        lengths = np.array([1, -1, 6, 1 << 62, 11, -(1 << 63)], np.int64)
        for scanner in (COMPILED, python_scanner):
            entries = np.zeros(len(starts), ENTRY)
            scanner.scan_entries(b"0123456789", starts, lengths, entries)
            assert set(entries["error"].tolist()) == {ScanError.BEYOND_SOURCE}

    def test_states_below_zero_are_refused(self) -> None:
        assert COMPILED is not None
        for wrong in ((-1, 0, 0), (0, -1, 0)):
            state = np.array([wrong], STATE)
            with pytest.raises(ValueError, match="state"):
                COMPILED.scan_messages(
                    [b""], np.zeros(0, ENTRY), 0, 0, state, np.zeros(1, MESSAGE), np.zeros(0, PROPERTY)
                )
