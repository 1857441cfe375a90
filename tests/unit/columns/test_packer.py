"""Rows become entries that say what the rows said; the compiled packer and its twin agree to the byte."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.columns import packer
from pybroker.columns.packed_columns import MessageColumns, packed_columns
from pybroker.columns.packer import BatchLimits, EntryMaker, grouped_by_key, row_batches
from pybroker.columns.pure_python import python_packer
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import Decoder
from pybroker.wire.compression import decompress
from pybroker.wire.entry_metadata import message_metadata, metadata_span

texts = st.text(max_size=6)
row = st.tuples(
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=6),
    st.none() | st.binary(max_size=6),
    st.none() | st.integers(0, 1 << 50),
    st.none() | st.dictionaries(texts, texts, max_size=3),
)


def columns_of(rows: list[tuple[Any, ...]]) -> MessageColumns:
    values, keys, ordering, times, properties = zip(*rows, strict=True) if rows else ([], [], [], [], [])
    return MessageColumns(
        pa.array(values, pa.binary()),
        pa.array(keys, pa.binary()),
        pa.array(ordering, pa.binary()),
        pa.array(times, pa.int64()),
        pa.array(
            [None if each is None else list(each.items()) for each in properties], pa.map_(pa.string(), pa.string())
        ),
    )


def sliced(columns: MessageColumns, start: int) -> MessageColumns:
    parts = (columns.values, columns.keys, columns.ordering_keys, columns.event_times, columns.properties)
    return MessageColumns(*(part.slice(start) for part in parts))  # type: ignore[union-attr]


@pytest.mark.skipif(not packer.IS_COMPILED, reason="the compiled packer is not there")
@given(st.lists(row, min_size=1, max_size=20), st.data())
def test_both_packers_write_the_same(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    skipped = data.draw(st.integers(0, len(rows) - 1))
    columns = packed_columns(sliced(columns_of(rows), skipped))
    count = len(rows) - skipped
    start = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(start + 1, count))
    limit = data.draw(st.integers(0, 300))
    sequence = data.draw(st.integers(0, 1 << 62))
    assert packer.pack(columns, start, end, limit, sequence) == python_packer.pack(columns, start, end, limit, sequence)


@pytest.mark.skipif(not packer.IS_COMPILED, reason="the compiled packer is not there")
@given(st.lists(row, min_size=1, max_size=8), st.data())
def test_damaged_columns_are_refused_or_packed_and_never_read_outside(
    rows: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    columns = list(packed_columns(columns_of(rows)))
    which = data.draw(st.sampled_from([index for index, each in enumerate(columns) if each is not None]))
    damaged = bytearray(memoryview(columns[which]).cast("B"))
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    columns[which] = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        packed, end = packer.pack(tuple(columns), 0, len(rows), 1 << 20, 0)
    except ValueError:
        return
    assert 0 < end <= len(rows)
    assert len(packed) < 1 << 24


def messages_of(entry: bytes) -> list[tuple[pb.SingleMessageMetadata, bytes]]:
    metadata = message_metadata(entry)
    payload = decompress(metadata.compression, entry[metadata_span(entry)[1] :], metadata.uncompressed_size)
    found = []
    for _ in range(metadata.num_messages_in_batch):
        size = int.from_bytes(payload[:4], "big")
        single = pb.SingleMessageMetadata.FromString(payload[4 : 4 + size])
        payload = payload[4 + size :]
        found.append((single, payload[: single.payload_size]))
        payload = payload[single.payload_size :]
    assert not payload
    return found


@given(
    st.lists(row, max_size=30),
    st.integers(1, 7),
    st.integers(0, 200),
    st.sampled_from([pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY]),
)
def test_entries_hold_all_rows_in_order(
    rows: list[tuple[Any, ...]], most: int, max_bytes: int, compression: int
) -> None:
    maker = EntryMaker("p", compression, b"v1")  # type: ignore[arg-type]
    found = []
    for batch in row_batches(columns_of(rows), BatchLimits(most, max_bytes), 100):
        entry = maker.entry(batch, 100 + batch.first_row, 5)
        metadata = message_metadata(entry)
        assert (metadata.sequence_id, metadata.highest_sequence_id) == (100 + batch.first_row, 99 + batch.end_row)
        assert (metadata.producer_name, metadata.schema_version, metadata.publish_time) == ("p", b"v1", 5)
        assert 1 <= batch.message_count <= most
        decoder = Decoder()
        decoder.accept_messages(1 << 20, 100, 1000)
        found += messages_of(entry)
    assert len(found) == len(rows)
    for index, ((single, payload), (value, key, ordering, time_ms, properties)) in enumerate(
        zip(found, rows, strict=True)
    ):
        assert single.sequence_id == 100 + index
        assert (None if single.null_value else payload) == value
        assert single.HasField("partition_key") == (key is not None)
        if key is not None:
            import base64

            text = single.partition_key
            assert (base64.b64decode(text) if single.partition_key_b64_encoded else text.encode()) == key
        assert (single.ordering_key if single.HasField("ordering_key") else None) == ordering
        assert (single.event_time if single.HasField("event_time") else None) == time_ms
        assert {pair.key: pair.value for pair in single.properties} == (properties or {})


@given(st.lists(st.sampled_from([None, b"a", b"b", b"\xff"]), max_size=30))
def test_with_batches_by_key_a_batch_has_one_key_and_says_it(keys: list[bytes | None]) -> None:
    rows = [(b"%d" % index, key, None, None, None) for index, key in enumerate(keys)]
    grouped = grouped_by_key(columns_of(rows))
    order: dict[bytes | None, list[int]] = {}
    for batch in row_batches(grouped, BatchLimits(by_key=True), 0):
        inside = messages_of(EntryMaker("p").entry(batch, batch.first_row, 1))
        assert len({single.partition_key if single.HasField("partition_key") else None for single, _ in inside}) == 1
        metadata = message_metadata(EntryMaker("p").entry(batch, 0, 1))
        assert (metadata.partition_key if metadata.HasField("partition_key") else None) == batch.key
        key = keys[int(inside[0][1])]
        order.setdefault(key, []).extend(int(payload) for _, payload in inside)
    assert order == {key: [i for i, each in enumerate(keys) if each == key] for key in dict.fromkeys(keys)}


def test_borders_do_not_depend_on_how_rows_are_looked_at_again() -> None:
    rows = columns_of([(bytes(index % 50), None, None, None, None) for index in range(500)])
    limits = BatchLimits(64, 900)
    first = [(batch.first_row, batch.end_row, batch.payload) for batch in row_batches(rows, limits, 7)]
    assert first == [(batch.first_row, batch.end_row, batch.payload) for batch in row_batches(rows, limits, 7)]


def test_row_over_the_brokers_limit_is_a_batch_of_its_own() -> None:
    rows = columns_of([(value, None, None, None, None) for value in (b"a", bytes(2000), b"b", b"c")])
    batches = list(row_batches(rows, BatchLimits(max_entry_bytes=1000), 0))
    assert [(each.first_row, each.end_row) for each in batches] == [(0, 1), (1, 2), (2, 4)]
    assert len(batches[1].payload) > 2000


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (MessageColumns(pa.array([b"v"]), keys=pa.array([1])), "__key"),
        (MessageColumns(pa.array([1])), "payload"),
        (MessageColumns(pa.array([b"v"]), event_times=pa.array([-1])), "before 1970"),
        (MessageColumns(pa.array([b"v"]), event_times=pa.array(["x"])), "__eventTime"),
        (MessageColumns(pa.array([b"v"]), properties=pa.array(["x"])), "map<string,string>"),
        (
            MessageColumns(pa.array([b"v"]), properties=pa.array([[("a", None)]], pa.map_(pa.string(), pa.string()))),
            "null",
        ),
    ],
)
def test_what_no_message_can_hold_is_refused_by_its_column(columns: MessageColumns, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        packed_columns(columns)


def test_event_times_may_be_timestamps() -> None:
    times = pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "UTC"))
    rows = MessageColumns(pa.array([b"a", b"b"]), event_times=times)
    (batch,) = row_batches(rows, BatchLimits(), 0)
    found = messages_of(EntryMaker("p").entry(batch, 0, 1))
    assert [single.event_time for single, _ in found] == [1_700_000_000_123, 0]


def test_rows_are_taken_in_any_order() -> None:
    rows = columns_of([(b"%d" % index, None, None, index, {"i": str(index)}) for index in range(5)])
    (batch,) = row_batches(rows.take(np.array([4, 0])), BatchLimits(), 0)
    assert [payload for _, payload in messages_of(EntryMaker("p").entry(batch, 0, 1))] == [b"4", b"0"]
