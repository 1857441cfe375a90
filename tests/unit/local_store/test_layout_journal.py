"""Journal bytes: written records are read, and no cut or changed byte is accepted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.storage_format.fields import LayoutError
from pybroker.storage_format.journal_layout import (
    BATCH_ALIGNMENT,
    AppendRecord,
    CursorRecord,
    FileHeader,
    LedgerRecord,
    RecordType,
    align,
    decode_batch_header,
    decode_file_header,
    decode_records,
    encode_append,
    encode_batch_header,
    encode_cursor_record,
    encode_file_header,
    encode_ledger_record,
    encode_probe,
)

FILE = FileHeader(generation=7, salt=0x12345678)
HEADER_FIELDS_BYTES = 28


def batch(body: bytes, sequence: int = 3, file: FileHeader = FILE) -> bytes:
    return encode_batch_header(file, sequence, 1, body) + body


def append_body(payloads: list[bytes], counts: list[int]) -> bytes:
    parts: list[Any] = []
    encode_append(parts, 5, 100, payloads, counts)
    return b"".join(parts)


def test_a_file_header_is_read_as_written() -> None:
    assert decode_file_header(encode_file_header(FILE)) == FILE


def test_every_cut_of_a_file_header_is_refused() -> None:
    data = encode_file_header(FILE)
    for length in range(HEADER_FIELDS_BYTES):
        with pytest.raises(LayoutError):
            decode_file_header(data[:length])


def test_every_flipped_byte_of_a_file_header_is_refused() -> None:
    for offset in range(HEADER_FIELDS_BYTES):
        data = bytearray(encode_file_header(FILE))
        data[offset] ^= 0x40
        with pytest.raises(LayoutError):
            decode_file_header(bytes(data))


def test_a_newer_version_is_named() -> None:
    data = bytearray(encode_file_header(FILE))
    data[8] = 9
    with pytest.raises(LayoutError, match="version 9, but this version of pybroker supports only version 1"):
        decode_file_header(bytes(data))


def test_a_batch_is_found_where_it_was_put() -> None:
    data = bytes(BATCH_ALIGNMENT) + batch(b"body")
    header = decode_batch_header(memoryview(data), BATCH_ALIGNMENT, FILE)
    assert header is not None
    assert (header.generation, header.sequence, header.record_count, header.body_length) == (7, 3, 1, 4)
    assert data[header.body_offset :] == b"body"
    assert header.end_offset == 2 * BATCH_ALIGNMENT


def test_every_cut_of_a_batch_is_no_batch() -> None:
    data = batch(b"some body")
    for length in range(len(data)):
        assert decode_batch_header(memoryview(data[:length]), 0, FILE) is None


def test_every_flipped_byte_of_a_batch_makes_it_none() -> None:
    whole = batch(append_body([b"abc", b""], [1, 2]))
    for offset in range(len(whole)):
        data = bytearray(whole)
        data[offset] ^= 1
        assert decode_batch_header(memoryview(data), 0, FILE) is None, offset


@pytest.mark.parametrize("other", [FileHeader(8, FILE.salt), FileHeader(7, FILE.salt + 1)])
def test_a_batch_of_another_use_of_the_file_is_none(other: FileHeader) -> None:
    assert decode_batch_header(memoryview(batch(b"body")), 0, other) is None


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 2**32 - 1)), min_size=1, max_size=30))
def test_entries_are_read_as_appended(entries: list[tuple[bytes, int]]) -> None:
    payloads, counts = [payload for payload, _ in entries], [count for _, count in entries]
    (record,) = decode_records(memoryview(append_body(payloads, counts)))
    assert isinstance(record, AppendRecord)
    assert (record.ledger_id, record.first_entry_id) == (5, 100)
    assert [bytes(payload) for payload in record.payloads] == payloads
    assert list(record.message_counts) == counts


def test_records_of_all_types_are_read_in_order() -> None:
    records = [
        LedgerRecord(RecordType.LEDGER_CREATED, 9),
        CursorRecord(RecordType.CURSOR_DELTA, "topic/sub-é", 11, b"delta"),
        CursorRecord(RecordType.CURSOR_SNAPSHOT, "c", 12, b""),
        CursorRecord(RecordType.CURSOR_DELETED, "c", 13, b""),
        LedgerRecord(RecordType.LEDGER_DELETED, 9),
    ]
    body = b"".join(
        encode_ledger_record(record) if isinstance(record, LedgerRecord) else encode_cursor_record(record)  # type: ignore[arg-type]
        for record in records
    )
    assert list(decode_records(memoryview(encode_probe() + body))) == records


@pytest.mark.parametrize(
    "whole",
    [
        append_body([b"abc", b"de"], [1, 2]),
        encode_ledger_record(LedgerRecord(RecordType.LEDGER_CREATED, 9)),
        encode_cursor_record(CursorRecord(RecordType.CURSOR_DELTA, "cursor", 11, b"delta")),
    ],
)
def test_every_cut_of_a_record_is_refused(whole: bytes) -> None:
    for length in range(1, len(whole)):
        with pytest.raises(LayoutError):
            list(decode_records(memoryview(whole[:length])))


def test_an_unknown_record_type_is_refused() -> None:
    with pytest.raises(LayoutError, match="unknown type 200"):
        list(decode_records(memoryview(bytes([200, 0, 0, 0, 0, 0, 0, 0]))))


def test_a_cursor_id_that_does_not_fit_is_refused() -> None:
    with pytest.raises(LayoutError, match="the journal stores at most"):
        encode_cursor_record(CursorRecord(RecordType.CURSOR_DELTA, "x" * 65536, 1, b""))


def test_batches_start_at_sectors() -> None:
    assert [align(offset) for offset in (0, 1, 512, 513)] == [0, 512, 512, 1024]
