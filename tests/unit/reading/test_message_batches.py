"""Ranges of entries as messages: chunks are put together however the topic is cut."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.columns.entries import TOPIC, Message, batch_entry, entry_of, metadata, rows_of, single_entry
from tests.unit.reading.memory_entries import MemoryEntries

from pybroker.columns.bad_records import BadEntry, BadRecords
from pybroker.columns.payloads import DecoderLimits
from pybroker.reading.entry_source import ReadingFailed
from pybroker.reading.message_batches import MessageReader, MessageReading
from pybroker.reading.positions import EntryRange
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import compress

READING = MessageReading(columns=("value", "__ledgerId", "__entryId", "__messageId", "__producerName", "__error"))


def chunk(uuid: str, chunk_id: int, count: int, payload: bytes | None = None, **fields: Any) -> bytes:
    text = payload if payload is not None else f"{uuid}{chunk_id};".encode()
    return entry_of(metadata(uuid=uuid, chunk_id=chunk_id, num_chunks_from_msg=count, **fields), text)


def plain(text: str) -> bytes:
    return single_entry(Message(text.encode()))


def read(
    source: MemoryEntries, *ranges: tuple[int, int, int], reading: MessageReading = READING
) -> list[dict[str, Any]]:
    reader = MessageReader(source, reading)
    return [row for each in ranges for row in rows_of(list(reader.read(EntryRange(TOPIC, *each))))]


def values(source: MemoryEntries, *ranges: tuple[int, int, int], **options: Any) -> list[bytes]:
    return [row["value"] for row in read(source, *ranges, **options)]


def whole(source: MemoryEntries) -> list[tuple[int, int, int]]:
    return [(ledger_id, 0, len(entries)) for ledger_id, entries in sorted(source.ledgers.items())]


def test_the_chunks_of_a_message_are_one_row_where_the_last_one_is() -> None:
    source = MemoryEntries({5: [plain("x"), chunk("a", 0, 3), chunk("a", 1, 3), plain("y"), chunk("a", 2, 3)]})
    rows = read(source, (5, 0, 5))
    assert [(row["value"], row["__entryId"]) for row in rows] == [(b"x", 0), (b"y", 3), (b"a0;a1;a2;", 4)]
    expected = pb.MessageIdData(ledgerId=5, entryId=4, first_chunk_message_id=pb.MessageIdData(ledgerId=5, entryId=1))
    assert rows[2]["__messageId"] == expected.SerializeToString()


def test_a_range_that_begins_within_a_message_finds_its_earlier_chunks_across_ledgers() -> None:
    source = MemoryEntries(
        {5: [chunk("a", 0, 3)] + [plain("-")] * 200, 7: [chunk("a", 1, 3), plain("y"), chunk("a", 2, 3)]}
    )
    assert values(source, (7, 1, 3)) == [b"y", b"a0;a1;a2;"]
    assert values(source, (7, 2, 3)) == [b"a0;a1;a2;"]


def test_a_range_that_ends_within_a_message_has_no_row_for_it() -> None:
    source = MemoryEntries({5: [chunk("a", 0, 3), plain("x"), chunk("a", 1, 3), chunk("a", 2, 3)]})
    assert values(source, (5, 0, 3)) == [b"x"]
    assert values(source, (5, 3, 4)) == [b"a0;a1;a2;"]


def test_chunks_of_several_producers_stand_between_each_other() -> None:
    entries = [
        chunk("a", 0, 2),
        chunk("b", 0, 2),
        chunk("c", 0, 2),
        chunk("b", 1, 2),
        chunk("c", 1, 2),
        chunk("a", 1, 2),
    ]
    assert values(MemoryEntries({5: entries}), (5, 0, 6)) == [b"b0;b1;", b"c0;c1;", b"a0;a1;"]


def test_chunks_that_were_sent_again_count_once() -> None:
    entries = [chunk("a", number, 4) for number in (0, 1, 2, 1, 2, 3, 3)]
    assert values(MemoryEntries({5: entries}), (5, 0, 7)) == [b"a0;a1;a2;a3;"]


def test_a_message_that_was_sent_again_from_its_first_chunk_on_begins_again() -> None:
    entries = [chunk("a", number, 3) for number in (0, 1, 0, 1, 2)]
    source = MemoryEntries({5: entries})
    assert read(source, (5, 0, 5))[0]["__messageId"].find(b"\x10\x02") > 0
    assert values(source, (5, 0, 5)) == values(source, (5, 4, 5)) == [b"a0;a1;a2;"]


@pytest.mark.parametrize("ids", [(0, 2), (1, 2), (2,), (0, 1)])
def test_a_message_that_was_never_completed_gives_nothing(ids: tuple[int, ...]) -> None:
    source = MemoryEntries({5: [plain("x"), *(chunk("a", number, 3) for number in ids), plain("y")]})
    assert values(source, *whole(source)) == [b"x", b"y"]


def test_compression_is_that_of_the_whole_message() -> None:
    text = bytes(range(256)) * 40
    packed = compress(pb.ZLIB, text)
    fields = {"compression": pb.ZLIB, "uncompressed_size": len(text)}
    entries = [
        chunk("a", number, 3, packed[number * 200 : number * 200 + (200, 200, 99999)[number]], **fields)
        for number in range(3)
    ]
    assert values(MemoryEntries({5: entries}), (5, 0, 3)) == [text]


def test_payloads_that_are_not_held_are_read_again() -> None:
    entries = [chunk("a", 0, 3), chunk("b", 0, 2), chunk("a", 1, 3), chunk("b", 1, 2), chunk("a", 2, 3)]
    reading = replace(READING, limits=DecoderLimits(max_held_chunk_bytes=1))
    assert values(MemoryEntries({5: entries}), (5, 0, 5), reading=reading) == [b"b0;b1;", b"a0;a1;a2;"]


def test_a_message_above_the_limit_is_a_bad_record() -> None:
    limits = DecoderLimits(max_chunked_message_bytes=8)
    source = MemoryEntries({5: [chunk("a", 0, 3), chunk("a", 1, 3), chunk("a", 2, 3)]})
    with pytest.raises(BadEntry, match="maxChunkedMessageBytes"):
        read(source, (5, 0, 3), reading=replace(READING, limits=limits))
    rows = read(source, (5, 0, 3), reading=replace(READING, limits=limits, bad_records=BadRecords.COLUMN))
    assert [row["__entryId"] for row in rows] == [2]


def test_looking_back_ends_at_its_limits_of_entries_and_of_bytes() -> None:
    far = [chunk("a", 0, 2), *[plain("-")] * 5000, chunk("a", 1, 2)]
    for limits, found in (
        (DecoderLimits(), [b"a0;a1;"]),
        (DecoderLimits(max_chunk_span_entries=5002), [b"a0;a1;"]),
        (DecoderLimits(max_chunk_span_entries=5001), []),
        (DecoderLimits(max_chunk_span_bytes=sum(map(len, far))), [b"a0;a1;"]),
        (DecoderLimits(max_chunk_span_bytes=sum(map(len, far)) - 1), []),
    ):
        source = MemoryEntries({5: far}, run_entries=1000)
        reading = replace(READING, limits=limits)
        assert values(source, (5, 5001, 5002), reading=reading) == found
        assert [value for value in values(source, (5, 0, 5002), reading=reading) if value != b"-"] == found
    source = MemoryEntries({5: far}, run_entries=1000)
    assert (
        values(source, (5, 5001, 5002), reading=replace(READING, limits=DecoderLimits(max_chunk_span_entries=100)))
        == []
    )
    assert source.entries_read <= 1 + 2 * 128  # windows double


def test_what_lies_in_front_of_a_range_is_looked_through_once_for_all_its_messages() -> None:
    source = MemoryEntries(
        {5: [plain("-")] * 3000 + [chunk(f"u{number}", 1, 2) for number in range(100)]}, run_entries=500
    )
    assert values(source, (5, 3000, 3100)) == []
    assert source.entries_read == 3100


def test_a_source_that_ends_early_is_an_error() -> None:
    class Short(MemoryEntries):
        def read(self, entries: EntryRange):  # type: ignore[no-untyped-def]
            yield from super().read(replace(entries, end_entry_id=entries.end_entry_id - 1))

    with pytest.raises(ReadingFailed, match="up to entry 2"):
        read(Short({5: [plain("x")] * 3}), (5, 0, 3))


def test_a_source_that_yields_other_entries_is_an_error() -> None:
    class Other(MemoryEntries):
        def read(self, entries: EntryRange):  # type: ignore[no-untyped-def]
            yield from super().read(replace(entries, first_entry_id=entries.first_entry_id + 1))

    with pytest.raises(ReadingFailed, match="requested"):
        read(Other({5: [plain("x")] * 3}), (5, 0, 3))


def test_an_empty_range_gives_nothing() -> None:
    assert read(MemoryEntries({5: [plain("x")]}), (5, 0, 0)) == []


def test_small_runs_are_put_together_into_larger_batches() -> None:
    source = MemoryEntries({5: [batch_entry([Message(b"v")] * 5)] * 100}, run_entries=1)
    for columns in (("value",), ()):
        limits = DecoderLimits(max_batch_rows=200)
        batches = list(MessageReader(source, MessageReading(columns, limits=limits)).read(EntryRange(TOPIC, 5, 0, 100)))
        assert [batch.num_rows for batch in batches] == [200, 200, 100]


def test_what_a_reading_is_can_be_sent_to_another_process() -> None:
    reading = MessageReading(("value", "__key"), bad_records=BadRecords.NULL)
    assert pickle.loads(pickle.dumps(reading)) == reading
    assert reading.schema == pa.schema([("value", pa.binary()), ("__key", pa.binary())])


def test_an_error_about_an_entry_survives_the_way_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(BadEntry(TOPIC, 1, 2, 3, "why")))
    assert (error.ledger_id, error.entry_id, error.batch_index, error.reason) == (1, 2, 3, "why")


@st.composite
def topics(draw: st.DrawFn) -> dict[int, list[bytes]]:
    """Chunks of a few messages in any order, with what else there is between them, in a few ledgers."""
    one = st.one_of(
        st.just(None), st.tuples(st.sampled_from("abc"), st.integers(0, 2)), st.tuples(st.just("d"), st.integers(0, 1))
    )
    entries: list[bytes] = []
    for number, each in enumerate(draw(st.lists(one, max_size=40))):
        # The payload tells which of several attempts it is from.
        entries.append(
            plain(f"p{number}")
            if each is None
            else chunk(*each, 2 if each[0] == "d" else 3, f"{each[0]}{each[1]}@{number};".encode())
        )
    ledgers: dict[int, list[bytes]] = {}
    for ledger_id in range(1, 1 + draw(st.integers(1, 4))):
        size = draw(st.integers(0, len(entries)))
        ledgers[ledger_id * 10], entries = entries[:size], entries[size:]
    ledgers[90] = entries
    return ledgers


@settings(max_examples=150, deadline=None)
@given(topics(), st.data(), st.integers(1, 5))
def test_the_rows_are_the_same_for_every_way_of_cutting(
    ledgers: dict[int, list[bytes]], data: st.DataObject, run_entries: int
) -> None:
    entries_limit = data.draw(st.sampled_from([3, 8, 100_000]))
    held = data.draw(st.sampled_from([1, 20, 1000]))
    reading = replace(READING, limits=DecoderLimits(max_chunk_span_entries=entries_limit, max_held_chunk_bytes=held))
    source = MemoryEntries(ledgers, run_entries)
    cuts = []
    for ledger_id, entries in sorted(ledgers.items()):
        borders = [0, *sorted(data.draw(st.lists(st.integers(0, len(entries)), max_size=6))), len(entries)]
        cuts += [(ledger_id, first, end) for first, end in pairwise(borders) if first < end]
    singly = [
        (ledger_id, number, number + 1) for ledger_id, first, end in whole(source) for number in range(first, end)
    ]
    assert read(source, *cuts, reading=reading) == read(source, *singly, reading=reading)
    assert read(source, *whole(source), reading=reading) == read(source, *singly, reading=reading)
